"""The kinds of entities that a container has, in the order of their tables."""

from typing import Final

from millrace.server.container.checkpoint.segment_tables import SEGMENTS
from millrace.server.container.checkpoint.writer_tables import WRITERS
from millrace.server.container.kind import Kinds
from millrace.server.kinds.producers.tables import PRODUCERS
from millrace.server.kinds.streams.tables import STREAMS
from millrace.server.kinds.transactions.tables import TRANSACTIONS

KINDS: Final = Kinds(SEGMENTS, WRITERS, STREAMS, TRANSACTIONS, PRODUCERS)
