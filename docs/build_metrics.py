"""Write docs/metrics.md: every metric of a server, as it tells Prometheus itself.

    python docs/build_metrics.py

A test fails when the page is not what this would write. Names and helps are declared beside what they count, in
`server/host/metrics.py`, `server/console/metric_table.py` and the folders of `server/kinds/`; the page is for readers
without a server.
"""

# ruff: noqa: INP001  # a script in a folder of documents

import asyncio
import tempfile
import urllib.request
from pathlib import Path
from typing import Final

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from millrace.model.address import Address
from millrace.server.app import Server
from millrace.server.options import ServerOptions

PAGE: Final = Path(__file__).parent / "metrics.md"
HEADINGS: Final = {
    "server": "Content and memory",
    "healthy": "Health",
    "wal": "The write-ahead log",
    "front": "Connections and requests",
    "request": "Latency",
    "stream": "The busiest streams",
    "cursor": "The cursors with the largest lag",
    "streams": "Policies of streams",
    "writers": "Writers",
    "transactions": "Transactions",
    "cache": "The cache of old events",
    "store": "The object store",
    "ownership": "Who owns the history",
    "history": "Servers that stand by",
    "feed": "Feeds",
    "recovery": "The last start",
    "task": "Background tasks",
    "build": "Versions",
    "process": "The process",
}
"""Of the sections, in their order; the word after `millrace_` in the names of each."""

INTRODUCTION: Final = """\
# Metrics

This page lists every metric of a server, as `/metrics` shows them to Prometheus. [Observability](observability.md) says
which ones to watch, and what to do. Words such as *tier 2* are in the [glossary](glossary.md).

A metric without a unit in its name is a count. Counters begin at 0 when the server starts.

Written by `docs/build_metrics.py` from what a server says; change the helps in the code, not this page.
"""


def page() -> str:
    """Return the page as it should be; runs a server for a moment."""
    sections: dict[str, list[Metric]] = {word: [] for word in HEADINGS}
    for family in asyncio.run(_families()):
        words = family.name.split("_")
        sections[words[1] if words[0] == "millrace" else words[0]].append(family)
    return "\n".join(
        [
            INTRODUCTION,
            *(
                f"## {HEADINGS[word]}\n\n| metric | kind | labels | meaning |\n|---|---|---|---|\n"
                + "".join(map(_row, found))
                for word, found in sections.items()
                if found
            ),
        ]
    )


async def _families() -> list[Metric]:
    with tempfile.TemporaryDirectory() as folder:
        anywhere = Address("127.0.0.1", 0)
        async with Server(ServerOptions(data_folder=Path(folder), listen=anywhere, console=anywhere)) as server:
            return await asyncio.to_thread(_scrape, f"http://{server.console_address}/metrics")


def _scrape(url: str) -> list[Metric]:
    with urllib.request.urlopen(url, timeout=30.0) as answer:  # noqa: S310  # it is ours
        return sorted(text_string_to_metric_families(answer.read().decode()), key=lambda family: family.name)


def _row(family: Metric) -> str:
    name = f"{family.name}_total" if family.type == "counter" else family.name
    labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
    return f"| `{name}` | {family.type} | {', '.join(labels)} | {family.documentation} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
