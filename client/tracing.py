"""Traces of OpenTelemetry that follow an event: from who writes it, through its headers, to who reads it.

    future = tracing.write(writer, b"...", key="customer-3")            # a span "send shop/orders" until it is durable
    with tracing.process(event, stream="shop/orders"):                  # a span "process shop/orders", linked to that
        ...

The context of the sender's span is in the headers `traceparent` and `tracestate` of the event, as W3C Trace Context
has them; so other tools that write or read these headers join in. Names and attributes of the spans are those of the
semantic conventions of OpenTelemetry for messaging.

Needs `opentelemetry-api` (`pip install 'millrace-streams[otel]'`); nothing else imports this module, so it costs
nothing where it is not used. Without an SDK in the process all of it does nothing. Each traced event costs a span: of a
million events a second, trace some, which is up to the sampler of the SDK.
"""

import asyncio
import concurrent.futures
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, overload

from millrace.client.blocking import Writer as BlockingWriter
from millrace.client.write.events import WriteResult
from millrace.client.write.writer import Writer
from millrace.model.event import Event
from millrace.model.extras import needs

with needs("otel"):
    from opentelemetry import context, trace
    from opentelemetry.context import Context
    from opentelemetry.propagators.textmap import Getter, Setter
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

SYSTEM: Final = "millrace"
_PROPAGATOR: Final = TraceContextTextMapPropagator()


@overload
def write(
    writer: Writer,
    value: bytes,
    *,
    key: str | None = None,
    sequence: int | None = None,
    timestamp_us: int | None = None,
    headers: Mapping[str, bytes] | None = None,
) -> "asyncio.Future[WriteResult]": ...


@overload
def write(
    writer: BlockingWriter,
    value: bytes,
    *,
    key: str | None = None,
    sequence: int | None = None,
    timestamp_us: int | None = None,
    headers: Mapping[str, bytes] | None = None,
) -> "concurrent.futures.Future[WriteResult]": ...


def write(
    writer: Writer | BlockingWriter,
    value: bytes,
    *,
    key: str | None = None,
    sequence: int | None = None,
    timestamp_us: int | None = None,
    headers: Mapping[str, bytes] | None = None,
) -> "asyncio.Future[WriteResult] | concurrent.futures.Future[WriteResult]":
    """Write an event as `writer.write` does, under a span of its own that ends when it is durable, or has failed.

    Args:
        writer: of either client.
        key, sequence, timestamp_us: see `writer.write`.
        headers: of the event; those of the trace are added.

    Raises:
        Whatever `writer.write` raises; the span ends with that.
    """
    span = _tracer().start_span(
        f"send {writer.stream}",
        kind=SpanKind.PRODUCER,
        attributes={**_attributes("send", writer.stream), "messaging.message.body.size": len(value)},
    )
    carried = inject(headers, within=trace.set_span_in_context(span)) or None
    try:
        future = writer.write(value, key=key, sequence=sequence, timestamp_us=timestamp_us, headers=carried)
    except BaseException as error:
        _end(span, error)
        raise
    future.add_done_callback(lambda done: _end(span, None if done.cancelled() else done.exception()))
    return future


@contextmanager
def process(event: Event, *, stream: str, as_child: bool = False) -> Iterator[Span]:
    """Run the body under a span for the processing of an event, linked to the span that sent it, if there was one.

    An error of the body is recorded in the span, and raised.

    Args:
        stream: where the event was read.
        as_child: continue the trace of the sender, instead of a link to it: for one event at a time.
    """
    sender = extract(event.headers_or_none)
    sent = trace.get_current_span(sender).get_span_context()
    with _tracer().start_as_current_span(
        f"process {stream}",
        context=sender if as_child and sent.is_valid else None,
        kind=SpanKind.CONSUMER,
        links=[Link(sent)] if sent.is_valid else [],
        attributes={
            **_attributes("process", stream),
            "messaging.destination.partition.id": str(event.segment),
            "messaging.message.id": f"{event.segment}/{event.offset}/{event.index}",
            "messaging.message.body.size": len(event.value),
        },
    ) as span:
        try:
            yield span
        except Exception as error:
            span.set_attribute("error.type", type(error).__qualname__)
            raise


def inject(headers: Mapping[str, bytes] | None = None, *, within: Context | None = None) -> dict[str, bytes]:
    """Return headers with the current span, for `write_many`, transactions, and whatever else takes headers.

    Args:
        headers: to begin with; not changed. What they have of another trace is replaced.
        within: the context to take the span from, if not the current one.
    """
    carried = dict(headers or {})
    _PROPAGATOR.inject(carried, context=within, setter=_SETTER)
    return carried


def extract(headers: Mapping[str, bytes] | None) -> Context:
    """Return a context with the span that sent an event with these headers; an empty one if they tell of none."""
    return _PROPAGATOR.extract(headers or {}, context=context.Context(), getter=_GETTER)


class _HeaderSetter(Setter[dict[str, bytes]]):
    def set(self, carrier: dict[str, bytes], key: str, value: str) -> None:
        carrier[key] = value.encode()


class _HeaderGetter(Getter[Mapping[str, bytes]]):
    def get(self, carrier: Mapping[str, bytes], key: str) -> list[str] | None:
        # Anybody may write headers: what is no text is no trace.
        return [carrier[key].decode(errors="replace")] if key in carrier else None

    def keys(self, carrier: Mapping[str, bytes]) -> list[str]:
        return list(carrier)


_SETTER: Final = _HeaderSetter()
_GETTER: Final = _HeaderGetter()


def _tracer() -> trace.Tracer:
    return trace.get_tracer("millrace")


def _attributes(operation: str, stream: str) -> dict[str, str]:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": stream,
    }


def _end(span: Span, error: BaseException | None) -> None:
    if error is not None:
        span.record_exception(error)
        span.set_attribute("error.type", type(error).__qualname__)
        span.set_status(Status(StatusCode.ERROR, str(error)))
    span.end()
