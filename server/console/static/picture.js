// The segments of a stream over time: keys upwards, time to the right, each segment a rectangle, coloured by its rate.
//
// A segment has the colour of its average rate for the time that nobody watched, and the measured one since.

import { svg } from "./dom.js";
import { byteRate, duration, rate, time } from "./format.js";

export const HEAT_COUNT = 10;
const LEFT = 34;
const BOTTOM = 20;
const TOP = 8;
const STRIP_PX_MIN = 3;
const STRIPS_COUNT_MAX = 5000;
const NAME_PX_MIN = 14;
const SAMPLES_COUNT_MAX = 900;
const STEPS_S = [1, 5, 15, 60, 300, 900, 3600, 6 * 3600, 86400, 7 * 86400, 30 * 86400, 365 * 86400];

// What was measured of each segment while this page was open.
export class Samples {
  #bySegment = new Map();

  add(segmentId, sample) {
    const samples = this.#bySegment.get(segmentId) ?? [];
    samples.push(sample);
    if (samples.length > SAMPLES_COUNT_MAX) samples.shift();
    this.#bySegment.set(segmentId, samples);
  }

  of(segmentId) {
    return this.#bySegment.get(segmentId) ?? [];
  }
}

// The average rates of a segment over its life; null where what it held is gone.
export function average(segment, now_us) {
  const seconds = Math.max(0.001, ((segment.sealed_us ?? now_us) - segment.created_us) / 1e6);
  return {
    events: segment.event_count === null ? null : segment.event_count / seconds,
    bytes: segment.written_bytes === null ? null : segment.written_bytes / seconds,
  };
}

export function heat(value, most) {
  if (!value || !most) return 0;
  return Math.max(1, Math.min(HEAT_COUNT - 1, Math.ceil((value / most) * (HEAT_COUNT - 1))));
}

// Draws segments into an element; returns the rate that has the hottest colour.
export function draw(picture, { segments, samples, from_us, now_us, unit }) {
  const width = Math.max(200, picture.clientWidth);
  const height = Math.max(120, picture.clientHeight);
  const x = (us) => LEFT + ((Math.max(us, from_us) - from_us) / Math.max(1, now_us - from_us)) * (width - LEFT - 8);
  const y = (key) => TOP + (1 - key) * (height - TOP - BOTTOM);
  const shown = segments.filter((segment) => (segment.sealed_us ?? now_us) >= from_us);
  // Of very many segments the strips are wider, for each is an element that is made again every second.
  const strip_px = Math.max(STRIP_PX_MIN, (width * shown.length) / STRIPS_COUNT_MAX);
  const strips = shown.map((segment) =>
    stripsOf(segment, samples.of(segment.segment_id), { x, unit, now_us, from_us, strip_px }));
  const most = Math.max(0, ...strips.flat().map((strip) => strip.value ?? 0));
  picture.replaceChildren(
    ...axes({ width, height, x, y, from_us, now_us }),
    ...shown.flatMap((segment, index) => rectangle(segment, strips[index], { x, y, most, now_us })),
  );
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  picture.setAttribute("aria-label", `${shown.length} segments over time`);
  return most;
}

// The times of a segment with one colour each: the time before it was watched, then what was measured.
function stripsOf(segment, samples, { x, unit, now_us, from_us, strip_px }) {
  const end_us = segment.sealed_us ?? now_us;
  const measured = samples.filter((sample) => sample.to_us > from_us && sample.from_us < end_us);
  const start_us = Math.min(end_us, measured[0]?.from_us ?? end_us);
  const strips = [];
  if (start_us > segment.created_us) {
    strips.push({ from_us: segment.created_us, to_us: start_us, value: average(segment, now_us)[unit] });
  }
  let gathered = [];
  for (const [index, sample] of measured.entries()) {
    gathered.push(sample);
    const isLast = index === measured.length - 1;
    if (isLast || x(sample.to_us) - x(gathered[0].from_us) >= strip_px) {
      const value = gathered.reduce((sum, each) => sum + each[unit], 0) / gathered.length;
      const to_us = isLast ? end_us : Math.min(sample.to_us, end_us);
      strips.push({ from_us: gathered[0].from_us, to_us, value });
      gathered = [];
    }
  }
  return strips;
}

function rectangle(segment, strips, { x, y, most, now_us }) {
  const end_us = segment.sealed_us ?? now_us;
  const [left, right, top, bottom] = [x(segment.created_us), x(end_us), y(segment.high), y(segment.low)];
  const box = { x: left, y: top, width: Math.max(1, right - left), height: Math.max(1, bottom - top) };
  const mean = average(segment, now_us);
  const told = [
    `segment ${segment.segment_id}`,
    `keys ${segment.low.toFixed(4)} to ${segment.high.toFixed(4)}`,
    `${time(segment.created_us)}, ${duration((end_us - segment.created_us) / 1e6)}${segment.sealed_us ? "" : ", open"}`,
    mean.events === null ? "truncated" : `on average ${rate(mean.events)} events, ${byteRate(mean.bytes)}`,
  ].join("\n");
  const colours = strips.map((strip) =>
    svg("rect", {
      class: `heat-${heat(strip.value, most)}`, x: x(strip.from_us), y: top,
      width: Math.max(0.5, x(strip.to_us) - x(strip.from_us)), height: box.height,
    }),
  );
  const hasName = box.height >= NAME_PX_MIN && box.width >= NAME_PX_MIN + 6 * String(segment.segment_id).length;
  const name = hasName
    ? svg("text", { class: "name", x: left + box.width / 2, y: top + box.height / 2 + 4, "text-anchor": "middle" },
        String(segment.segment_id))
    : null;
  return [
    svg("g", { class: "segment", "data-segment": segment.segment_id, "data-open": !segment.sealed_us },
      svg("title", {}, told), ...colours, svg("rect", { class: "outline", ...box }), name),
  ];
}

function axes({ width, height, x, y, from_us, now_us }) {
  const parts = [];
  for (const [key, text] of [[0, "0"], [0.25, "1/4"], [0.5, "1/2"], [0.75, "3/4"], [1, "1"]]) {
    parts.push(svg("line", { class: "grid", x1: LEFT, x2: width - 8, y1: y(key), y2: y(key) }));
    parts.push(svg("text", { x: LEFT - 6, y: y(key) + 4, "text-anchor": "end" }, text));
  }
  const span_s = (now_us - from_us) / 1e6;
  const step_s = STEPS_S.find((step) => span_s / step <= Math.max(2, (width - LEFT) / 90)) ?? STEPS_S.at(-1);
  const long = step_s >= 86400;
  for (let at_s = Math.ceil(from_us / 1e6 / step_s) * step_s; at_s * 1e6 <= now_us; at_s += step_s) {
    const at = x(at_s * 1e6);
    parts.push(svg("line", { class: "grid", x1: at, x2: at, y1: TOP, y2: height - BOTTOM }));
    const text = time(at_s * 1e6);
    if (at < width - 40) {
      parts.push(svg("text", { x: at, y: height - 6, "text-anchor": "middle" }, long ? text.slice(0, 10) : text.slice(11, 19)));
    }
  }
  return parts;
}
