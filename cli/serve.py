"""`millrace serve`: run a server in the foreground."""

import logging
import sys
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer
import uvloop
from rich.console import Console
from rich.text import Text

from millrace.model.extras import needs
from millrace.model.figures import duration_text, size_text
from millrace.server.errors import ServerError
from millrace.server.host.logs import configure, hold
from millrace.server.host.memory import keep_freed_memory
from millrace.server.options import ServerOptions

from .output import console as console_on
from .output import discard
from .settings import ServerArguments

if TYPE_CHECKING:
    from millrace.server.app import Server

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]

logger = logging.getLogger(__name__)


def serve(
    given: ServerArguments,
    log_level: Annotated[
        LogLevel | None,
        typer.Option(
            help="Log messages of this level and above, to standard error.",
            show_default="warning on a terminal, else info",
        ),
    ] = None,
    log_format: Annotated[
        LogFormat | None,
        typer.Option(help="Lines for people, or one JSON object per line for programs.", show_default="text"),
    ] = None,
) -> None:
    """Run a server until SIGTERM, SIGHUP or Ctrl-C.

    Settings come from options, the environment (MILLRACE_PART_OPTION), and a TOML file; the first source with a value
    takes precedence. `millrace settings` lists them all.
    """
    held = hold()
    options = given.load({"log.level": log_level, "log.format": log_format}).options
    options = replace(options, data_folder=options.data_folder.absolute())
    is_terminal = sys.stderr.isatty()
    is_json = options.log.format == "json"
    configure(level=options.log.level_name(is_terminal=is_terminal), as_json=is_json, held=held)
    keep_freed_memory()
    try:
        uvloop.run(_serve(options, with_banner=is_terminal and not is_json))
    except ServerError as error:
        if not is_json:
            raise
        logger.critical("server ended error=%s", error)  # an object like all other lines
        raise typer.Exit(1) from None


async def _serve(options: ServerOptions, *, with_banner: bool) -> None:
    # Loading the server takes longer than the rest of the command line.
    with needs("server"):
        from millrace.server.app import Server
        from millrace.server.process import start_as_process

    terminal = console_on(stderr=True)
    status = terminal.status(f"opening {options.data_folder}")
    server = Server(options)
    with status if with_banner else nullcontext():
        if not await start_as_process(server, on_standby=status.update if with_banner else lambda _: None):
            return
    try:
        if with_banner:
            terminal.print(_banner(server, options))
        await server.wait_for_end()
        if with_banner:
            _print_end(terminal, "stopping: finishing requests in progress")
    finally:
        await server.stop()
    _print_end(terminal, "stopped" if with_banner else "")


def _print_end(terminal: Console, text: str) -> None:
    """Print a line, and the rest of the log, unless the terminal was closed, which SIGHUP reports."""
    try:
        if text:
            terminal.print(Text(text, style="dim"))
        sys.stderr.flush()
    except OSError:
        discard(sys.stderr)


def _banner(server: "Server", options: ServerOptions) -> Text:
    statistics, console = server.statistics(), server.console_address
    recovery, content = statistics["recovery"], statistics["server"]
    text = Text()
    text.append("Millrace", style="bold cyan")
    text.append(" is serving\n")
    rows = {
        "clients": server.address,
        "console": f"http://{console}/  (metrics: http://{console}/metrics)" if console else "none",
        "data": str(options.data_folder),
        **({"history": str(options.store)} if options.store is not None else {}),
        "content": f"{getattr(content, 'streams', 0)} streams, {getattr(content, 'segments', 0)} segments",
        "recovered": f"{size_text(getattr(recovery, 'tail_bytes', 0))} from the log in "
        f"{duration_text(getattr(recovery, 'duration_s', 0.0))}, log ending: {getattr(recovery, 'ending', '').lower()}",
    }
    for name, value in rows.items():
        text.append(f"  {name:<10}", style="cyan")
        text.append(f"{value}\n")
    if torn := getattr(recovery, "torn_bytes", 0):
        text.append(f"  an incomplete batch of {torn} bytes at the end of the log was truncated\n", style="yellow")
    if damages := getattr(recovery, "damages", 0):
        text.append(f"  {damages} damaged places in the log; `millrace verify` names them\n", style="bold red")
    text.append("Ctrl-C stops it.  Try: millrace stream create demo/lines", style="dim")
    return text
