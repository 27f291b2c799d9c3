"""The kinds of entities that a container has, in the order of their tables."""

from typing import Final

from millrace.server.container.kind import Kinds

from .producers import PRODUCERS
from .segments import SEGMENTS
from .streams import STREAMS
from .transactions import TRANSACTIONS
from .writers import WRITERS

KINDS: Final = Kinds(SEGMENTS, WRITERS, STREAMS, TRANSACTIONS, PRODUCERS)
