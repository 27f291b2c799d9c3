"""Typed values: what both ends make of the rows of a schema, as JSON or as Arrow. Pure: nothing here waits or asks."""

from millrace.client.values.codec import Decoded, Decoder, Malformed
from millrace.client.values.json_decoder import JsonDecoder

from .arrow_decoder import ArrowDecoder
from .arrow_types import arrow_fields
from .encoder import Encoded, ValueEncoder
from .formats import Mode, ValueFormat

__all__ = [
    "ArrowDecoder",
    "Decoded",
    "Decoder",
    "Encoded",
    "JsonDecoder",
    "Malformed",
    "Mode",
    "ValueEncoder",
    "ValueFormat",
    "arrow_fields",
]
