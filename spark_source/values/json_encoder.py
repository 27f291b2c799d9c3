"""Rows as JSON, one object each: what `json_decoder` reads back as the same rows.

Arrow has no writer of JSON. So the text of each column is made as a column, and the columns are joined: nothing is done
per row. All columns are there in their order, `null` where they have no value.

    {"id":7,"paid":true,"price":12.50,"at":"2026-01-31T18:00:00.500000Z","tags":["a","b"],"note":null}

Doubles have as many digits as bring the same number back. What has no form in JSON makes a row unencodable: NaN and
infinity, text that is not UTF-8, and dates outside the years 1 to 9999.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.client.values.arrays import data_of, numbers
from millrace.client.values.base64_columns import encode_base64
from millrace.client.values.codec import MalformedError

_DATE_MIN, _DATE_MAX = -719_162, 2_932_896
"""0001-01-01 and 9999-12-31, in days of the Unix epoch."""
_DAY_US: Final = 86_400_000_000
_ESCAPES: Final = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
"""Of a text: the backslash first, for the others bring more of them."""
_IS_ESCAPED: Final = np.array([number < 0x20 or chr(number) in _ESCAPES for number in range(256)])


def encode_json(batch: pa.RecordBatch) -> Any:
    """Return the value of each row, as text.

    Raises:
        MalformedError: a row has something that JSON has no form for; names the column.
    """
    rows = pa.StructArray.from_arrays(batch.columns, fields=list(batch.schema))
    return _object(rows, path="")


def _text(array: Any, path: str) -> Any:
    """Return the text of each item, `null` for null."""
    types, kind = pa.types, array.type
    if types.is_struct(kind):
        text = _object(array, path=f"{path}.")
    elif types.is_list(kind):
        text = _list(array, path=f"{path}[]")
    elif types.is_string(kind):
        text = _quoted(_escaped(array, path))
    elif types.is_binary(kind):
        text = _quoted(encode_base64(array))
    elif types.is_date32(kind):
        _check_range(array.cast(pa.int32()), _DATE_MIN, _DATE_MAX, path)
        text = _quoted(array.cast(pa.string()))
    elif types.is_timestamp(kind):
        _check_range(array.cast(pa.int64()), _DATE_MIN * _DAY_US, (_DATE_MAX + 1) * _DAY_US - 1, path)
        text = _quoted(pc.utf8_replace_slice(array.cast(pa.string()), 10, 11, "T"))
    else:
        if types.is_floating(kind) and not pc.all(pc.is_finite(array), min_count=0).as_py():
            raise MalformedError("is not finite, which JSON has no form for", column=path)
        text = array.cast(pa.string())
    return text.fill_null("null")


def _object(array: Any, path: str) -> Any:
    parts: list[Any] = []
    for number, (field, column) in enumerate(zip(array.type, array.flatten(), strict=True)):
        name = _escaped(pa.array([field.name], pa.string()), path)[0].as_py()
        parts += [("," if number else "{") + f'"{name}":', _text(column, path + field.name)]
    text = pc.binary_join_element_wise(*parts, "}", "") if parts else pa.repeat("{}", len(array))
    return pc.if_else(array.is_valid(), text, pa.scalar(None, pa.string())) if array.null_count else text


def _list(array: Any, path: str) -> Any:
    lengths = array.value_lengths().fill_null(0)
    offsets = np.append(0, np.cumsum(np.asarray(lengths), dtype=np.int64)).astype(np.int32)
    texts = pa.ListArray.from_arrays(numbers(pa.int32(), offsets), _text(array.flatten(), path))
    text = pc.binary_join_element_wise("[", pc.binary_join(texts, ","), "]", "")
    return pc.if_else(array.is_valid(), text, pa.scalar(None, pa.string())) if array.null_count else text


def _quoted(text: Any) -> Any:
    return pc.binary_join_element_wise('"', text, '"', "")


def _escaped(text: Any, path: str) -> Any:
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        raise MalformedError("is not UTF-8", column=path) from None
    data = data_of(text)
    found = {chr(number) for number in np.unique(data[_IS_ESCAPED[data]])}
    for character in [*_ESCAPES, *sorted(found - _ESCAPES.keys())]:
        if character in found:
            text = pc.replace_substring(text, character, _ESCAPES.get(character, f"\\u{ord(character):04x}"))
    return text


def _check_range(array: Any, low: int, high: int, path: str) -> None:
    ends = pc.min_max(array)
    if ends["min"].is_valid and not low <= ends["min"].as_py() <= ends["max"].as_py() <= high:
        raise MalformedError("is outside the years 1 to 9999, which have a form in JSON", column=path)
