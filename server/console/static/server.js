// The server: whether it is well and why not, what it does per second, and all its figures.

import { get } from "./api.js";
import { el, facts, replace, table } from "./dom.js";
import { byteRate, count, duration, rate, size } from "./format.js";
import { every } from "./poll.js";
import { Rates } from "./rates.js";

export function serverView(view, _parts, signal, failed) {
  const rates = new Rates();
  const body = el("div", { id: "server" });

  async function load() {
    const server = await get("server", {}, signal);
    const part = (name) => server.statistics[name] ?? {};
    const per_s = (name, field) => rates.per_s(`${name}.${field}`, part(name)[field], server.now_us);
    const [wal, front, held] = [part("wal"), part("front"), part("server")];
    const slow = wal.write_age_s > 0.1 ? `${duration(wal.write_age_s)} for the sync in flight` : "";
    replace(
      body,
      server.healthy ? el("p", {}, "All is well.") : el("p", { class: "error" }, server.problem),
      slow ? el("p", { class: "error" }, slow) : null,
      held.throttle_reason ? el("p", { class: "error", id: "throttled" }, `Appends have to wait: ${held.throttle_reason}.`) : null,
      el("h2", {}, "Now"),
      facts([
        ["syncs", rate(per_s("wal", "batch_count"))],
        ["written to the log", byteRate(per_s("wal", "written_bytes"))],
        ["appends", rate(per_s("front", "appends_total"))],
        ["requests", rate(per_s("front", "frames_total"))],
        ["received", byteRate(per_s("front", "received_bytes_total"))],
        ["sent to readers", byteRate(per_s("front", "sent_data_bytes_total"))],
        ["connections", count(held.connections)],
        ["feeds", count(part("feed").open)],
        ["log, how full", wal.fullness === undefined ? "" : `${(100 * wal.fullness).toFixed(0)} %`],
        ["not in tier 2 yet", size(held.tail_bytes)],
        ["open transactions", count(part("transactions").open)],
        ["streams", count(held.streams)],
      ]),
      el("h2", {}, "Throttles and refusals"),
      table(
        [["what", ([what]) => what, "text"], ["now", ([, field]) => rate(per_s(...field)), "number"],
          ["since the start", ([, [name, field]]) => count(part(name)[field]), "number"]],
        [
          [`times that a client was told to wait${front.throttled_last ? `, last because ${front.throttled_last}` : ""}`, ["front", "throttled_total"]],
          ["requests that waited for memory", ["front", "requests_delayed_total"]],
          ["reads that waited for memory", ["front", "reads_delayed_total"]],
          ["slow readers that were disconnected", ["front", "readers_ended_total"]],
          ["connections that were refused, because too many were open", ["front", "shed_total"]],
          ["connections that were refused, because the server was not ready", ["front", "refused_total"]],
          ["requests that were answered with an error", ["front", "requests_failed_total"]],
          ["feeds that were refused", ["feed", "refused_total"]],
        ].filter(([, [name, field]]) => part(name)[field] !== undefined),
        "",
      ),
      front.frames_total === undefined ? el("p", { class: "error" }, "no figures yet") : null,
      el("h2", {}, "All figures"),
      ...Object.entries(server.statistics).map(([name, figures]) =>
        el("details", { open: open.has(name), on: { toggle: (event) => remember(name, event.target.open) } },
          el("summary", {}, name),
          facts(Object.entries(figures).map(([field, value]) => [field, shown(value)])))),
    );
  }

  const open = new Set();
  const remember = (name, isOpen) => (isOpen ? open.add(name) : open.delete(name));
  replace(view, el("h1", {}, "Server"), body);
  every(2, signal, load, failed);
}

function shown(value) {
  if (typeof value === "number") return count(value);
  return typeof value === "string" ? value : JSON.stringify(value);
}
