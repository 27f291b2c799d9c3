"""The generated parts of the site, such as the commands from their parser.

A page says where a part belongs by a line of its own: `<!-- generated: commands -->`, in reStructuredText
`.. generated: errors`. Parts are made when the site is built (`docs/conf.py`), so that no page is older than the code.
An entry of the navigation may be `<!-- if there: ../settings -->`, for pages that other scripts write.
"""

# ruff: noqa: INP001  # a script in a folder of documents

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import typer

from millrace.cli import main

MODULES: Final = ("millrace", "millrace.blocking", "millrace.testing", "millrace.spark_source")
"""What is public; `millrace` lists the others among its names."""

MARKER: Final = re.compile(r"^(?:<!-- |\.\. )generated: (\w+)(?: -->)?$", re.MULTILINE)
PAGES: Final = Path(__file__).parent

_OPTIONAL: Final = re.compile(r"^<!-- if there: (\S+) -->\n", re.MULTILINE)
_SECTION: Final = re.compile(r"^(Args|Attributes|Raises|Returns|Yields):$")


def filled(text: str, folder: Path) -> str:
    """Return a page of a folder with its generated parts, and with those optional entries whose pages are there."""
    text = _OPTIONAL.sub(lambda found: f"{found[1]}\n" if (folder / f"{found[1]}.md").is_file() else "", text)
    return MARKER.sub(lambda found: PARTS[found[1]](), text)


def commands() -> str:
    """Return a section of each command, as its parser knows it, with its options in a table."""
    program = typer.main.get_command(main.make_app(main.COMMANDS))
    return "\n".join(_command_sections(program, "millrace", depth=1))


def _command_sections(command: Any, name: str, *, depth: int) -> Iterator[str]:
    if depth > 1:
        yield f"{'#' * depth} {name}\n"
        yield f"{inspect.cleandoc(command.help or '')}\n"
    children: dict[str, Any] = getattr(command, "commands", {})
    order = list(main.COMMANDS)
    if not children:
        context = command.make_context(name, [], resilient_parsing=True)
        yield f"```text\n{command.get_usage(context).removeprefix('Usage: ')}\n```\n"
        records = [each.get_help_record(context) for each in command.get_params(context)]
        rows = [(option, text) for option, text in filter(None, records) if option != "--help"]
        yield _table(("option", "meaning"), [(f"`{option}`", text) for option, text in rows])
    for child in sorted(children.values(), key=lambda each: order.index(each.name) if depth == 1 else 0):
        yield from _command_sections(child, f"{name} {child.name}", depth=depth + 1)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def public_names() -> list[str]:
    """Return all names that are promised to users, each with its module."""
    listed = [(module, name) for module in MODULES for name in import_module(module).__all__]
    return [f"{module}.{name}" for module, name in listed if f"{module}.{name}" not in (*MODULES, "millrace.client")]


def errors() -> str:
    """Return the directives for all exceptions, in the order of the alphabet."""
    return "".join(_directive(name) for name in sorted(public_names()) if _kind(name) == "exception")


def others() -> str:
    """Return the directives for the public names that no page of the folder shows in a place of its own."""
    pages = "".join(page.read_text(encoding="utf-8") for page in sorted(PAGES.glob("reference/python/*.rst")))
    shown = set(re.findall(r"^\.\. (?:auto\w+|py:data):: (\S+)$", pages, re.MULTILINE))
    found = [name for name in public_names() if name not in shown and _kind(name) != "exception"]
    return "".join(map(_directive, found)) or "All names have a place on the other pages."


def _directive(name: str) -> str:
    kind = _kind(name)
    options = "   :members:\n   :show-inheritance:\n" if kind in {"class", "exception", "module"} else ""
    return f".. auto{kind}:: {name}\n{options}\n"


def _kind(name: str) -> str:
    module, _, attribute = name.rpartition(".")
    thing = getattr(import_module(module), attribute)
    if isinstance(thing, type):
        return "exception" if issubclass(thing, BaseException) else "class"
    return "module" if inspect.ismodule(thing) else "function" if callable(thing) else "data"


def with_examples_marked(lines: Sequence[str]) -> list[str]:
    """Return a docstring whose indented paragraphs are literal blocks, as they are meant; sections stay as they are."""
    marked: list[str] = []
    introduction = ""
    for number, line in enumerate(lines):
        begins = line.startswith("    ") and number > 0 and not lines[number - 1].strip()
        if (
            begins
            and introduction
            and not _SECTION.match(introduction)
            and not introduction.startswith((" ", "-", "."))
        ):
            marked += ["::", ""]
            introduction = ""
        elif line.strip() and not line.startswith("    "):
            introduction = line
        marked.append(line)
    return marked


SUBJECTS: Final[dict[str, tuple[int, ...]]] = {
    "Write-ahead log and recovery": (2, 26, 27, 31, 42, 64, 77),
    "Log in an object store, ownership and failover": (59, 60, 61, 62, 63, 69, 78, 79),
    "Checkpoint": (6, 15, 23, 24, 70),
    "Tier 2, chunks and cache": (7, 9, 11, 20, 25, 29, 30, 43, 83, 86),
    "Protocol and sessions": (1, 4, 5, 8, 18, 19, 21),
    "Streams, scaling, retention and time": (12, 28, 37, 50, 57, 73, 75, 76, 85),
    "Writers, sequences and exclusive writers": (14, 32, 34, 35, 40, 41),
    "Transactions and producers": (39, 44, 45, 81),
    "Limits and access": (33, 58, 71, 82),
    "Clients": (16, 22, 36, 53, 65, 66, 80),
    "Spark": (10, 13, 46, 47, 48, 67),
    "Console, feeds and metrics": (49, 54, 55, 68, 84),
    "Structure of the code": (3, 17, 51, 90, 91, 92, 93, 96),
    "Tests and documentation": (38, 52, 56, 89, 94),
}
"""Decisions by subject. One that is in no subject is listed under the last heading."""


def decisions() -> str:
    """Return links to the decisions by subject, each once."""
    pages = {int(page.name[:4]): page for page in sorted(PAGES.glob("decisions/0*.md"))}
    known = {number for numbers in SUBJECTS.values() for number in numbers}
    sections = SUBJECTS | {"Others": tuple(number for number in pages if number not in known)}
    return "\n\n".join(
        "\n".join([f"## {subject}", "", *(_decision_link(pages[number]) for number in numbers)])
        for subject, numbers in sections.items()
        if numbers
    )


def _decision_link(page: Path) -> str:
    title = page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
    return f"- [{title}]({page.name})"


PARTS: Final[dict[str, Callable[[], str]]] = {
    "commands": commands,
    "errors": errors,
    "others": others,
    "decisions": decisions,
}
"""What a marker stands for."""
