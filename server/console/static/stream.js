// One stream: its segments over time as they grow, its rates, its consumers, why it is as it is, and its events.

import { get } from "./api.js";
import { el, facts, field, replace, svg, table } from "./dom.js";
import { eventsPart } from "./events.js";
import { byteRate, count, duration, rate, retention, scaling, size, time } from "./format.js";
import { draw, HEAT_COUNT, Samples } from "./picture.js";
import { every } from "./poll.js";
import { Rates } from "./rates.js";

const WINDOWS = [["everything", 0], ["5 minutes", 300], ["1 hour", 3600], ["1 day", 86400], ["30 days", 30 * 86400]];
const UNITS = [["events", "events per second"], ["bytes", "bytes per second"]];

export function streamView(view, [scope, name], signal, failed) {
  const stream = `${scope}/${name}`;
  const path = `streams/${stream}`;
  const [rates, samples] = [new Rates(), new Samples()];
  const head = el("div", { id: "stream" });
  const picture = svg("svg", { class: "picture", id: "picture", role: "img" });
  const notes = el("span", { class: "quiet", id: "omitted" });
  const hottest = el("span", { id: "hottest" });
  const [since, unit] = [choice("window", WINDOWS.map(([text, value]) => [String(value), text])), choice("unit", UNITS)];
  const [segments, cuts, reasons] = [el("div", { id: "segments" }), el("div", { id: "cuts" }), el("div", { id: "explain" })];
  const events = eventsPart(stream, signal, failed);
  let history = null;
  let now = null;
  let measured_us = null;

  async function load() {
    const found = await get(path, {}, signal);
    // What a segment holds is needed of those that were sealed, too; the list is asked for when there are others.
    if (history?.epoch !== found.epoch || history.created_us !== found.created_us) {
      history = { ...(await get(`${path}/segments`, {}, signal)), created_us: found.created_us };
      notes.textContent = history.omitted_segment_count ? `${history.omitted_segment_count} segments are left out` : "";
    }
    measure(found);
    now = found;
    show();
  }

  function measure(found) {
    const listed = new Map(history.segments.map((segment) => [segment.segment_id, segment]));
    for (const segment of found.segments) {
      Object.assign(listed.get(segment.segment_id) ?? {}, segment);
      segment.events_per_s = rates.per_s(`${segment.segment_id} events`, segment.event_count, found.now_us);
      segment.bytes_per_s = rates.per_s(`${segment.segment_id} bytes`, segment.written_bytes, found.now_us);
      if (segment.events_per_s !== null && measured_us !== null) {
        const sample = { from_us: measured_us, to_us: found.now_us, events: segment.events_per_s, bytes: segment.bytes_per_s };
        samples.add(segment.segment_id, sample);
      }
    }
    measured_us = found.now_us;
  }

  function total(field) {
    const known = now.segments.map((segment) => segment[field]).filter((value) => value !== null);
    return known.length ? known.reduce((sum, value) => sum + value, 0) : null;
  }

  function show() {
    replace(
      head,
      el("h1", {}, stream, " ", now.sealed ? el("span", { class: "tag" }, "sealed") : null,
        ...now.tags.flatMap((tag) => [el("span", { class: "tag" }, tag), " "])),
      facts([
        ["events", rate(total("events_per_s"))],
        ["bytes", byteRate(total("bytes_per_s"))],
        ["size", size(now.size_bytes)],
        ["open segments", count(now.open_segment_count)],
        ["scalings", count(now.epoch)],
        ["created", time(now.created_us).slice(0, 19)],
        ["scaling", scaling(now.scaling)],
        ["retention", retention(now.retention)],
        ["exclusive writer", now.exclusive_writer ? now.exclusive_writer.writer_id || "one without an id" : "none"],
      ]),
    );
    const columns = [
      ["segment", (row) => String(row.segment_id), "number"],
      ["keys", (row) => `${row.low.toFixed(4)} to ${row.high.toFixed(4)}`, "number"],
      ["events", (row) => rate(row.events_per_s), "number"],
      ["bytes", (row) => byteRate(row.bytes_per_s), "number"],
      ["size", (row) => size(row.size_bytes), "number"],
    ];
    replace(segments, table(columns, now.segments, "every segment is sealed"));
    paint();
  }

  function paint() {
    if (!now) return;
    const seconds = Number(since.value);
    const from_us = seconds ? now.now_us - seconds * 1e6 : Math.min(...history.segments.map((each) => each.created_us));
    const most = draw(picture, { segments: history.segments, samples, from_us, now_us: now.now_us, unit: unit.value });
    hottest.textContent = unit.value === "bytes" ? byteRate(most) : rate(most);
  }

  async function loadConsumers() {
    const [saved, facts_] = await Promise.all([get(`${path}/cuts`, {}, signal), get(`${path}/explain`, {}, signal)]);
    const age = (row) => `${duration(Math.max(0, saved.now_us - row.saved_us) / 1e6)} ago`;
    const from = (kind) => (row) => el("button", { type: "button", on: { click: () => events.show(`${kind}:${row.name}`) } }, "Events");
    replace(
      cuts,
      el("h2", {}, "Cursors"),
      table([["name", (row) => row.name, "name"], ["events not read", (row) => count(row.unread_events), "number"],
        ["bytes not read", (row) => size(row.unread_bytes), "number"],
        ["held by it alone", (row) => size(row.holds_bytes), "number"], ["moved", age, "number"], ["", from("cursor")]],
      saved.cursors, "no consumer has a cursor here"),
      el("h2", {}, "Bookmarks"),
      table([["name", (row) => row.name, "name"], ["saved", (row) => time(row.saved_us), "time"], ["", from("bookmark")]],
        saved.bookmarks, "there is no bookmark"),
      saved.omitted_count ? el("p", { class: "quiet" }, `${saved.omitted_count} more are left out`) : null,
    );
    const waiting = facts_.segments.filter((segment) => segment.remark);
    replace(
      reasons,
      el("h2", {}, "Why it is so"),
      table([["segment", (row) => String(row.segment_id), "number"], ["what it waits for", (row) => row.remark, "text"]], waiting,
        "no segment waits for a split or a merge"),
      el("h2", {}, "Last scalings"),
      table([["at", (row) => time(row.at_us), "time"], ["scaling", (row) => count(row.epoch), "number"], ["reason", (row) => row.reason, "text"]],
        [...facts_.scalings].reverse(), "it was never scaled"),
      el("h2", {}, "Retention"),
      ...facts_.retention.map((remark) => el("p", {}, remark)),
      table([["at", (row) => time(row.at_us), "time"], ["dropped", (row) => size(row.size_bytes), "number"], ["reason", (row) => row.reason, "text"]],
        [...facts_.truncations].reverse(), "retention has deleted nothing since the server started"),
    );
  }

  since.addEventListener("change", paint);
  unit.addEventListener("change", paint);
  window.addEventListener("resize", paint, { signal });
  replace(
    view,
    head,
    el("h2", {}, "Segments over time"),
    el("div", { class: "controls" }, field("Show", since), field("colour", unit),
      el("span", { class: "field" }, "0", legend(), hottest), notes),
    picture,
    el("h2", {}, "Open segments"),
    segments,
    cuts,
    reasons,
    events.part,
  );
  every(1, signal, load, failed);
  every(3, signal, loadConsumers, failed);
}

function choice(id, options) {
  return el("select", { id }, ...options.map(([value, text]) => el("option", { value }, text)));
}

function legend() {
  const steps = Array.from({ length: HEAT_COUNT }, (_, step) => svg("rect", { class: `heat-${step}`, x: step, width: 1, height: 1 }));
  return svg("svg", { class: "legend", viewBox: `0 0 ${HEAT_COUNT} 1`, preserveAspectRatio: "none", role: "img",
    "aria-label": "from the lowest to the highest rate" }, ...steps);
}
