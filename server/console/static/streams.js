// The list of streams: found by name, some at a time, with sizes and rates.

import { get } from "./api.js";
import { el, field, replace, table } from "./dom.js";
import { byteRate, count, rate, size } from "./format.js";
import { every } from "./poll.js";
import { Rates } from "./rates.js";

const PAGE_COUNT = 50;

export function streamsView(view, _parts, signal, failed) {
  const rates = new Rates();
  const search = el("input", { type: "search", id: "search", placeholder: "part of a name, or scope/start" });
  const tag = el("input", { type: "search", id: "tag", placeholder: "any" });
  const list = el("div", { id: "streams" });
  const first = el("button", { type: "button", on: { click: () => go([]) } }, "First page");
  const next = el("button", { type: "button", on: { click: () => go([...pages, resume]) } }, "Next page");
  let pages = [];
  let resume = null;
  let asked = 0;

  function go(to) {
    pages = to;
    return load().then(() => failed(null), failed);
  }

  async function load() {
    const turn = ++asked;
    const text = search.value.trim();
    // Names are scope/name: a text with a slash is how a name begins, which is found at once among any number.
    const parameters = text.includes("/") ? { prefix: text } : { contains: text };
    const after = pages.at(-1);
    const found = await get("streams", { ...parameters, tag: tag.value.trim(), after, limit: PAGE_COUNT }, signal);
    if (turn !== asked) return; // an answer to what was asked later is there, or will be
    resume = found.resume_after;
    first.disabled = !pages.length;
    next.disabled = resume === null;
    const rows = found.streams.map((stream) => ({
      ...stream,
      events_per_s: rates.per_s(`${stream.stream} events`, stream.event_count, found.now_us),
      bytes_per_s: rates.per_s(`${stream.stream} bytes`, stream.written_bytes, found.now_us),
    }));
    replace(list, table(COLUMNS, rows, resume === null ? "no stream has such a name" : "none so far; continue with the next page"));
  }

  replace(
    view,
    el("h1", {}, "Streams"),
    el("form", { on: { submit: (event) => { event.preventDefault(); go([]); } } },
      field("Name", search), field("Tag", tag),
      el("button", {}, "Search"), first, next),
    list,
  );
  search.addEventListener("input", () => go([]));
  every(2, signal, load, failed);
}

const COLUMNS = [
  ["stream", (row) => el("a", { href: `#/streams/${row.stream}` }, row.stream), "name"],
  ["state", (row) => (row.sealed ? "sealed" : "open")],
  ["segments", (row) => count(row.open_segment_count), "number"],
  ["scalings", (row) => count(row.epoch), "number"],
  ["size", (row) => size(row.size_bytes), "number"],
  ["events", (row) => rate(row.events_per_s), "number"],
  ["bytes", (row) => byteRate(row.bytes_per_s), "number"],
];
