"""The program `millrace`: its commands, and what it says and returns when one of them fails.

Exit codes: 0 done; 1 a check failed, or the server or the disk refused; 2 wrong usage; 3 no server can be reached.
"""

import logging
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, Final

import typer

from millrace.client.errors import (
    ConnectionLostError,
    InvalidArgumentError,
    MillraceError,
    RequestTimeoutError,
    SegmentNotFoundError,
    ServerUnreachableError,
    StreamNotFoundError,
    StreamNotSealedError,
)
from millrace.server.errors import FolderLockedError, FolderVersionError, ServerError

from . import segments, streams
from .bench import bench
from .demo import demo
from .doctor import doctor
from .events import read, tail, write
from .inspect import inspect
from .output import print_error, print_text
from .serve import serve
from .verify import verify

DONE: Final = 0
FAILED: Final = 1
WRONG_USAGE: Final = 2
UNREACHABLE: Final = 3

app = typer.Typer(
    name="millrace",
    no_args_is_help=True,
    # An error that we did not foresee is a bug: its traceback is wanted, as Python prints it.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print_text(f"millrace {version('millrace')}")
        raise typer.Exit(DONE)


@app.callback()
def _program(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Durable stream storage for Python and Spark.

    Exit codes: 0 done, 1 a check failed or the server refused, 2 wrong usage, 3 the server cannot be reached.
    """


app.command(short_help="See it work: recorded data, a live tail, Spark, the files.", rich_help_panel="Start here")(demo)
app.command(short_help="Run a server.", rich_help_panel="Start here")(serve)
app.add_typer(streams.app, name="stream", rich_help_panel="Streams and segments")
app.add_typer(segments.app, name="segment", rich_help_panel="Streams and segments")
app.command(short_help="Write lines of standard input as events.", rich_help_panel="Events")(write)
app.command(short_help="Print the events between two cuts.", rich_help_panel="Events")(read)
app.command(short_help="Print events as they become durable.", rich_help_panel="Events")(tail)
app.command(short_help="Decode a log file, chunk, checkpoint or data folder.", rich_help_panel="Files and machine")(
    inspect
)
app.command(short_help="Check every byte of a data folder.", rich_help_panel="Files and machine")(verify)
app.command(
    short_help="Measure the disk's real sync; look at limits and versions.", rich_help_panel="Files and machine"
)(doctor)
app.command(short_help="Measure appends and reads beside the bare disk.", rich_help_panel="Files and machine")(bench)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. Errors that are foreseen are told in a line, without a traceback."""
    # What the parts have to say goes where `serve` sends it; the other commands speak for themselves.
    logging.getLogger("millrace").addHandler(logging.NullHandler())
    try:
        app(args=arguments, prog_name="millrace")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else DONE if end.code is None else FAILED
    except (ConnectionLostError, RequestTimeoutError) as error:
        hint = "start one with `millrace serve`, or name it with --address HOST:PORT"
        print_error(str(error), hint=hint if isinstance(error, ServerUnreachableError) else "")
        return UNREACHABLE
    except InvalidArgumentError as error:
        print_error(str(error))
        return WRONG_USAGE
    except (MillraceError, ServerError) as error:
        print_error(str(error), hint=_hint(error))
        return FAILED
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        print_error(f"{place}{error.strerror or error}")
        return FAILED
    return DONE


def _hint(error: Exception) -> str:
    """Say what can be done about an error; empty where nothing is to be added."""
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
