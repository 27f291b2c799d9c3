"""Counters over all feeds since the start."""

from dataclasses import dataclass


@dataclass(slots=True)
class FeedCounters:
    """What feeds have done. Written in the thread of the console, read in any.

    Attributes:
        open: feeds that are open, or being opened.
    """

    open: int = 0
    opened_total: int = 0
    refused_total: int = 0
    events_total: int = 0
