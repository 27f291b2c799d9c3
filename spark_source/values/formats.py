"""The words of the options of typed values."""

from enum import StrEnum


class ValueFormat(StrEnum):
    """What the value of an event is."""

    JSON = "json"
    """One object, in UTF-8: one row."""
    ARROW = "arrow"
    """An Arrow IPC stream: any number of rows, with their schema."""


class Mode(StrEnum):
    """What becomes of an event whose value is malformed. The words are those of Spark's own readers."""

    FAILFAST = "FAILFAST"
    """The task fails, and names the event."""
    DROPMALFORMED = "DROPMALFORMED"
    """It gives no row."""
    PERMISSIVE = "PERMISSIVE"
    """It gives a row whose decoded columns are null."""
