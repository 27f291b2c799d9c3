"""Counters over all feeds since the start."""

from dataclasses import dataclass


@dataclass(slots=True)
class FeedCounters:
    """Counters of all feeds. Written in the thread of the console, read in any thread.

    Attributes:
        open: feeds that are open, or opening.
    """

    open: int = 0
    opened_total: int = 0
    refused_total: int = 0
    events_total: int = 0
