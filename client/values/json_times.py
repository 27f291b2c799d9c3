"""Times as texts of JSON: ISO 8601 and RFC 3339, as the libraries of other languages print them.

    2026-01-31T18:00:00Z                  `t` and `z` may be in lower case, a space may stand for `T`
    2026-01-31T18:00:00.123456789+01:00   1 to 9 digits of a fraction; an offset may have no colon, or no minutes
    2026-01-31T18:00                      seconds, minutes and hours may be left out; without an offset it is UTC

Digits below the unit of the column are cut off.
"""

import re
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

_DIGITS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_FRACTION_DIGITS_MAX: Final = 9
_NOT_PARSED: Final = re.compile(r"^Failed to parse string: ('.*') as a scalar", re.DOTALL)
_WITH_OFFSET: Final = r"[T ].*(Z|[+-][0-9]{2}(:?[0-9]{2})?)$"


def read_times(texts: Any, kind: pa.TimestampType) -> Any:
    """Return texts as timestamps of a type; nulls stay nulls.

    Raises:
        pa.ArrowInvalid: one is not a time, or out of the range of the type; names it.
    """
    try:
        return texts.cast(kind)  # the usual case: all are as Arrow itself takes them
    except pa.ArrowInvalid:
        pass
    try:
        return _read(_as_arrow_takes(texts, kind.unit), kind)
    except pa.ArrowInvalid as error:
        found = _NOT_PARSED.search(str(error))
        if found is None:
            raise
        raise pa.ArrowInvalid(f"is not a timestamp, as 2026-01-31T18:00:00.5Z is: {found[1]}") from None


def _as_arrow_takes(texts: Any, unit: str) -> Any:
    upper = pc.call_function("ascii_upper", [texts])
    kept = rf"[.][0-9]{{{_DIGITS[unit]}}}" if _DIGITS[unit] else "[.][0-9]"
    cut_count = _FRACTION_DIGITS_MAX - (_DIGITS[unit] or 1)
    pattern = rf"^([^.]*)({kept})[0-9]{{0,{cut_count}}}($|[^0-9].*)"
    replacement = r"\1\2\3" if _DIGITS[unit] else r"\1\3"
    return pc.call_function("replace_substring_regex", [upper], pc.ReplaceSubstringOptions(pattern, replacement))


def _read(texts: Any, kind: pa.TimestampType) -> Any:
    has_offset = pc.call_function("match_substring_regex", [texts], pc.MatchSubstringOptions(_WITH_OFFSET))
    nothing = pa.scalar(None, pa.string())
    instants = pc.call_function("if_else", [has_offset, texts, nothing]).cast(pa.timestamp(kind.unit, tz="UTC"))
    in_utc = pc.call_function("if_else", [has_offset, nothing, texts]).cast(pa.timestamp(kind.unit))
    numbers = pc.call_function("coalesce", [instants.cast(pa.int64()), in_utc.cast(pa.int64())])
    return numbers.cast(kind)
