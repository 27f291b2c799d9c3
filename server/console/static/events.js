// Events of a stream to look at: a page from a place on, or those that come, as they come.

import { feed, get, Refused, TokenNeeded } from "./api.js";
import { el, field, replace, table } from "./dom.js";
import { size, time } from "./format.js";

const PAGE_COUNT = 50;
const LIVE_COUNT_MAX = 200;
const VALUE_LENGTH_MAX = 4096;
const RETRY_MS = 2000;
// Events may come by the thousands per second; so often they are shown.
const SHOW_MS = 250;

export function eventsPart(stream, signal, failed) {
  const from = el("input", { id: "from", value: "head", size: 34, list: "places" });
  const key = el("input", { id: "key", placeholder: "any", size: 16 });
  const said = el("p", { class: "quiet", id: "events-said" });
  const list = el("div", { id: "events" });
  const next = el("button", { type: "button", disabled: true, on: { click: () => show(resume) } }, "Next events");
  const live = el("button", { type: "button", id: "live", "aria-pressed": "false", on: { click: toggle } }, "Live");
  let resume = null;
  let following = null;
  let asked = 0;

  async function show(place) {
    stop();
    const turn = ++asked;
    try {
      const page = await get(`streams/${stream}/events`, { from: place, key: key.value, limit: PAGE_COUNT }, signal);
      if (turn !== asked) return;
      resume = page.next;
      next.disabled = page.at_end;
      const end = page.at_end ? "up to the tail as it was then" : "there are more";
      said.textContent = `${page.events.length} events, ${end}; the place after them is ${shortened(page.next)}`;
      replace(list, table(COLUMNS, page.events, page.at_end ? "there is no event" : "none so far; continue with Next events"));
      failed(null);
    } catch (error) {
      failed(error);
    }
  }

  function toggle() {
    if (following) {
      stop();
    } else {
      follow();
    }
  }

  function stop() {
    following?.abort();
    following = null;
    live.setAttribute("aria-pressed", "false");
  }

  async function follow() {
    asked += 1;
    following = new AbortController();
    live.setAttribute("aria-pressed", "true");
    next.disabled = true;
    const mine = following;
    const parameters = { from: "tail", key: key.value };
    let [last, rows, shown] = ["", [], null];
    said.textContent = "waiting for events";
    const paint = () => {
      if (shown === rows) return;
      shown = rows = rows.slice(-LIVE_COUNT_MAX);
      said.textContent = "as they come, the newest first";
      replace(list, table(COLUMNS, rows.toReversed(), ""));
    };
    const painting = setInterval(paint, SHOW_MS);
    mine.signal.addEventListener("abort", () => clearInterval(painting));
    while (!mine.signal.aborted) {
      try {
        for await (const message of feed(stream, parameters, last, AbortSignal.any([mine.signal, signal]))) {
          last = message.id || last;
          if (message.kind === "event" && message.content) {
            rows = [...rows.slice(-LIVE_COUNT_MAX), message.content];
          } else if (message.kind === "truncated") {
            said.textContent = "the next events were deleted; this continues after them";
          } else if (message.kind === "end" || message.kind === "failed") {
            paint();
            said.textContent = message.content.error ?? `no more events will come: the stream is ${message.content.reason}`;
            if (following === mine) stop();
            return;
          }
        }
      } catch (error) {
        if (mine.signal.aborted || signal.aborted) return;
        if (error instanceof TokenNeeded) return failed(error);
        said.textContent = error instanceof Refused ? error.message : "the connection was lost; trying again";
      }
      await new Promise((done) => setTimeout(done, RETRY_MS));
    }
  }

  signal.addEventListener("abort", stop);
  const part = el("section", {},
    el("h2", {}, "Events"),
    el("form", { on: { submit: (event) => { event.preventDefault(); show(from.value); } } },
      field("From", from), field("Key", key),
      el("button", { id: "show" }, "Show"), next, live),
    el("datalist", { id: "places" }, ...["head", "15m ago", "1h ago", "bookmark:", "cursor:"].map((value) => el("option", { value }))),
    said,
    list,
  );
  return { part, show: (place) => { from.value = place; return show(place); } };
}

const COLUMNS = [
  ["time", (event) => time(event.timestamp_us), "time"],
  ["key", (event) => event.key ?? "", "name"],
  ["value", (event) => valueText(event), "value"],
  ["headers", (event) => headersText(event.headers), "value"],
  ["segment", (event) => String(event.segment), "number"],
  ["place", (event) => `${event.offset}.${event.index}`, "number"],
];

function valueText(event) {
  const isText = event.value !== undefined;
  const text = isText ? event.value : event.value_base64;
  const shown = text.length > VALUE_LENGTH_MAX ? `${text.slice(0, VALUE_LENGTH_MAX)} …` : text;
  const isCut = event.value_size_bytes > VALUE_LENGTH_MAX;
  return `${isText ? "" : "base 64: "}${shown}${isCut ? ` … of ${size(event.value_size_bytes)}` : ""}`;
}

function headersText(headers) {
  return Object.entries(headers).map(([name, value]) => `${name}: ${value.base64 ?? value}`).join("\n");
}

function shortened(text) {
  return text.length > 120 ? `${text.slice(0, 120)} …` : text;
}
