"""The schema of values that are JSON objects: inferred from some of them, or checked when it is given.

What is inferred is what Arrow's reader of JSON makes of the values: a number is an integer if all are, a text that is a
time in all of them is a timestamp. A field that has no value in any of them is left out, since nothing is known of it.
Times are in microseconds, as all times of events, for a fraction of a second may come later; without a zone they are
UTC.
"""

import pyarrow as pa
from pyarrow import json

from millrace.client.errors import ColumnInvalidError
from millrace.model.errors import InvalidArgumentError

from .codec import MalformedError, MalformedValue, sift
from .json_decoder import read_objects, relaxed_schema


def check_schema(schema: pa.Schema) -> None:
    """Check that values of JSON can become the columns of a schema.

    Raises:
        TypeError: it is no schema.
        ColumnInvalidError: a column has a type that nothing in JSON is.
    """
    if not isinstance(schema, pa.Schema):
        raise TypeError(f"json is True, False or a pyarrow.Schema, not {type(schema).__name__}")
    for field in schema:
        options = json.ParseOptions(explicit_schema=relaxed_schema(pa.schema([field])))
        try:
            json.read_json(pa.py_buffer(b"{}\n"), parse_options=options)
        except pa.ArrowNotImplementedError:
            raise ColumnInvalidError(field.name, f"is {field.type}, which is not read from JSON") from None


def inferred_schema(values: pa.BinaryArray) -> "pa.Schema | MalformedValue":
    """Return the schema of all values, or the first that is no JSON object.

    Raises:
        InvalidArgumentError: each is an object, but they have no common schema.
    """
    options = json.ParseOptions(newlines_in_values=False)
    try:
        return _known(read_objects(values, options).schema) if len(values) else pa.schema([])
    except MalformedError as error:
        _, malformed = sift(
            0,
            len(values),
            lambda start, end: read_objects(values.slice(start, end - start), options),
            ends_at_first=True,
        )
        if malformed:
            return malformed[0]
        raise InvalidArgumentError(f"no schema fits the first {len(values)} values, give one: {error.reason}") from None


def _known(schema: pa.Schema) -> pa.Schema:
    fields = [(field.name, _known_type(field.type)) for field in schema]
    return pa.schema([pa.field(name, kind) for name, kind in fields if kind is not None])


def _known_type(kind: pa.DataType) -> "pa.DataType | None":
    """Return a type without what no value says anything of; None if nothing is left."""
    types = pa.types
    if types.is_null(kind):
        return None
    if types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC")
    if types.is_list(kind):
        inner = _known_type(kind.value_type)
        return None if inner is None else pa.list_(inner)
    if types.is_struct(kind):
        known = [(field.name, _known_type(field.type)) for field in kind]
        fields = [pa.field(name, inner) for name, inner in known if inner is not None]
        return pa.struct(fields) if fields else None
    return kind
