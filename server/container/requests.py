"""Declaration of a class of requests, and the table derived from it.

Each public method of such a class answers one request: the annotation of its `message` says which one.
"""

from collections.abc import Awaitable, Callable, Iterable
from inspect import isfunction
from typing import Any, NamedTuple, get_type_hints

from millrace.wire import messages as m
from millrace.wire.limits import LIST_PAGE_COUNT_MAX

Handler = Callable[[Any], Awaitable[m.Message]]


class ClientOrigin(NamedTuple):
    """Where a request comes from.

    Attributes:
        session_id: of the client.
        address: of its host.
    """

    session_id: bytes
    address: str


class ReadyReply(NamedTuple):
    """The reply to a request that is decided in this step: it is known, and told when that is durable.

    Attributes:
        is_new: whether this request decided it; else it was before.
    """

    message: m.Message
    is_new: bool


PendingReply = Callable[[], Awaitable[m.Message]]
"""Returns the reply, or raises, once the decision or what a rejection rests on is durable."""
Reply = ReadyReply | PendingReply
"""The reply to a decided request."""


class OrderedRequest(NamedTuple):
    """A request that is decided in the order in which it was sent, together with the appends between.

    Attributes:
        decide: decides it in this step; returns None if something has to become durable before.
        wait: decides it when that can be; None if `decide` never returns None once all that it names is in memory.
        precedes_appends: whether appends that follow are refused if it is: they are not looked at before it is decided.
    """

    decide: Callable[[Any, ClientOrigin], Reply | None]
    wait: Callable[[Any, ClientOrigin], Awaitable[Reply]] | None = None
    precedes_appends: bool = False


def handlers_of(groups: Iterable[object]) -> dict[type[m.Message], Handler]:
    """Return the methods that answer requests, by the request that their `message` is annotated with."""
    handlers: dict[type[m.Message], Handler] = {}
    for group in groups:
        for name, method in vars(type(group)).items():
            if isfunction(method) and not name.startswith("_"):
                request = get_type_hints(method)["message"]
                assert request not in handlers, f"two methods answer {request.__name__}"
                handlers[request] = getattr(group, name)
    return handlers


def page_count(message: m.ListSegments | m.ListStreams | m.ListTransactions) -> int:
    """Return how many items a page has at most."""
    return max(1, min(message.count_max or LIST_PAGE_COUNT_MAX, LIST_PAGE_COUNT_MAX))
