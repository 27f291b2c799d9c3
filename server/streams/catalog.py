"""Which streams scale, which forget, and which have a tag, without looking at all of them.

A server may hold a million idle streams; what is done every few seconds must not visit each. So what configurations
say is kept here by kind, and brought up to date with the few that changed since the last look.
"""

import logging

from sortedcontainers import SortedSet

from millrace.server.container.state import ContainerState
from millrace.server.errors import InvalidArgumentError

from .policy import Policy, ScalingKind, parse_policy

logger = logging.getLogger(__name__)


def policy_of(configuration: str) -> Policy:
    """Return the policy of a stream that exists; one that cannot be read (any more) asks for nothing."""
    try:
        return parse_policy(configuration)
    except InvalidArgumentError as error:
        logger.warning("configuration of a stream ignored reason=%s", error)
        return Policy()


class Catalog:
    """The streams of a container by what their configurations ask for. Every question brings it up to date first."""

    def __init__(self, state: ContainerState) -> None:
        self._state = state
        self._scaling: set[int] = set()
        self._retaining: set[int] = set()
        self._names_by_tag: dict[str, SortedSet[str]] = {}
        # Only of streams with tags: their name and tags, to be found again when the stream is gone.
        self._tagged: dict[int, tuple[str, frozenset[str]]] = {}

    @property
    def scaling(self) -> list[int]:
        """Ids of the streams that scale by themselves."""
        self.catch_up()
        return sorted(self._scaling)

    @property
    def retaining(self) -> list[int]:
        """Ids of the streams with a retention policy."""
        self.catch_up()
        return sorted(self._retaining)

    def names_with_tag(self, tag: str) -> "SortedSet[str]":
        """Return the names of the streams with a tag, ascending; not to be changed."""
        self.catch_up()
        return self._names_by_tag.get(tag, SortedSet())

    def catch_up(self, *, count_max: int | None = None) -> bool:
        """Look at streams that changed, at so many at most; return whether there are more: a million take seconds."""
        changed = self._state.reconfigured_streams
        count = len(changed) if count_max is None else min(len(changed), count_max)
        for _ in range(count):
            stream_id = changed.pop()
            self._forget(stream_id)
            stream = self._state.streams.get(stream_id)
            if stream is None:
                continue
            policy = policy_of(stream.configuration)
            if policy.scaling.kind is not ScalingKind.FIXED:
                self._scaling.add(stream_id)
            if policy.retention is not None:
                self._retaining.add(stream_id)
            if policy.tags:
                self._tagged[stream_id] = (stream.name, policy.tags)
                for tag in policy.tags:
                    self._names_by_tag.setdefault(tag, SortedSet()).add(stream.name)
        return bool(changed)

    def _forget(self, stream_id: int) -> None:
        self._scaling.discard(stream_id)
        self._retaining.discard(stream_id)
        name, tags = self._tagged.pop(stream_id, ("", frozenset()))
        for tag in tags:
            names = self._names_by_tag[tag]
            names.discard(name)
            if not names:
                del self._names_by_tag[tag]
