"""Write docs/errors.md: every error that a user can meet, from the classes themselves.

    python docs/build_errors.py

A test fails when the page is not what this would write. What an error means, and whether to try again, is said once:
in its docstring and in its `retriable`, which the client goes by.
"""

# ruff: noqa: INP001  # a script in a folder of documents

import inspect
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import millrace
from millrace import spark_source
from millrace.client.errors import CLASS_OF_CODE
from millrace.wire.errors import ErrorCode

PAGE: Final = Path(__file__).parent / "errors.md"

INTRODUCTION: Final = """\
# Errors

Written by `docs/build_errors.py` from the docstrings of the classes; change those, not this page.

This page lists every error that your program may catch, and says whether to try again. The common ones are in
[Handle errors](how-to/handle-errors.md).

Every error of the client is a `millrace.MillraceError`. A time-out is also a `TimeoutError` of Python, and a lost
connection is also a `ConnectionError`. Wrong arguments are a `ValueError`. Values of a wrong type are a `TypeError`, as
everywhere in Python.

```python
import millrace
from millrace import blocking

with blocking.connect("127.0.0.1:9240") as client:
    client.create_stream("depot/orders")
    try:
        with client.writer("depot/orders") as writer:
            writer.write(b"...", key="customer-3")
    except TimeoutError as error:
        print(f"given up: {error}")
    except millrace.StreamSealedError:
        print("the stream takes no more events")
    except millrace.MillraceError as error:
        print(f"{'try again later' if error.retriable else 'do not try again'}: {error}")
```

## Try again, or not

`error.retriable` says whether you may make the same call again, later. You may if nothing is done twice by that, and
if the call can succeed later.

The client retries such calls by itself, with growing pauses, until a time limit
([which one](streams.md#when-the-server-is-away)). So if your program gets a retriable error, the client has tried for
that long already. To wait longer, make the call again, or set a longer limit. There are two exceptions: the first
connection is tried only once, and `BufferFullError` says at once that you write too fast.

After `OutcomeUnknownError` and `PipelineBrokenError`, a writer may send its events again, because the server recognises
what a writer has stored. For your own requests they are not retriable: first find out what was done.

If a newer server sends an error that this client does not know, the client raises a plain `RequestError`. It is
retriable if the server says so.

Errors can be pickled and copied, with all their attributes and the error that caused them.
"""

SPARK: Final = """\
## The Spark source

The Spark source and sink have their own errors, each a `millrace.spark_source.SourceError`. Errors of the client may
also appear in a query. `retriable` says whether you may run the same query or batch again.
"""


def page() -> str:
    """Return the page as it should be."""
    client, spark = list(_tree(millrace.MillraceError)), list(_tree(spark_source.SourceError))
    return "\n".join(
        [
            INTRODUCTION,
            "## All errors\n",
            _table(client),
            *map(_section, client),
            SPARK,
            _table(spark),
            *map(_section, spark),
        ]
    )


def _tree(cls: type[Exception]) -> Iterator[type[Exception]]:
    """Yield a class and those below it that are public, in the order of their names."""
    if not cls.__name__.startswith("_"):
        yield cls
    for below in sorted(cls.__subclasses__(), key=lambda each: each.__name__):
        yield from _tree(below)


def _bases(cls: type[Exception]) -> list[type[BaseException]]:
    """Return the public classes that a class is directly of."""
    bases = (cls.__bases__[0].__bases__ if cls.__bases__[0].__name__.startswith("_") else ()) + cls.__bases__
    return [each for each in bases if not each.__name__.startswith("_")]


def _retry(cls: type[Exception]) -> str:
    return "yes" if getattr(cls, "retriable") else "no"  # noqa: B009  # of two roots that share no base


def _table(classes: Sequence[type[Exception]]) -> str:
    rows = [f"| [`{cls.__name__}`](#{cls.__name__.lower()}) | {_retry(cls)} | {_summary(cls)} |" for cls in classes]
    return "\n".join(["| Error | Retry | Meaning |", "|---|---|---|", *rows, ""])


def _summary(cls: type[Exception]) -> str:
    """Return the first sentence or clause of what is said of a class."""
    return _text(cls).partition("\n")[0].replace("|", "\\|")


def _section(cls: type[Exception]) -> str:
    """Return what is said of one class."""
    below = ", ".join(_link(base) for base in _bases(cls))
    codes = ", ".join(f"{code.name} ({code})" for code in ErrorCode if CLASS_OF_CODE[code] is cls)
    facts = f"A kind of {below}. Retry: **{_retry(cls)}**." + (f" On the wire: {codes}." if codes else "")
    return f"### {cls.__name__}\n\n{_attributes(_text(cls))}\n\n{facts}\n"


def _link(cls: type[BaseException]) -> str:
    name = cls.__name__
    return f"[`{name}`](#{name.lower()})" if cls.__module__.startswith("millrace.") else f"`{name}`"


def _text(cls: type[Exception]) -> str:
    text = cls.__dict__.get("__doc__")
    assert text, f"{cls.__name__} has no docstring"
    return inspect.cleandoc(text)


def _attributes(text: str) -> str:
    """Return a docstring with its attributes as a list."""
    said, mark, attributes = text.partition("Attributes:\n")
    if not mark:
        return said
    items = re.sub(r"^    (\w+(?:, \w+)*): ", r"- `\1`: ", attributes, flags=re.MULTILINE)
    return said + re.sub(r"^    +", "  ", items, flags=re.MULTILINE)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
