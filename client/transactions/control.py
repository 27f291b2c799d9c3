"""The transactions of a client, and those of others by their names."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

from millrace.client.errors import TransactionUnknownError
from millrace.client.transport.channel import Channel
from millrace.client.write.options import WriterOptions
from millrace.model.cut import StreamCut
from millrace.model.errors import InvalidArgumentError
from millrace.model.names import checked_stream_name, checked_transaction_name
from millrace.model.producer import checked_producer
from millrace.model.transaction import TransactionState as StoredState
from millrace.wire import messages as m
from millrace.wire.limits import LIST_PAGE_COUNT_MAX

from .cursor_moves import FindCut
from .identities import Identities
from .known_streams import KnownStreams
from .leases import LeaseKeeper
from .outcome import ListedTransaction, TransactionOutcome, listed_transaction, outcome_of
from .transaction import Transaction


class Transactions:
    """Makes transactions, and decides over others by their names.

    A request by a name is one by the number that it leads to: sent again, it cannot meet another of that name.

    Args:
        fetch_tails: returns the tails of streams, as of one moment.
        find_cut: says where a place is that is named in words.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        fetch_tails: Callable[[Sequence[str]], Awaitable[dict[str, StreamCut]]],
        find_cut: FindCut,
    ) -> None:
        self._channel = channel
        self._fetch_tails = fetch_tails
        self._find_cut = find_cut
        self._identities = Identities(channel)
        self._known = KnownStreams(channel)
        self._leases = LeaseKeeper(channel.clock)

    def make(
        self,
        streams: str | Iterable[str],
        *,
        name: str | None,
        lease_s: float,
        producer: tuple[str, str, str, int] | None,
        options: WriterOptions | None,
    ) -> Transaction:
        """Return a transaction that has not begun. Raises like `Client.transaction`."""
        if not isinstance(streams, Iterable):
            raise InvalidArgumentError(f"a transaction is over a stream, or a list of streams, not {streams!r:.120}")
        if not isinstance(lease_s, int | float):
            raise InvalidArgumentError(f"lease_s is a number of seconds, not {lease_s!r:.120}")
        names = [streams] if isinstance(streams, str) else list(streams)
        if name == "":
            raise InvalidArgumentError("the name of a transaction is not empty; None is for none")
        if len(set(names)) < len(names):
            raise InvalidArgumentError("the streams of a transaction are each given once")
        return Transaction(
            self._channel,
            self._identities,
            [checked_stream_name(stream) for stream in names],
            name=None if name is None else checked_transaction_name(name),
            lease_s=lease_s,
            producer=None if producer is None else checked_producer(producer),
            options=options or WriterOptions(),
            known=self._known,
            fetch_tails=self._fetch_tails,
            find_cut=self._find_cut,
            leases=self._leases,
        )

    async def outcome(self, name: str) -> TransactionOutcome:
        """Return what is known of the transaction that has the name."""
        return await self._told(await self._find(name))

    async def commit(self, name: str) -> TransactionOutcome:
        """Commit the prepared transaction that has the name. Raises like `Client.commit_transaction`."""
        found = await self._find(name)
        is_open = found.state == StoredState.OPEN  # then the server says what is wrong with that
        request = m.CommitTransaction(
            number=0 if is_open else _number_of(found),
            name=name if is_open else "",
            branches=[],
            drops_others=0,
            cursors=[],
        )
        committed = await self._channel.request(request)
        return await self._told(await self._channel.request(m.GetTransaction(committed.number, "")))

    async def abort(self, name: str, *, number: int = 0) -> bool:
        """Abort the transaction with a number, or with a name. Raises like `Client.abort_transaction`."""
        number = number or _number_of(await self._find(name))
        return bool((await self._channel.request(m.AbortTransaction(number, ""))).changed)

    async def listed(
        self, *, after: int = 0, page_count: int = LIST_PAGE_COUNT_MAX
    ) -> AsyncIterator[ListedTransaction]:
        """Yield those that are open or prepared and have a number above `after`; so many are asked for at a time."""
        while True:
            page = await self._channel.request(m.ListTransactions(after, page_count))
            for listed in page.transactions:
                yield listed_transaction(listed)
            if not page.more or not page.transactions:
                return
            after = page.transactions[-1].number

    def close(self) -> None:
        """Write to none any more; those that are open are aborted by their leases."""
        self._leases.close()
        self._identities.close()

    async def _told(self, info: m.TransactionInfo) -> TransactionOutcome:
        names = [name for (name,) in info.names] if info.state == StoredState.COMMITTED else []
        return outcome_of(info, await self._fetch_tails(names) if names else {})

    async def _find(self, name: str) -> m.TransactionInfo:
        if not name:
            raise InvalidArgumentError("the name of a transaction is not empty")
        return await self._channel.request(m.GetTransaction(0, checked_transaction_name(name)))


def _number_of(found: m.TransactionInfo) -> int:
    if found.state == StoredState.UNKNOWN:
        raise TransactionUnknownError(f"transaction {found.name} does not exist, or was forgotten")
    return found.number
