"""The program `millrace`: its commands, and the messages and exit codes of failures.

Exit codes: 0 done; 1 a check failed, or the server or the disk rejected the command; 2 wrong usage; 3 no server can be
reached.
"""

import logging
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer

from millrace.client.errors import (
    ConnectionLostError,
    RequestTimeoutError,
    SegmentNotFoundError,
    ServerUnreachableError,
    StreamNotFoundError,
    StreamNotSealedError,
)
from millrace.model.errors import InvalidArgumentError, MillraceError, MissingExtraError
from millrace.model.extras import DISTRIBUTION, needs
from millrace.server.errors import FolderLockedError, FolderVersionError, ServerError
from millrace.server.host.descriptors import occupy_standard_descriptors

from .option_groups import Commands
from .output import OutputClosedError, print_error, print_note, print_text

DONE: Final = 0
FAILED: Final = 1
WRONG_USAGE: Final = 2
UNREACHABLE: Final = 3

_ANY_ARGUMENTS: Final = {"allow_extra_args": True, "ignore_unknown_options": True}

COMPLETION_VARIABLE: Final = "_MILLRACE_COMPLETE"
"""Set by a shell that completes a command line."""
PANELS: Final = ("Start here", "Streams and segments", "Events", "Files and machine")


class Command(NamedTuple):
    """A command, or a group of them, and the module that defines it: the one of its name by default.

    Attributes:
        extra: the extra to install for it.
    """

    panel: str
    help: str
    module: str = ""
    extra: str = "cli"


COMMANDS: Final = {
    "demo": Command(
        PANELS[0],
        "See it work: recorded data, a live reader, Spark, kills, and a check of every event.",
        "millrace.examples.demo.command",
        "demo",
    ),
    "serve": Command(PANELS[0], "Run a server.", extra="server"),
    "settings": Command(PANELS[0], "List the settings of a server, and their values.", extra="server"),
    "stream": Command(PANELS[1], "Create, list, show, scale, seal, truncate and delete streams.", ".streams"),
    "cut": Command(PANELS[1], "Keep places in a stream under names: bookmarks and cursors.", ".cuts"),
    "segment": Command(PANELS[1], "Work with raw segments: durable sequences of bytes.", ".segments"),
    "writer": Command(PANELS[1], "See what writers with an id have stored; reset sequences.", ".writers"),
    "txn": Command(PANELS[1], "See open transactions and producers; commit or abort prepared ones.", ".transactions"),
    "write": Command(PANELS[2], "Write lines of standard input as events.", ".writing"),
    "read": Command(PANELS[2], "Print the events between two places.", ".reading"),
    "tail": Command(PANELS[2], "Print events as they become durable.", ".reading"),
    "inspect": Command(PANELS[3], "Decode a log file, chunk, checkpoint, data folder or store.", extra="server"),
    "verify": Command(PANELS[3], "Check every byte of a data folder or an object store.", extra="server"),
    "repair": Command(PANELS[3], "Accept the loss of log content.", extra="server"),
    "restore": Command(PANELS[3], "Create a data folder from an object store.", extra="server"),
    "doctor": Command(PANELS[3], "Measure sync latency; check limits and versions.", extra="server"),
    "bench": Command(
        PANELS[3], "Measure appends and reads beside the bare disk.", "millrace.examples.bench.command", "server"
    ),
}


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print_text(f"millrace {version(DISTRIBUTION)}")
        raise typer.Exit(DONE)


def _program(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Durable stream storage for Python and Spark.

    Exit codes: 0 done, 1 a check failed or the server rejected the command, 2 wrong usage, 3 the server cannot be
    reached.
    """


def make_app(names: Iterable[str]) -> Commands:
    """Return the program with these commands; only their modules are loaded."""
    app = Commands(
        name="millrace",
        no_args_is_help=True,
        # An unforeseen error is a bug: print its traceback in Python's own form.
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_program)
    for name in names:
        command = COMMANDS[name]
        try:
            with needs(command.extra):
                module = import_module(command.module or f".{name}", __package__)
        except MissingExtraError as error:
            app.command(name, short_help=command.help, rich_help_panel=command.panel, context_settings=_ANY_ARGUMENTS)(
                _refusal(error)
            )
            continue
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name, help=command.help, rich_help_panel=command.panel)
        else:
            app.command(name, short_help=command.help, rich_help_panel=command.panel)(getattr(module, name))
    return app


def _refusal(error: MissingExtraError) -> Callable[[], None]:
    """Return a placeholder for a command whose packages are not installed."""

    def refuse() -> None:
        raise error

    return refuse


def _needed_commands(arguments: Sequence[str]) -> Iterable[str]:
    """Return the one command that is called; all of them for help, completion or a wrong name.

    A client command then starts without loading the server, in half the time.
    """
    if COMPLETION_VARIABLE in os.environ:
        # The shell passes the typed text in an environment variable, which depends on the shell.
        arguments = (os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS", "")).split()[1:]
    name = arguments[0] if arguments else ""
    return [name] if name in COMMANDS else list(COMMANDS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. Foreseen errors are printed in a line, without a traceback."""
    occupy_standard_descriptors()
    # Log messages go where `serve` sends them; the other commands print their own messages.
    logging.getLogger("millrace").addHandler(logging.NullHandler())
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        if "--install-completion" in given:
            _check_home()
        make_app(_needed_commands(given))(args=given, prog_name="millrace")
    except SystemExit as end:
        return _code_of(end)
    except OutputClosedError:
        return DONE
    except (ConnectionLostError, RequestTimeoutError) as error:
        _print_failure(error, str(error))
        return UNREACHABLE
    except InvalidArgumentError as error:
        _print_failure(error, str(error))
        return WRONG_USAGE
    except (MillraceError, ServerError) as error:
        _print_failure(error, str(error))
        return FAILED
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        _print_failure(error, f"{place}{error.strerror or error}")
        return FAILED
    return DONE


def _check_home() -> None:
    """Check that the home folder, in which the shell's file is stored, exists.

    Raises:
        InvalidArgumentError: the environment has no HOME, and the user has no home folder.
    """
    try:
        Path.home()
    except RuntimeError:
        raise InvalidArgumentError(
            "the completion is installed into a file of the home folder, which is unknown: set HOME to its path"
        ) from None


def _code_of(end: SystemExit) -> int:
    """Return the exit code. Help that is closed early succeeds, as with `| head`; wrong usage keeps its code."""
    if isinstance(end.__context__, BrokenPipeError):
        return getattr(end.__context__.__context__, "exit_code", DONE)
    return end.code if isinstance(end.code, int) else DONE if end.code is None else FAILED


def _print_failure(error: Exception, message: str) -> None:
    """Print an error, a hint, and the notes of the command about its earlier steps."""
    print_error(message, hint=_hint(error))
    for note in getattr(error, "__notes__", ()):
        print_note(note)


def _hint(error: Exception) -> str:
    """Return a hint for an error; empty if none is needed."""
    if isinstance(error, ServerUnreachableError):
        return "start one with `millrace serve`, or pass --address HOST:PORT"
    if isinstance(error, StreamNotFoundError):
        return f"create it with `millrace stream create {error.subject or 'SCOPE/NAME'}`"
    if isinstance(error, SegmentNotFoundError):
        return f"create it with `millrace segment create {error.subject or 'SCOPE/NAME'}`"
    if isinstance(error, StreamNotSealedError):
        return "seal it first, or give --seal"
    if isinstance(error, FolderLockedError):
        return "stop that server first, or use another folder"
    if isinstance(error, FolderVersionError):
        return "use the version that wrote it, or a newer one"
    if isinstance(error, ServerError) and "cannot listen" in str(error):
        return "is a server running there already? choose another place with --listen and --console"
    return ""
