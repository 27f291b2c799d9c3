from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from millrace.cli.option_groups import Commands
from tests.support.tables import table


@dataclass(frozen=True)
class Place:
    host: Annotated[str, typer.Option("--host", "-h")] = "here"
    port: Annotated[int, typer.Option(min=1)] = 9


app = Commands()


@app.command("go")
def go(place: Place, name: str, loud: Annotated[bool, typer.Option("--loud")] = False) -> None:
    """Go to a place."""
    print(name, place, loud)


@app.command("stay")
def stay(name: str) -> None:
    print(name)


@table(
    ("arguments", "said"),
    [
        (["go", "a"], f"a {Place()} False"),
        (["go", "a", "-h", "there", "--port", "3", "--loud"], f"a {Place('there', 3)} True"),
        (["stay", "b"], "b"),
    ],
)
def test_a_field_of_a_record_is_an_option(arguments: list[str], said: str) -> None:
    assert CliRunner().invoke(app, arguments).output == f"{said}\n"


def test_the_options_of_a_record_are_checked_and_told() -> None:
    assert CliRunner().invoke(app, ["go", "a", "--port", "0"]).exit_code == 2
    shown = CliRunner().invoke(app, ["go", "--help"]).output
    assert "Go to a place." in shown
    assert "--port" in shown
    assert "--place" not in shown


def test_a_decorated_command_can_be_called_as_before(capsys: pytest.CaptureFixture[str]) -> None:
    go(Place("x"), "a")

    assert capsys.readouterr().out == f"a {Place('x')} False\n"
