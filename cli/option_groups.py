"""Commands whose options are grouped in dataclasses, so that common options are declared once.

A parameter of a command may be a dataclass; each of its fields is then an option of the command, in that place.
"""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, TypeVar

import typer

from .output import closing_output

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


class Commands(typer.Typer):
    """Commands that accept dataclasses of options."""

    def command(self, name: str | None = None, **settings: Any) -> Callable[[CommandT], CommandT]:
        """Return a decorator that adds a command, as `typer.Typer.command` does."""

        def add(command: CommandT) -> CommandT:
            super(Commands, self).command(name, **settings)(_spread(command))
            return command

        return add


def _spread(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command with the fields of its dataclasses as parameters in their place; it flushes its output."""
    parameters = signature(command).parameters.values()
    records: dict[str, Any] = {each.name: each.annotation for each in parameters if is_dataclass(each.annotation)}

    @wraps(command)
    def run(**values: Any) -> None:
        for name, record in records.items():
            values[name] = record(**{field.name: values.pop(field.name) for field in fields(record)})
        with closing_output():
            command(**values)

    spread: list[Parameter] = []
    for each in parameters:
        spread += signature(each.annotation).parameters.values() if each.name in records else [each]
    declared = Signature([each.replace(kind=Parameter.KEYWORD_ONLY) for each in spread])
    run.__signature__ = declared  # type: ignore[attr-defined]  # typer reads the options there
    return run
