"""How a command reaches a server: the options that all of them share."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from millrace.client import blocking
from millrace.client.options import ADDRESS_DEFAULT, ADDRESS_VARIABLE, TOKEN_VARIABLE, ClientOptions
from millrace.client.waiting import Waiting
from millrace.model.quantities import parse_duration

from .output import print_waiting

StreamArgument = Annotated[str, typer.Argument(metavar="STREAM", help="Name of the stream: SCOPE/NAME.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True, slots=True)
class Server:
    """The server that a command is for, from its options."""

    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            "-a",
            metavar="HOST:PORT",
            help="Where the server is.",
            show_default=f"${ADDRESS_VARIABLE}, or {ADDRESS_DEFAULT}",
            rich_help_panel="Connection",
        ),
    ] = None
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with the token that the server asks for.",
            show_default=f"the token in ${TOKEN_VARIABLE}",
            rich_help_panel="Connection",
            exists=True,
            dir_okay=False,
        ),
    ] = None
    timeout_s: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            metavar="DURATION",
            parser=parse_duration,
            help="Give up when the server has been away, or has refused, for so long.",
            show_default="30s for a request; events are read and written on, however long it is away",
            rich_help_panel="Connection",
        ),
    ] = None

    @property
    def outage_timeout_s(self) -> float:
        """How long to wait, in the midst of reading or writing, for a server that is away."""
        return math.inf if self.timeout_s is None else self.timeout_s

    @contextmanager
    def connect(self, *, on_waiting: Callable[[Waiting | None], None] = print_waiting) -> Iterator[blocking.Client]:
        """Lend a client of the server.

        Args:
            on_waiting: told what the client waits for; see `ClientOptions`.

        Raises:
            InvalidArgumentError: the address is none.
            ServerUnreachableError: nothing answers there.
        """
        token = self.token_file.read_text().strip() if self.token_file else None
        options = ClientOptions(outage_timeout_s=self.outage_timeout_s, on_waiting=on_waiting)
        if self.timeout_s is not None:
            options = replace(options, request_timeout_s=self.timeout_s)
        with blocking.connect(self.address, token=token, options=options) as client:
            yield client
