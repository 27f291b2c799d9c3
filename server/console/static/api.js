// Asks the server. The token is kept for this tab only, and sent as a header: it is in no address, and in no log.

const TOKEN = "millrace-token";

export class TokenNeeded extends Error {}
export class Refused extends Error {}

export function setToken(token) {
  sessionStorage.setItem(TOKEN, token);
}

function headers(more = {}) {
  const token = sessionStorage.getItem(TOKEN);
  if (!token) return more;
  // A header is bytes, each written as one character.
  const bytes = new TextEncoder().encode(token);
  return { ...more, Authorization: `Bearer ${String.fromCharCode(...bytes)}` };
}

async function ask(path, options) {
  const response = await fetch(path, { cache: "no-store", credentials: "omit", ...options });
  if (response.status === 401) throw new TokenNeeded("this server asks for its token");
  if (!response.ok) {
    const problem = await response.json().catch(() => ({}));
    throw new Refused(problem.error ?? `the server answered ${response.status}`);
  }
  return response;
}

function query(parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

export async function get(path, parameters = {}, signal = undefined) {
  const response = await ask(`/api/v1/${path}${query(parameters)}`, { headers: headers(), signal });
  return response.json();
}

// Yields the messages of a feed, {kind, id, content}, until the connection or the feed ends. An EventSource could send
// no header, so the token would have to be in the address.
export async function* feed(stream, parameters, lastId, signal) {
  const more = lastId ? { "Last-Event-ID": lastId } : {};
  const response = await ask(`/streams/${stream}/events${query(parameters)}`, { headers: headers(more), signal });
  if (response.status === 204) {
    yield { kind: "end", id: lastId, content: { reason: "sealed" } };
    return;
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    const messages = (rest + part.value).split("\n\n");
    rest = messages.pop();
    for (const message of messages) yield parse(message);
  }
}

function parse(message) {
  const fields = {};
  for (const line of message.split("\n")) {
    const colon = line.indexOf(": ");
    if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 2);
  }
  return { kind: fields.event ?? "event", id: fields.id ?? "", content: fields.data ? JSON.parse(fields.data) : null };
}
