"""Write docs/formats.md: the docstrings of the modules that declare our bytes, as they stand.

    python docs/build_formats.py

A test fails when the page is not what this would write. Layouts are described once, beside their declaration, where a
change of one is a change of the other; the page is for readers without the source.
"""

# ruff: noqa: INP001  # a script in a folder of documents

import inspect
from importlib import import_module
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).parent / "formats.md"
MODULES: Final = {"frames": "The protocol", "block": "Event blocks", "log": "Log files", "chunk": "Chunks of tier 2"}
"""Modules of `millrace.wire.schema`, in the order of the page, and their headings."""

INTRODUCTION: Final = """\
# Formats

Every byte that Millrace sends or stores. Written by `docs/build_formats.py` from the docstrings of `wire/schema/`;
change those, not this page. Beside each docstring the same layout is declared in construct, from which the codecs are
derived (`docs/decisions/0004-derived-codecs.md`). Examples in hex are decoded by tests.
"""


def page() -> str:
    """Return the page as it should be."""
    sections = [INTRODUCTION]
    for name, heading in MODULES.items():
        text = inspect.getdoc(import_module(f"millrace.wire.schema.{name}"))
        assert text is not None, f"{name} has no docstring"
        sections.append(f"## {heading}\n\n`wire/schema/{name}.py`\n\n{text}\n")
    return "\n".join(sections)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
