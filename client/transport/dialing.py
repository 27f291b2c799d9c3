"""The way to a server that may be at one of several addresses, of which one at a time serves."""

import logging
from collections.abc import Awaitable, Callable

from millrace.client.errors import ServerUnreachableError
from millrace.client.options import ClientOptions
from millrace.model.address import Address, Addresses
from millrace.model.errors import RequestError

from .connection import Connection, open_connection

logger = logging.getLogger(__name__)


class Dialer:
    """Connects to the first address that serves, beginning with the one that did last. A client has one of them.

    Args:
        connect: makes an open connection to one address; raises like `open_connection`.
    """

    def __init__(
        self, connect: Callable[[Address, ClientOptions, bytes], Awaitable[Connection]] = open_connection
    ) -> None:
        self._connect = connect
        self._served_last: Address | None = None

    async def dial(self, addresses: Addresses, options: ClientOptions, session_id: bytes) -> Connection:
        """Try each address once, in turn. Cancelling closes what was opened.

        Raises:
            ServerUnreachableError: nothing serves at any of them; tells of each one why.
            RequestError: one refused the handshake for good; or for now, and no other serves.
        """
        failures: list[ServerUnreachableError] = []
        refused: RequestError | None = None
        for address in addresses.beginning_with(self._served_last or addresses.members[0]):
            try:
                connection = await self._connect(address, options, session_id)
            except ServerUnreachableError as error:
                failures.append(error)
            except RequestError as error:
                if not error.retriable:
                    raise
                refused = refused or error
            else:
                if self._served_last not in (None, address):
                    logger.info("server found at another address address=%s before=%s", address, self._served_last)
                self._served_last = address
                return connection
        if refused is not None:
            raise refused
        if len(failures) == 1:
            raise failures[0]
        raise ServerUnreachableError(
            str(addresses), "; ".join(f"{error.address}: {error.reason}" for error in failures)
        )

    async def find_other(
        self, addresses: Addresses, options: ClientOptions, session_id: bytes, *, silent: Address
    ) -> bool:
        """Return whether a server serves at another address than the silent one; `dial` begins with it from then on.

        Cancelling closes what was opened.
        """
        for address in addresses.members:
            if address == silent:
                continue
            try:
                connection = await self._connect(address, options, session_id)
            except (ServerUnreachableError, RequestError) as error:
                logger.debug("no server beside the silent one address=%s error=%s", address, error)
                continue
            self._served_last = address
            await connection.close()
            return True
        return False
