"""Spans that follow events over a real server, as the exporter in memory has them."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags

import millrace
from millrace import tracing
from millrace.client.testing import TestServer
from millrace.model.errors import InvalidArgumentError

EXPORTER = InMemorySpanExporter()


@pytest.fixture(scope="module", autouse=True)
def provider() -> None:
    """Of the process: it can be set once."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(EXPORTER))
    trace.set_tracer_provider(provider)


@pytest.fixture(autouse=True)
def _no_spans() -> Iterator[None]:
    EXPORTER.clear()
    yield
    EXPORTER.clear()


def spans(kind: SpanKind) -> list[ReadableSpan]:
    return [span for span in EXPORTER.get_finished_spans() if span.kind is kind]


def context_of(span: ReadableSpan) -> SpanContext:
    context: SpanContext | None = span.context
    assert context is not None
    return context


@pytest.mark.asyncio
async def test_a_span_follows_an_event_from_its_writer_to_its_reader(server: TestServer) -> None:
    async with millrace.connect(server.address) as client:
        await client.create_stream("shop/traced")
        with trace.get_tracer("shop").start_as_current_span("order") as order:
            async with client.writer("shop/traced") as writer:
                await tracing.write(writer, b"bike", key="k", headers={"colour": b"red"})
        async with client.reader("shop/traced", end=millrace.TAIL) as reader:
            (event,) = [event async for event in reader]
        with tracing.process(event, stream="shop/traced") as linked:
            assert trace.get_current_span() is linked
        with tracing.process(event, stream="shop/traced", as_child=True):
            pass

    (sent,) = spans(SpanKind.PRODUCER)
    assert event.headers["colour"] == b"red"
    sent_context = context_of(sent)
    expected = f"00-{sent_context.trace_id:032x}-{sent_context.span_id:016x}-"
    assert event.headers["traceparent"].decode().startswith(expected)
    assert sent.name == "send shop/traced"
    assert sent.parent is not None
    assert sent.parent.span_id == order.get_span_context().span_id
    assert sent.attributes == {
        "messaging.system": "millrace", "messaging.operation.name": "send", "messaging.operation.type": "send",
        "messaging.destination.name": "shop/traced", "messaging.message.body.size": 4,
    }  # fmt: skip

    one, child = spans(SpanKind.CONSUMER)
    assert [link.context.span_id for link in one.links] == [context_of(sent).span_id]
    assert context_of(one).trace_id != context_of(sent).trace_id
    assert one.name == "process shop/traced"
    assert one.attributes is not None
    assert one.attributes["messaging.message.id"] == f"{event.segment}/{event.offset}/{event.index}"
    assert child.parent is not None
    assert (child.parent.span_id, context_of(child).trace_id) == (context_of(sent).span_id, context_of(sent).trace_id)


def test_the_client_for_threads_and_transactions_carry_it_too(server: TestServer) -> None:
    with millrace.blocking.connect(server.address) as client:
        client.create_stream("shop/blocking")
        with client.writer("shop/blocking") as writer:
            tracing.write(writer, b"one").result()
        with (
            trace.get_tracer("shop").start_as_current_span("order") as order,
            client.transaction("shop/blocking") as txn,
        ):
            txn.write(b"two", headers=tracing.inject())
        with client.reader("shop/blocking", end=millrace.TAIL) as reader:
            headers = [event.headers for event in reader]

    (sent,) = spans(SpanKind.PRODUCER)
    found = [trace.get_current_span(tracing.extract(each)).get_span_context().span_id for each in headers]
    assert found == [context_of(sent).span_id, order.get_span_context().span_id]


@pytest.mark.asyncio
async def test_what_fails_is_told_by_its_span(server: TestServer) -> None:
    async with millrace.connect(server.address) as client:
        await client.create_stream("shop/failing")
        async with client.writer("shop/failing") as writer:
            with pytest.raises(InvalidArgumentError):
                _ = tracing.write(writer, b"x", key="\ud800")
            await tracing.write(writer, b"x")
            await client.seal_stream("shop/failing")
            future = tracing.write(writer, b"y")
            with pytest.raises(millrace.StreamSealedError):
                await future
            with pytest.raises(millrace.StreamSealedError):
                await writer.flush()
        async with client.reader("shop/failing") as reader:
            async for event in reader:
                with pytest.raises(LookupError), tracing.process(event, stream="shop/failing"):
                    raise LookupError("no such customer")

    assert [span.status.status_code for span in spans(SpanKind.PRODUCER)] == [
        StatusCode.ERROR, StatusCode.UNSET, StatusCode.ERROR
    ]  # fmt: skip
    kinds = [span.attributes and span.attributes.get("error.type") for span in spans(SpanKind.PRODUCER)]
    assert kinds == ["InvalidArgumentError", None, "StreamSealedError"]
    (failed,) = spans(SpanKind.CONSUMER)
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.attributes is not None
    assert failed.attributes["error.type"] == "LookupError"
    assert [each.name for each in failed.events] == ["exception"]


def test_without_a_span_no_header_is_added() -> None:
    assert tracing.inject({"colour": b"red"}) == {"colour": b"red"}
    assert tracing.extract(None) == tracing.extract({"colour": b"red"}) == {}


@given(st.dictionaries(st.sampled_from(["traceparent", "tracestate"]), st.binary(max_size=60)))
def test_headers_of_others_that_are_no_trace_are_ignored(headers: dict[str, bytes]) -> None:
    assert not trace.get_current_span(tracing.extract(headers)).get_span_context().is_valid


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans())
def test_what_is_injected_is_extracted(trace_id: int, span_id: int, sampled: bool) -> None:
    flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
    span = SpanContext(trace_id, span_id, is_remote=False, trace_flags=flags)
    given_headers = {"traceparent": b"of another trace"}
    headers = tracing.inject(given_headers, within=trace.set_span_in_context(NonRecordingSpan(span)))

    found = trace.get_current_span(tracing.extract(headers)).get_span_context()

    assert (found.trace_id, found.span_id, found.trace_flags) == (trace_id, span_id, flags)
    assert given_headers == {"traceparent": b"of another trace"}


@pytest.mark.slow
def test_who_does_not_trace_does_not_load_it() -> None:
    code = "import sys, millrace.client.api, millrace.blocking; sys.exit('opentelemetry' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
