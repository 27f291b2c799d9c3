"""`millrace settings`: the settings of a server, their values, and where these come from."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.text import Text

from millrace.model.errors import InvalidArgumentError
from millrace.server.errors import ConfigurationError
from millrace.server.settings import LoadedSettings, Setting, Source, check_name, load_settings, parse_assignments

from .connecting import JsonOption
from .output import is_terminal, print_json, print_table, print_text


@dataclass(frozen=True, slots=True)
class ServerArguments:
    """Settings of a server on the command line."""

    data_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder with all data of the server; created if missing.", show_default="millrace-data"
        ),
    ] = None
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where clients connect.", show_default="127.0.0.1:9240")
    ] = None
    console: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="HTTP port for the web page, metrics, health and feeds; 'none' turns it off.",
            show_default="127.0.0.1:9241",
        ),
    ] = None
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Object store of the history: s3://BUCKET/PREFIX; 'none' for the data folder.",
            show_default="none",
        ),
    ] = None
    log: Annotated[
        Literal["local", "object"] | None,
        typer.Option(help="Where the log is: in the data folder, or in the object store.", show_default="local"),
    ] = None
    standby: Annotated[
        bool | None,
        typer.Option(
            "--standby",
            help="Wait while another server owns the history, and take over when it has ended; needs --log object.",
            show_default="no",
        ),
    ] = None
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File with the token that clients must send.", show_default="none"),
    ] = None
    insecure: Annotated[
        bool | None,
        typer.Option("--insecure", help="Allow access from other machines without a token.", show_default="no"),
    ] = None
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TOML file of settings.", show_default="$MILLRACE_CONFIG")
    ] = None
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any setting; may be given several times.")
    ] = None

    def load(self, more: Mapping[str, object]) -> LoadedSettings:
        """Return the settings; these arguments and `more`, by name, take precedence over all others.

        Raises:
            InvalidArgumentError: a name is unknown, or a value invalid.
        """
        own = {
            "data_dir": self.data_dir,
            "listen": self.listen,
            "console": self.console,
            "store": self.store,
            "wal.place": self.log,
            "standby": self.standby or None,
            "front.token_file": self.token_file,
            "insecure": self.insecure or None,
            **more,
        }
        with _as_wrong_usage():
            assigned = parse_assignments(self.assignments or [])
            flags = {name: value for name, value in own.items() if value is not None}
            return load_settings({**assigned, **flags}, file=self.config)


def settings(
    given: ServerArguments,
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="A setting, or a part: `wal`.", show_default="all")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """List the settings of a server: value, default, source of the value, and description.

    The command line takes precedence over the environment, the environment over the file, and the file over the
    default.
    """
    if name:
        with _as_wrong_usage():
            check_name(name)
    chosen = [each for each in given.load({}).settings if name in ("", each.declared.name, each.declared.part)]
    if as_json:
        print_json([_record(each) for each in chosen])
        return
    if is_terminal():
        for each in chosen:
            print_text(_described(each))
        return
    columns = ("name", "value", "default", "source", "effect")
    print_table(("setting", *columns[1:]), [[_record(each)[column] for column in columns] for each in chosen])


def _described(setting: Setting) -> Text:
    """Return a setting in two lines, for a terminal of any width."""
    told = _record(setting)
    origin = "default" if setting.source is Source.DEFAULT else f"{setting.source}; default {told['default'] or 'none'}"
    return Text.assemble(
        (told["name"], "cyan"), f" = {told['value'] or 'none'}  ", (f"({origin})", "dim"), f"\n    {told['effect']}"
    )


def _record(setting: Setting) -> dict[str, Any]:
    declared = setting.declared
    return {
        "name": declared.name,
        "variable": declared.variable,
        "value": declared.text(setting.value),
        "default": declared.text(declared.default),
        "source": str(setting.source),
        "effect": declared.effect,
    }


@contextmanager
def _as_wrong_usage() -> Iterator[None]:
    """Turn an error in the settings into a usage error of the command."""
    try:
        yield
    except ConfigurationError as error:
        raise InvalidArgumentError(str(error)) from None
