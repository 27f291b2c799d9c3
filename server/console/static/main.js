// The page: which view is shown, what is wrong, and the token where the server asks for one.

import { get, Refused, setToken, TokenNeeded } from "./api.js";
import { el, replace } from "./dom.js";
import { rate } from "./format.js";
import { every } from "./poll.js";
import { Rates } from "./rates.js";
import { serverView } from "./server.js";
import { streamView } from "./stream.js";
import { streamsView } from "./streams.js";
import { transactionsView } from "./transactions.js";

const view = document.getElementById("view");
const status = document.getElementById("status");
let shown = new AbortController();

function route() {
  shown.abort();
  shown = new AbortController();
  const parts = location.hash.replace(/^#\/?/, "").split("/");
  for (const link of document.querySelectorAll("header nav a")) {
    link.toggleAttribute("aria-current", link.getAttribute("href") === `#/${parts[0] || "streams"}`);
  }
  const isStream = parts[0] === "streams" && parts.length === 3;
  const chosen = isStream ? streamView : { server: serverView, transactions: transactionsView }[parts[0]] ?? streamsView;
  const body = el("div");
  const problem = el("p", { class: "error", role: "alert", id: "problem" });
  replace(view, problem, body);
  const signal = shown.signal;
  watch(signal);
  chosen(body, parts.slice(1), signal, (error) => {
    if (signal.aborted) return;
    if (error instanceof TokenNeeded) return askForToken();
    if (error && !(error instanceof Refused)) console.warn(error);
    problem.textContent = error ? told(error) : "";
  });
}

function told(error) {
  return error instanceof Refused ? error.message : `the server does not answer (${error.message})`;
}

// What is in the head of every view: health, and how often the log is synced.
function watch(signal) {
  const rates = new Rates();
  every(2, signal, async () => {
    const server = await get("server", {}, signal);
    const syncs = rates.per_s("syncs", server.statistics.wal?.batch_count, server.now_us);
    status.className = server.healthy ? "good" : "bad";
    status.textContent = server.healthy ? `healthy${syncs === null ? "" : `, syncs ${rate(syncs)}`}` : server.problem;
  }, (error) => {
    if (!error || signal.aborted) return;
    status.className = "bad";
    status.textContent = error instanceof TokenNeeded ? "token needed" : "no answer";
  });
}

function askForToken() {
  shown.abort();
  const token = el("input", { type: "password", id: "token", autocomplete: "off" });
  const form = el("form", { id: "token-form", on: { submit: (event) => {
    event.preventDefault();
    setToken(token.value);
    route();
  } } }, el("label", { for: "token" }, "Token"), token, el("button", {}, "Continue"));
  replace(view, el("h1", {}, "This server asks for its token"), form,
    el("p", { class: "quiet" }, "It is kept only in this tab, until you close it."));
  token.focus();
}

window.addEventListener("hashchange", route);
route();
