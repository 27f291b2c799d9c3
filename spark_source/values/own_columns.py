"""The columns that an event has beside its value, by the names that they have beside decoded columns.

A decoded column may have any name, and `key` or `timestamp` are frequent ones. So the event's own begin with `_`.

    _key             string                as the column `key` of the plain source; so are those up to `_headers`
    _timestamp       timestamp
    _stream          string
    _segment         long
    _offset          long
    _index           int
    _headers         map<string,binary>    empty where an event has none
    _row             int                   number of the row among those of its event, from 0
    _corrupt_record  binary                the value where it is malformed, else null
    _error           string                why it is malformed, else null
"""

from typing import Final

PLAIN_NAMES: Final = ("_key", "_timestamp", "_stream", "_segment", "_offset", "_index", "_headers")
"""Those of the plain source: the same without the `_`."""
ROW_NAME: Final = "_row"
CORRUPT_NAME: Final = "_corrupt_record"
ERROR_NAME: Final = "_error"
OWN_NAMES: Final = (*PLAIN_NAMES, ROW_NAME, CORRUPT_NAME, ERROR_NAME)
"""All of an event that is read."""
PLACE_NAMES: Final = ("_segment", "_offset", "_index", ROW_NAME, CORRUPT_NAME, ERROR_NAME)
"""Those that only an event that was read has."""
