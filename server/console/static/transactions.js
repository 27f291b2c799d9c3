// Transactions that are open or prepared.

import { get } from "./api.js";
import { el, replace, table } from "./dom.js";
import { count, duration, size, time } from "./format.js";
import { every } from "./poll.js";

export function transactionsView(view, _parts, signal, failed) {
  const list = el("div", { id: "transactions" });
  let pages = [];
  let resume = null;
  let asked = 0;
  const first = el("button", { type: "button", on: { click: () => go([]) } }, "First page");
  const next = el("button", { type: "button", on: { click: () => go([...pages, resume]) } }, "Next page");

  function go(to) {
    pages = to;
    return load().then(() => failed(null), failed);
  }

  async function load() {
    const turn = ++asked;
    const found = await get("transactions", { after: pages.at(-1) }, signal);
    if (turn !== asked) return; // an answer to what was asked later is there, or will be
    resume = found.resume_after;
    first.disabled = !pages.length;
    next.disabled = resume === null;
    const columns = [
      ["number", (row) => count(row.number), "number"],
      ["name", (row) => row.name || "–", "name"],
      ["state", (row) => row.state],
      ["begun", (row) => time(row.begun_us), "time"],
      ["age", (row) => duration((found.now_us - row.begun_us) / 1e6), "number"],
      ["lease", (row) => (row.state === "open" ? duration(row.lease_s) : "never ends"), "number"],
      ["parts", (row) => count(row.part_count), "number"],
      ["size", (row) => size(row.size_bytes), "number"],
    ];
    replace(list, table(columns, found.transactions, "no transaction is open or prepared"));
  }

  replace(view, el("h1", {}, "Open transactions"), el("div", { class: "controls" }, first, next), list);
  every(2, signal, load, failed);
}
