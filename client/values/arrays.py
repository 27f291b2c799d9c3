"""Arrow arrays taken apart and put together again.

Nullability of inner fields is part of an Arrow type, and Arrow casts to a type that allows no nulls only from one like
it. So columns are decoded as types that allow nulls everywhere, are checked, and are then given the type of the schema.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .codec import MalformedError

Leaf = Callable[[pa.DataType], pa.DataType]
Restore = Callable[[Any, pa.DataType], Any]


def relaxed(kind: pa.DataType, leaf: Leaf = lambda kind: kind) -> pa.DataType:
    """Return a type that allows nulls in all inner fields, each type without inner fields replaced by `leaf` of it."""
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([pa.field(field.name, relaxed(field.type, leaf)) for field in kind])
    if types.is_map(kind):
        return pa.map_(relaxed(kind.key_type, leaf), relaxed(kind.item_type, leaf))
    if types.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, relaxed(kind.value_type, leaf)))
    return leaf(kind)


def restored(array: Any, kind: pa.DataType, restore: Restore = lambda array, _: array) -> Any:
    """Return an array of the relaxed type of a type as one of this type itself.

    Args:
        restore: makes an array of a type without inner fields of what `leaf` has made of that type.
    """
    types = pa.types
    if array.type == kind and not types.is_nested(kind):
        return array
    if types.is_struct(kind):
        fields = [restored(array.field(number), field.type, restore) for number, field in enumerate(kind)]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=_nulls_of(array))
    if types.is_map(kind):
        first, last, offsets = _parts(array)
        keys = restored(array.keys.slice(first, last - first), kind.key_type, restore)
        items = restored(array.items.slice(first, last - first), kind.item_type, restore)
        return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=_nulls_of(array))
    if types.is_list(kind):
        first, last, offsets = _parts(array)
        inner = restored(array.values.slice(first, last - first), kind.value_type, restore)
        return pa.ListArray.from_arrays(offsets, inner, type=kind, mask=_nulls_of(array))
    return restore(array, kind)


def check_required(array: Any, field: pa.Field, path: str = "") -> None:
    """Check that nothing is null that the schema says never is.

    Raises:
        MalformedError: names the column.
    """
    path += field.name
    if not field.nullable and array.null_count:
        raise MalformedError("has no value, and the schema says that it always has one", column=path)
    types = pa.types
    if types.is_struct(field.type):
        given = array.drop_null() if array.null_count else array
        for inner, inner_field in zip(given.flatten(), field.type, strict=True):
            check_required(inner, inner_field, f"{path}.")
    elif types.is_map(field.type):
        first, last, _ = _parts(array.drop_null() if array.null_count else array)
        check_required(array.items.slice(first, last - first), field.type.item_field, f"{path}.")
    elif types.is_list(field.type):
        check_required(array.flatten(), field.type.value_field, f"{path}.")


def lengths_of(array: Any) -> npt.NDArray[np.int64]:
    """Return the bytes of each text, or of each value, none of which is null."""
    return np.diff(offsets_of(array)).astype(np.int64)


def offsets_of(array: Any) -> npt.NDArray[np.int32]:
    """Return the offsets of an array of texts, bytes, lists or maps: one more than there are items."""
    return np.frombuffer(array.buffers()[1], dtype=np.int32, count=len(array) + 1, offset=4 * array.offset)


def data_of(array: Any) -> npt.NDArray[np.uint8]:
    """Return the bytes of an array of texts or bytes, those between its first and its last offset."""
    offsets, data = offsets_of(array), array.buffers()[2]
    if data is None:
        return np.empty(0, dtype=np.uint8)
    return np.frombuffer(data, dtype=np.uint8, count=offsets.item(-1) - offsets.item(0), offset=offsets.item(0))


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch without rows."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def numbers(kind: pa.DataType, values: npt.NDArray[Any]) -> Any:
    """Wrap numbers without a copy. `pa.array` would do too, but imports pandas first, which takes 0.3 s."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def binaries(kind: pa.DataType, lengths: npt.NDArray[np.int64], data: Any, nulls: Any) -> Any:
    """Return an array of texts or bytes of these lengths.

    Args:
        nulls: an array whose nulls it shall have, too.
    """
    offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    validity = pa.array(np.asarray(nulls.is_valid())).buffers()[1] if nulls.null_count else None
    return pa.Array.from_buffers(kind, len(lengths), [validity, pa.py_buffer(offsets), pa.py_buffer(data)])


def _parts(array: Any) -> tuple[int, int, Any]:
    """Return what a list or map array uses of its inner ones, and its offsets from there."""
    offsets = offsets_of(array)
    first, last = offsets.item(0), offsets.item(-1)
    return first, last, numbers(pa.int32(), offsets - offsets[0])


def _nulls_of(array: Any) -> Any:
    return array.is_null() if array.null_count else None
