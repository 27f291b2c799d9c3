"""How a command reaches a server: the options that all of them share."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from millrace.client import blocking
from millrace.client.options import parse_address
from millrace.wire.limits import DATA_PORT

StreamArgument = Annotated[
    str, typer.Argument(metavar="STREAM", help="Name of the stream: SCOPE/NAME.", show_default=False)
]
DEFAULT_ADDRESS = f"127.0.0.1:{DATA_PORT}"

AddressOption = Annotated[
    str, typer.Option("--address", "-a", metavar="HOST:PORT", help="Where the server is.", rich_help_panel="Connection")
]
TokenOption = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="File with the token that the server asks for.",
        show_default=False,
        rich_help_panel="Connection",
        exists=True,
        dir_okay=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@contextmanager
def connected(address: str, token_file: Path | None) -> Iterator[blocking.Client]:
    """Lend a client of the server at `address`.

    Raises:
        typer.BadParameter: the address is none.
        ServerUnreachableError: nothing answers there.
    """
    try:
        parse_address(address)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    token = token_file.read_text().strip() if token_file else None
    with blocking.connect(address, token=token) as client:
        yield client
