"""The connection of a command to a server, and its common options."""

import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Final

import typer

from millrace.client import blocking
from millrace.client.client import Client, connect
from millrace.client.options import (
    ADDRESS_DEFAULT,
    ADDRESS_VARIABLE,
    TOKEN_FILE_VARIABLE,
    TOKEN_VARIABLE,
    ClientOptions,
    read_token,
)
from millrace.client.waiting import WaitInfo
from millrace.model.errors import MillraceError
from millrace.model.quantities import parse_duration

from .output import print_waiting

COMPLETION_TIMEOUT_S: Final = 1.0
COMPLETED_COUNT_MAX: Final = 200


def complete_stream(context: typer.Context, incomplete: str) -> list[str]:
    """Return the streams that begin with a text, for shell completion; none if no server answers."""
    server = ServerTarget(**{option.name: context.params.get(option.name) for option in fields(ServerTarget)})
    timeout_s = min(server.timeout_s or COMPLETION_TIMEOUT_S, COMPLETION_TIMEOUT_S)
    options = ClientOptions(connect_timeout_s=timeout_s, request_timeout_s=timeout_s)
    try:
        with blocking.connect(server.address, token=server.token(), options=options) as client:
            return list(islice(client.list_streams(incomplete), COMPLETED_COUNT_MAX))
    except (MillraceError, OSError):
        return []  # shell completion cannot report errors


StreamArgument = Annotated[
    str, typer.Argument(metavar="STREAM", help="Name of the stream: SCOPE/NAME.", autocompletion=complete_stream)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
StoreOption = Annotated[
    str | None,
    typer.Option("--store", metavar="URL", help="The object store of the history: s3://BUCKET/PREFIX."),
]


@dataclass(frozen=True, slots=True)
class ServerTarget:
    """The server that a command uses, from its options."""

    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            "-a",
            metavar="HOST:PORT",
            help="The server; or several addresses, separated by commas, which are tried in turn.",
            show_default=f"${ADDRESS_VARIABLE}, or {ADDRESS_DEFAULT}",
            rich_help_panel="Connection",
        ),
    ] = None
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with the token of the server.",
            show_default=f"the file in ${TOKEN_FILE_VARIABLE}, or the token in ${TOKEN_VARIABLE}",
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
            help="Give up after the server has been unreachable for this long.",
            show_default="30s for a request; no limit for reading and writing events",
            rich_help_panel="Connection",
        ),
    ] = None

    @property
    def outage_timeout_s(self) -> float:
        """How long to wait for an unreachable server while reading or writing."""
        return math.inf if self.timeout_s is None else self.timeout_s

    @property
    def arguments(self) -> list[str]:
        """The command line options that select this server."""
        named = [] if self.address is None else ["--address", self.address]
        named += [] if self.token_file is None else ["--token-file", str(self.token_file)]
        return named if self.timeout_s is None else [*named, "--timeout", f"{self.timeout_s:g}s"]

    def token(self) -> str | None:
        """Return the token in the file, None without a file.

        Raises:
            InvalidArgumentError: the token file is invalid.
        """
        return None if self.token_file is None else read_token(self.token_file)

    @contextmanager
    def connect(self, *, on_waiting: Callable[[WaitInfo | None], None] = print_waiting) -> Iterator[blocking.Client]:
        """Yield a client of the server.

        Args:
            on_waiting: called when the client waits for the server; see `ClientOptions`.

        Raises:
            InvalidArgumentError: the address or the token file is invalid.
            ServerUnreachableError: no server answers at the address.
        """
        with blocking.connect(self.address, token=self.token(), options=self._options(on_waiting)) as client:
            yield client

    @asynccontextmanager
    async def connect_async(self, *, on_waiting: Callable[[WaitInfo | None], None]) -> AsyncIterator[Client]:
        """Yield a client for asyncio. See `connect`."""
        async with connect(self.address, token=self.token(), options=self._options(on_waiting)) as client:
            yield client

    def _options(self, on_waiting: Callable[[WaitInfo | None], None]) -> ClientOptions:
        options = ClientOptions(outage_timeout_s=self.outage_timeout_s, on_waiting=on_waiting)
        return options if self.timeout_s is None else replace(options, request_timeout_s=self.timeout_s)
