"""A page that shows the state in a browser, live: it follows the feed that its query names.

A browser connects again by itself after a cut, but not after a refusal, as by a server that recovers: the page does.
"""

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlencode

_PAGE: Final = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Sensors</title>
<style>
  :root { color-scheme: light dark; font-family: system-ui, sans-serif }
  td, th { padding: .2em .8em; text-align: right }
</style>
<h1>Sensors</h1>
<p><span id="said">connecting</span>, <span id="seen">0</span> changes seen</p>
<table>
  <thead><tr><th>sensor<th>now<th>lowest<th>highest<th>changes</tr></thead>
  <tbody id="rows"></tbody>
</table>
<script>
  const feed = new URL(new URLSearchParams(location.search).get("feed"));
  const said = document.getElementById("said");
  const show = change => {
    const sensor = JSON.parse(change.value);
    const row = document.getElementById(change.key) ?? document.getElementById("rows").insertRow();
    row.id = change.key;
    row.replaceChildren(...[change.key, sensor.value, sensor.low, sensor.high, sensor.count].map(text => {
      const cell = document.createElement("td");
      cell.textContent = text;
      return cell;
    }));
    ++document.getElementById("seen").textContent;
  };
  const follow = () => {
    const source = new EventSource(feed);
    source.onopen = () => said.textContent = "live";
    source.onerror = () => {
      const isClosed = source.readyState === EventSource.CLOSED;
      said.textContent = isClosed ? "refused" : "cut off";
      if (isClosed) setTimeout(follow, 2000);
    };
    source.onmessage = ({data, lastEventId}) => {
      show(JSON.parse(data));
      feed.searchParams.set("from", lastEventId);
    };
    source.addEventListener("end", () => { source.close(); said.textContent = "that was all"; });
    source.addEventListener("truncated", ({data, lastEventId}) => {
      said.textContent = JSON.parse(data).error;
      feed.searchParams.set("from", lastEventId);
    });
  };
  follow();
</script>
</html>
"""


class _Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:  # the name that the standard library asks for
        """Answer with the page."""
        body = _PAGE.encode()
        self.send_response(http.HTTPStatus.OK)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing of requests."""


@contextmanager
def page_server() -> Iterator[str]:
    """Serve the page for the length of the block; give its origin."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Page) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_address[1]}"
        finally:
            listening.shutdown()
            thread.join()


def page_of(origin: str, feed: str) -> str:
    """Return the address of the page that follows a feed."""
    return f"{origin}/?{urlencode({'feed': feed})}"
