"""How a command reaches a server: the options that all of them share."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from millrace.client import blocking
from millrace.wire.limits import DATA_PORT

StreamArgument = Annotated[str, typer.Argument(metavar="STREAM", help="Name of the stream: SCOPE/NAME.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True, slots=True)
class Server:
    """The server that a command is for, from its options."""

    address: Annotated[
        str,
        typer.Option("--address", "-a", metavar="HOST:PORT", help="Where the server is.", rich_help_panel="Connection"),
    ] = f"127.0.0.1:{DATA_PORT}"
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with the token that the server asks for.",
            rich_help_panel="Connection",
            exists=True,
            dir_okay=False,
        ),
    ] = None

    @contextmanager
    def connect(self) -> Iterator[blocking.Client]:
        """Lend a client of the server.

        Raises:
            InvalidArgumentError: the address is none.
            ServerUnreachableError: nothing answers there.
        """
        token = self.token_file.read_text().strip() if self.token_file else None
        with blocking.connect(self.address, token=token) as client:
            yield client
