"""Typed values: what both ends make of the rows of a schema, as JSON or as Arrow. Pure: nothing here waits or asks."""

from .arrow_decoder import ArrowDecoder
from .arrow_types import arrow_fields
from .codec import Decoded, Decoder, Malformed
from .encoder import Encoded, ValueEncoder
from .formats import Mode, ValueFormat
from .json_decoder import JsonDecoder

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
