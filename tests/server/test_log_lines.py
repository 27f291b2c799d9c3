"""Every line that the server logs is an event and fields: `event in words key=%s key=%d`, and nothing between them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.server.host.logs import RESERVED, split_template
from tests.support.tables import table

ROOT = Path(__file__).parents[2]
LEVELS = ("debug", "info", "warning", "error", "critical", "exception", "log")


def log_calls() -> Iterator[tuple[str, ast.Call]]:
    for path in sorted((ROOT / "server").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == "logger"
                and node.func.attr in LEVELS
            ):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node


@table("call", [pytest.param(call, id=place) for place, call in log_calls()])
def test_a_line_is_an_event_and_fields(call: ast.Call) -> None:
    assert isinstance(call.func, ast.Attribute)
    template, *values = call.args[1:] if call.func.attr == "log" else call.args
    assert isinstance(template, ast.Constant)
    assert isinstance(template.value, str)

    event, keys = split_template(template.value)

    assert event == "%s" or re.fullmatch(r"[a-z][A-Za-z0-9 ,'-]*[a-z0-9]", event), template.value
    assert len(set(keys)) == len(keys)
    assert not set(keys) & RESERVED
    spread = any(isinstance(value, ast.Starred) for value in values)
    assert spread or len(keys) + event.count("%") == len(values)


def test_there_are_lines() -> None:
    assert len(list(log_calls())) > 60
