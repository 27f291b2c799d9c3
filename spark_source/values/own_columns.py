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

from pyspark.sql.types import BinaryType, DataType, IntegerType, LongType, MapType, StringType, TimestampType

from millrace.spark_source.errors import SchemaError

ROW_NAME: Final = "_row"
CORRUPT_NAME: Final = "_corrupt_record"
ERROR_NAME: Final = "_error"
_PLAIN_TYPES: Final[dict[str, DataType]] = {
    "_key": StringType(),
    "_timestamp": TimestampType(),
    "_stream": StringType(),
    "_segment": LongType(),
    "_offset": LongType(),
    "_index": IntegerType(),
    "_headers": MapType(StringType(), BinaryType()),
}
OWN_TYPES: Final[dict[str, DataType]] = {
    **_PLAIN_TYPES,
    ROW_NAME: IntegerType(),
    CORRUPT_NAME: BinaryType(),
    ERROR_NAME: StringType(),
}
"""Of all columns of an event that is read."""
PLAIN_NAMES: Final = tuple(_PLAIN_TYPES)
"""Those of the plain source: the same without the `_`."""
PLACE_NAMES: Final = ("_segment", "_offset", "_index", ROW_NAME, CORRUPT_NAME, ERROR_NAME)
"""Those that only an event that was read has."""


def check_own_type(name: str, kind: DataType, *, advice: str) -> None:
    """Check the type of a column, if it is one of the event's own.

    Args:
        advice: what to do where it is not that of the event.

    Raises:
        SchemaError: it has another type, or a name that differs from an own one only in case: Spark takes both for
            the same, and the values of `_KEY` would not become keys.
    """
    own = next((own for own in OWN_TYPES if own != name and own.lower() == name.lower()), None)
    if own is not None:
        raise SchemaError(name, f'differs from the event\'s own column "{own}" only in case: use "{own}"')
    wanted = OWN_TYPES.get(name)
    if wanted is not None and kind != wanted:
        raise SchemaError(name, f"is the event's own and {wanted.simpleString()}, not {kind.simpleString()}: {advice}")
