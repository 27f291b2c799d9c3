"""Messages that the pages quote in bold are messages of the code."""

import ast
import re
from itertools import chain
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
QUOTED: Final = re.compile(r'\*\*"([^"]+)"\*\*')
# What a page writes for values: three dots, or an example of a number or of a field in a log line.
VALUE: Final = re.compile(r"\.\.\.|\d+|(?<==)\w+")


def texts(path: Path) -> list[str]:
    """Return the string literals of a module, those of one formatted string as one text."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(str(each.value) if isinstance(each, ast.Constant) else "0" for each in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return found


def test_messages_that_pages_quote_exist() -> None:
    code = list(chain.from_iterable(texts(path) for path in sorted(ROOT.glob("server/**/*.py"))))
    quoted = [
        (path.name, message)
        for path in sorted(ROOT.glob("docs/**/*.md"))
        if "decisions" not in path.parts
        for message in QUOTED.findall(path.read_text())
    ]
    assert len(quoted) > 5
    for page, message in quoted:
        for part in VALUE.split(message):
            text = part.strip(" ,")
            assert any(text in each for each in code), f"{page} quotes {message!r}; no message has {text!r}"
