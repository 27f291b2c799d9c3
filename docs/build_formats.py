"""Write docs/formats.md: the docstrings of the modules that declare our bytes, and a table of each message.

    python docs/build_formats.py

A test fails when the page is not what this would write. Layouts are described once, beside their declaration, where a
change of one is a change of the other; the page is for readers without the source.
"""

# ruff: noqa: INP001  # a script in a folder of documents

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final, get_type_hints

import construct as c

from millrace.wire import messages as m

PAGE: Final = Path(__file__).parent / "formats.md"
MODULES: Final = {
    "wire/schema/frame": "The protocol",
    "model/block_layout": "Event blocks",
    "wire/schema/log": "Log files",
    "wire/schema/newest": "The name of the newest log file",
    "wire/schema/chunk": "Chunks of tier 2",
    "wire/schema/checkpoint_copy": "Copies of the checkpoint in tier 2",
}
"""Modules that declare bytes, in the order of the page, and their headings."""

INTRODUCTION: Final = """\
# Formats

This page describes every byte that Millrace sends or stores. It is for people who write another client, or who examine
files by hand. `millrace inspect` decodes files for you. Tests decode the examples in hex.

Written by `docs/build_formats.py` from the docstrings of `wire/schema/` and `model/block_layout.py`, and the classes of
`wire/messages/`; change those, not this page.
"""

MESSAGES: Final = """\
## Messages

`wire/messages/`

These are the bodies of frames, by type. Each entry begins with who sends the message: the client, the server, or either
side. *Log* means that it is never sent: it is a record of a decision in the log.

u8 to u64 and i64 are little-endian numbers, unsigned and signed. `text` is UTF-8 after its size in bytes. `bytes` are
bytes after their size. `list` is items after their count. The number in front is the width of that size or count, as in
`u16 text`. `rest` are the bytes to the end of the frame.
"""


def page() -> str:
    """Return the page as it should be."""
    sections = [INTRODUCTION]
    for name, heading in MODULES.items():
        text = inspect.getdoc(import_module(f"millrace.{name}".replace("/", ".")))
        assert text is not None, f"{name} has no docstring"
        sections.append(f"## {heading}\n\n`{name}.py`\n\n{text}\n")
    bodies = [_section(cls) for _, cls in sorted(m.MESSAGES.items())]
    return "\n".join([*sections[:2], MESSAGES, *bodies, *sections[2:]])


def _section(cls: type[m.Message]) -> str:
    """Return what is said of one message."""
    if issubclass(cls, m.Request):
        sender = f"Client; answered by {cls.reply.type.name}"
    elif issubclass(cls, m.Record):
        sender = "Log"
    else:
        senders = {m.FromClient: "Client", m.FromServer: "Server", m.FromBoth: "Either side"}
        sender = next(name for base, name in senders.items() if issubclass(cls, base))
    table = "".join(f"    {line}\n" for line in _lines(cls, cls.layout, indent=""))
    return f"### {int(cls.type)} {cls.type.name}\n\n{sender}. {inspect.getdoc(cls)}\n" + (f"\n{table}" if table else "")


def _lines(cls: type[Any], layout: c.Struct, *, indent: str) -> Iterator[str]:
    """Yield a line for each field: its name, its layout, and the comment after it in the source."""
    comments = dict(re.findall(r"^    (\w+): [^#\n]*# (?!type:)(.*)$", inspect.getsource(cls), re.MULTILINE))
    items = m.item_classes(cls) if get_type_hints(cls) else {}
    for renamed in layout.subcons:
        if renamed.name:
            name, subcon = str(renamed.name), renamed.subcon
            yield f"{indent + name:<24}{_layout_text(subcon):<16}{comments.get(name, '')}".rstrip()
            if name in items:
                yield from _lines(items[name], m.layout_of(items[name]), indent=f"{indent}    ")


def _layout_text(subcon: c.Construct) -> str:
    if isinstance(subcon, c.Renamed):
        return _layout_text(subcon.subcon)
    if isinstance(subcon, c.FormatField):
        return f"{'i' if subcon.fmtstr[-1].islower() else 'u'}{8 * subcon.sizeof()}"
    if isinstance(subcon, c.Const):
        return f"= {subcon.value!r}".replace("b'", "'")
    if isinstance(subcon, c.Bytes):
        return f"{subcon.length} bytes"
    if isinstance(subcon, c.StringEncoded):
        return f"{_layout_text(subcon.subcon.lengthfield)} text"
    if isinstance(subcon, c.Prefixed):
        return f"{_layout_text(subcon.lengthfield)} bytes"
    if isinstance(subcon, c.FocusedSeq):
        count, array = subcon.subcons
        item = array.subcon.subcon if isinstance(array, c.Renamed) else array.subcon
        kind = "" if isinstance(item, c.Struct) else f" of {_layout_text(item)}"
        return f"{_layout_text(count.subcon.subcon if isinstance(count, c.Renamed) else count.subcon)} list{kind}"
    return "rest"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
