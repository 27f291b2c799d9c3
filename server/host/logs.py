"""The log of a server: a line for each record, as text or as JSON.

There is one way to log: `logger.info("stream scaled stream=%s epoch=%d", name, epoch)`, a fixed phrase and then its
fields. As text this is the line. As JSON the phrase and each field are keys. The keys are read from the template, not
from the line, so no value can look like a field: any stream name and any error message is one JSON string.
"""

import logging
import math
import re
import sys
import threading
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from types import TracebackType
from typing import Any, Final

from pythonjsonlogger.json import JsonFormatter

RESERVED: Final = frozenset({"timestamp", "level", "logger", "event", "exception"})
"""Keys of every line; no field is called so."""

HELD_COUNT_MAX: Final = 1000
_LINE: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"
_FIELDS: Final = re.compile(r"(?: \w+=%[-+ #0-9.]*[a-zA-Z])+$")
_KEY: Final = re.compile(r" (\w+)=%")

logger = logging.getLogger(__name__)


@lru_cache(maxsize=1024)
def split_template(template: str) -> tuple[str, tuple[str, ...]]:
    """Return the template of the event, and the keys of the fields after it."""
    found = _FIELDS.search(template)
    if found is None:
        return template, ()
    return template[: found.start()], tuple(_KEY.findall(found.group()))


class JsonLineFormatter(JsonFormatter):
    """Writes a record as one JSON object: time, level, logger, event, and its fields with their own types.

    A record of a library, whose template is not of this form, is an event without fields. An exception is an object
    under `exception`: type, message and stacktrace.
    """

    def __init__(self) -> None:
        super().__init__([])

    def add_fields(self, log_data: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]) -> None:
        """Fill the object."""
        event, fields = _event_of(record)
        log_data["timestamp"] = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")
        log_data["level"] = record.levelname
        log_data["logger"] = record.name
        log_data["event"] = event
        log_data.update(fields)
        if record.exc_info and record.exc_info[1] is not None:
            log_data["exception"] = {
                **_described(record.exc_info[1]),
                "stacktrace": message_dict.pop("exc_info", ""),
            }
        super().add_fields(log_data, record, message_dict)  # fields passed as `extra`


class HeldRecords(logging.Handler):
    """Keeps the most recent records in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.records: deque[logging.LogRecord] = deque(maxlen=HELD_COUNT_MAX)

    def emit(self, record: logging.LogRecord) -> None:
        """Store a record."""
        self.records.append(record)


def hold() -> HeldRecords:
    """Hold log records until `configure` sets the format, which is unknown before the settings are read."""
    held = HeldRecords()
    logging.getLogger().addHandler(held)
    return held


def configure(*, level: str, as_json: bool, held: HeldRecords | None = None) -> None:
    """Write the log of this process to standard error; warnings go there, too.

    As JSON, a traceback that ends the process or a thread is an object, too, so that every line is an object.

    Args:
        level: the lowest level to write, as `logging` calls it.
        held: records to write first, if at or above that level.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLineFormatter() if as_json else logging.Formatter(_LINE))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for record in () if held is None else held.records:
        if logging.getLogger(record.name).isEnabledFor(record.levelno):
            handler.handle(record)
    logging.captureWarnings(True)
    if as_json:
        sys.excepthook = _log_uncaught
        threading.excepthook = _log_of_thread
        sys.unraisablehook = _log_unraisable


def _event_of(record: logging.LogRecord) -> tuple[str, dict[str, Any]]:
    template, values = record.msg, record.args
    if not isinstance(template, str) or not isinstance(values, tuple):
        return record.getMessage(), {}
    event, keys = split_template(template)
    if len(keys) > len(values) or RESERVED.intersection(keys):
        return record.getMessage(), {}
    count = len(values) - len(keys)
    return event % values[:count] if count else event, dict(_items(keys, values[count:]))


def _items(keys: tuple[str, ...], values: tuple[object, ...]) -> Iterator[tuple[str, Any]]:
    for key, value in zip(keys, values, strict=True):
        if isinstance(value, BaseException):
            yield key, str(value)
            yield f"{key}_type", type(value).__name__
        elif (
            value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))
        ):
            yield key, value
        else:
            yield key, str(value)


def _described(error: BaseException) -> dict[str, str]:
    return {"type": f"{type(error).__module__}.{type(error).__qualname__}", "message": str(error)}


def _log_uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    logger.critical("process ended by an error", exc_info=(kind, error, traceback))


def _log_of_thread(arguments: threading.ExceptHookArgs) -> None:
    if arguments.exc_value is not None:
        name = arguments.thread.name if arguments.thread else ""
        logger.critical("thread ended by an error thread=%s", name, exc_info=arguments.exc_value)


def _log_unraisable(arguments: "sys.UnraisableHookArgs") -> None:
    if arguments.exc_value is not None:
        logger.error("error ignored where=%s", arguments.object, exc_info=arguments.exc_value)
