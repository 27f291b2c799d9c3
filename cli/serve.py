"""`millrace serve`: run a server in the foreground."""

import logging
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Literal

import typer
import uvloop
from rich.text import Text

from millrace.server.errors import ConfigurationError
from millrace.server.host.memory import keep_freed_memory
from millrace.server.options import ServerOptions, options_from_environment, parse_listen
from millrace.wire.limits import CONSOLE_PORT, DATA_PORT

from .figures import duration_text, size_text
from .output import console as console_on

LogLevel = Literal["debug", "info", "warning", "error"]


def serve(
    data_dir: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of everything the server keeps; made if missing.")
    ] = Path("millrace-data"),
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where clients connect.")] = f"127.0.0.1:{DATA_PORT}",
    console: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Metrics, health and feeds over HTTP; 'none' for nowhere.")
    ] = f"127.0.0.1:{CONSOLE_PORT}",
    log_level: Annotated[
        LogLevel | None,
        typer.Option(help="What is logged to standard error.", show_default="warning on a terminal, else info"),
    ] = None,
) -> None:
    """Run a server until SIGTERM or Ctrl-C.

    Further settings come from the environment, MILLRACE_PART_OPTION; docs/operations.md lists them.
    """
    is_terminal = sys.stderr.isatty()
    logging.basicConfig(
        level=(log_level or ("warning" if is_terminal else "info")).upper(),
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    keep_freed_memory()
    uvloop.run(_serve(_options(data_dir, listen, console), with_banner=is_terminal))


def _options(data_dir: Path, listen: str, console: str) -> ServerOptions:
    try:
        return ServerOptions(
            data_folder=data_dir.absolute(),
            listen=parse_listen(listen, default_port=DATA_PORT),
            console=None if console == "none" else parse_listen(console, default_port=CONSOLE_PORT),
            **options_from_environment(os.environ),
        )
    except ConfigurationError as error:
        raise typer.BadParameter(str(error)) from None


async def _serve(options: ServerOptions, *, with_banner: bool) -> None:
    # Loading the server takes longer than all the rest of the command line.
    from millrace.server.app import Server

    terminal = console_on(stderr=True)
    server = Server(options)
    with terminal.status(f"opening {options.data_folder}") if with_banner else nullcontext():
        await server.start()
    try:
        server.own_process()
        if with_banner:
            terminal.print(_banner(server.address, server.console_address, options.data_folder, server.statistics()))
        await server.wait_for_end()
        if with_banner:
            terminal.print(Text("stopping: finishing what is under way", style="dim"))
    finally:
        await server.stop()
    if with_banner:
        terminal.print(Text("stopped", style="dim"))


def _banner(address: str, console: str, folder: Path, statistics: dict[str, object]) -> Text:
    recovery, content = statistics["recovery"], statistics["server"]
    text = Text()
    text.append("Millrace", style="bold cyan")
    text.append(" is serving\n")
    rows = {
        "clients": address,
        "console": f"http://{console}/  (metrics: http://{console}/metrics)" if console else "none",
        "data": str(folder),
        "holds": f"{getattr(content, 'streams', 0)} streams, {getattr(content, 'segments', 0)} segments",
        "recovered": f"{size_text(getattr(recovery, 'tail_bytes', 0))} from the log in "
        f"{duration_text(getattr(recovery, 'duration_s', 0.0))}, log ending: {getattr(recovery, 'ending', '').lower()}",
    }
    for name, value in rows.items():
        text.append(f"  {name:<10}", style="cyan")
        text.append(f"{value}\n")
    if torn := getattr(recovery, "torn_bytes", 0):
        text.append(f"  an incomplete batch of {torn} bytes at the end of the log was cut\n", style="yellow")
    if damages := getattr(recovery, "damages", 0):
        text.append(f"  {damages} damaged places in the log; `millrace verify` names them\n", style="bold red")
    text.append("Ctrl-C stops it.  Try: millrace stream create demo/lines", style="dim")
    return text
