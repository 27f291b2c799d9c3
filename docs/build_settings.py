"""Write docs/settings.md: all settings of a server, as its options declare them.

    python docs/build_settings.py

A test fails when the page is not what this would write. What a setting does is said once, in the docstring of its
class.
"""

# ruff: noqa: INP001  # a script in a folder of documents

from pathlib import Path
from typing import Final

from millrace.server.settings import declared

PAGE: Final = Path(__file__).parent / "settings.md"

INTRODUCTION: Final = """\
# Settings of a server

This page lists every setting of a server, with its default and its effect. [Running it](operations.md#settings) says
how to set them. `millrace settings` shows their current values. The [glossary](glossary.md) explains words such as
*tier 2*.

Written by `docs/build_settings.py` from the options of the server's parts; change those, not this page.
"""

SECTIONS: Final = {
    "": ("The server", ""),
    "log": ("Log messages", ""),
    "wal": ("The write-ahead log", "[How it works](architecture.md#the-way-of-an-append)."),
    "container": ("Memory and files", "The part of a server that owns segments is called a *container*."),
    "tier2": ("Tier 2", ""),
    "objects": ("The object store", "Where `store` names one: [history in an object store](object-store.md)."),
    "cache": ("The cache of old events", ""),
    "streams": ("Scaling and retention", "[What these policies do](streams.md#scaling-by-policy)."),
    "writers": ("Idle writers", "[What expiry means](streams.md#writers-that-are-idle-for-long)."),
    "transactions": (
        "Transactions",
        "[What they are](transactions.md). Leases and ages count only while the server runs.",
    ),
    "front": (
        "Connections",
        (
            "More about [slow readers](operations.md#slow-readers) and"
            " [unauthenticated connections](operations.md#unauthenticated-connections)."
        ),
    ),
    "metrics": ("Metrics", "[What they say](observability.md#metrics)."),
    "feed": ("Feeds", "Events over HTTP; [what they are](streams.md#over-http)."),
}
"""The headings of the parts, in the order of the page, and where to read more."""


def page() -> str:
    """Return the page as it should be."""
    return "\n".join([INTRODUCTION, *(_section(part, *texts) for part, texts in SECTIONS.items())])


def _section(part: str, heading: str, more: str) -> str:
    rows = [
        f"| `{each.name}` | `{each.variable}` | {each.text(each.default) or 'none'} | {each.effect} |"
        for each in declared().values()
        if each.part == part
    ]
    table = "\n".join(["| setting | in the environment | default | effect |", "|---|---|---|---|", *rows])
    return f"## {heading}\n\n{more}{2 * chr(10) if more else ''}{table}\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
