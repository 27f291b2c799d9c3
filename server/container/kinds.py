"""The kinds of entities that a container has, in the order of their tables."""

from typing import Final

from .checkpoint.producer_table import PRODUCERS
from .checkpoint.segment_tables import SEGMENTS
from .checkpoint.stream_tables import STREAMS
from .checkpoint.transaction_tables import TRANSACTIONS
from .checkpoint.writer_tables import WRITERS
from .kind import Kinds

KINDS: Final = Kinds(SEGMENTS, WRITERS, STREAMS, TRANSACTIONS, PRODUCERS)
