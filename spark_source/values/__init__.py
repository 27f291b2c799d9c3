"""Typed values: what both ends make of the rows of a schema, as JSON or as Arrow. Pure: nothing here waits or asks."""

from millrace.client.values.codec import DecodedRows, Decoder, MalformedValue
from millrace.client.values.json_decoder import JsonDecoder

from .arrow_decoder import ArrowDecoder
from .arrow_types import arrow_fields
from .encoder import EncodedRows, ValueEncoder
from .formats import Mode, ValueFormat

__all__ = [
    "ArrowDecoder",
    "DecodedRows",
    "Decoder",
    "EncodedRows",
    "JsonDecoder",
    "MalformedValue",
    "Mode",
    "ValueEncoder",
    "ValueFormat",
    "arrow_fields",
]
