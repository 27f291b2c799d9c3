"""The kinds of entities that a container has, in the order of their tables."""

from typing import Final

from millrace.server.container.checkpoint.segment_tables import SEGMENTS
from millrace.server.container.checkpoint.writer_tables import WRITERS
from millrace.server.container.kind import Kinds

from .producers import PRODUCERS
from .streams import STREAMS
from .transactions import TRANSACTIONS

KINDS: Final = Kinds(SEGMENTS, WRITERS, STREAMS, TRANSACTIONS, PRODUCERS)
