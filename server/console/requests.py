"""Parameters of requests to the console, and error responses."""

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs

from millrace.client.errors import OffsetBeyondEndError, SegmentTruncatedError, StreamNotFoundError
from millrace.model.errors import InvalidArgumentError, MillraceError

from .listener import HttpResponse

RETRY_AFTER_S: Final = 5
NUMBER_DIGITS_MAX: Final = 19
"""Of a number in a query."""


class RefusedError(Exception):
    """A request that is answered with an error.

    Args:
        delay_s: how long the answer is withheld.
    """

    def __init__(
        self, status: HTTPStatus, problem: str, headers: Mapping[str, str] | None = None, *, delay_s: float = 0.0
    ) -> None:
        super().__init__(problem)
        self._status = status
        self._headers = dict(headers or {})
        self._delay_s = delay_s

    def response(self, headers: Mapping[str, str]) -> HttpResponse:
        """Return the response, with more headers."""
        response = json_response(self._status, {"error": str(self)}, {**self._headers, **headers})
        return replace(response, delay_s=self._delay_s)


def json_response(status: HTTPStatus, content: Any, headers: Mapping[str, str] | None = None) -> HttpResponse:
    """Return JSON as an answer."""
    body = json.dumps(content, indent=2, default=str).encode() + b"\n"
    return HttpResponse(status, "application/json", body, headers or {})


def refusal_of(error: MillraceError) -> RefusedError:
    """Return the error response for an exception."""
    if isinstance(error, StreamNotFoundError):
        return RefusedError(HTTPStatus.NOT_FOUND, f"{error}; `millrace stream list` lists the streams")
    if error.retriable:
        headers = {"Retry-After": str(RETRY_AFTER_S)}
        return RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, f"the server cannot be read now: {error}", headers)
    if isinstance(error, SegmentTruncatedError):
        return RefusedError(HTTPStatus.GONE, str(error))
    if isinstance(error, InvalidArgumentError | OffsetBeyondEndError):
        return RefusedError(HTTPStatus.BAD_REQUEST, str(error))
    return RefusedError(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")


def parameters_of(query: str, *, names: Collection[str], subject: str) -> dict[str, str]:
    """Return the parameters of a query.

    Args:
        names: the known parameters.
        subject: the kind of request, for the error: `a feed`.

    Raises:
        InvalidArgumentError: a parameter is unknown, or given twice.
    """
    try:
        found = parse_qs(query, keep_blank_values=True, strict_parsing=True, errors="strict") if query else {}
    except ValueError:
        raise InvalidArgumentError(
            "the query is not of the form NAME=VALUE&NAME=VALUE, in UTF-8, escaped with %"
        ) from None
    for name, values in found.items():
        if name not in names:
            known = f"it takes {', '.join(names)}" if names else "it takes none"
            raise InvalidArgumentError(f"{name[:100]!r} is not a parameter of {subject}; {known}")
        if len(values) > 1:
            raise InvalidArgumentError(f"{name} is given {len(values)} times; give it once")
    return {name: values[0] for name, values in found.items()}


def number_of(parameters: Mapping[str, str], name: str, *, default: int, low: int, high: int) -> int:
    """Return a whole number among parameters.

    Raises:
        InvalidArgumentError: it is not a whole number, or outside of its bounds.
    """
    text = parameters.get(name)
    if text is None:
        return default
    # The digits are counted before they are parsed: an unauthenticated peer chooses their number.
    if not (text.isascii() and text.isdigit() and len(text) <= NUMBER_DIGITS_MAX and low <= int(text) <= high):
        raise InvalidArgumentError(f"{name} must be a whole number from {low} to {high}, not {text[:20]!r}")
    return int(text)
