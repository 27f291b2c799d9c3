"""Traces of OpenTelemetry that follow an event: see `millrace.client.tracing`."""

from millrace.client.tracing import extract, inject, process, write

__all__ = ["extract", "inject", "process", "write"]
