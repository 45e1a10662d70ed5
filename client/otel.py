"""Spans of OpenTelemetry for puts and for the work on items, and their context in a header: the extra `otel`.

    client = Client("127.0.0.1", 22133, tracing=Tracing())

Names and attributes are those of the semantic conventions for messaging: `send jobs` by the producer, `process jobs` by
the consumer, which is a trace of its own with a link to the producer's span, as an item may be delivered again. What is
propagated is the program's choice, `opentelemetry.propagate`: by default `traceparent`, `tracestate` and `baggage`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import propagate, trace

from staniel.client.headers import ItemWithHeaders, JobWithHeaders

SYSTEM = "staniel"


class Tracing:
    """The spans and headers of a client, or of several."""

    def __init__(self, provider: trace.TracerProvider | None = None) -> None:
        """Use the tracers of `provider`, of the global one if it is None."""
        self._tracer = trace.get_tracer("staniel.client", tracer_provider=provider)

    @contextmanager
    def sending(self, queue: str, count: int) -> Iterator[Mapping[str, str]]:
        """Begin the span of a put, and yield the headers that carry its context."""
        attributes: dict[str, str | int] = {**_of(queue), "messaging.operation.type": "send"}
        if count != 1:
            attributes["messaging.batch.message_count"] = count
        with self._tracer.start_as_current_span(f"send {queue}", kind=trace.SpanKind.PRODUCER, attributes=attributes):
            headers: dict[str, str] = {}
            propagate.inject(headers)
            yield headers

    @contextmanager
    def processing(self, queue: str, item: ItemWithHeaders | JobWithHeaders) -> Iterator[object]:
        """Begin the span of the work on an item or a job, with a link to the span that put it."""
        sender = trace.get_current_span(propagate.extract(item.headers)).get_span_context()
        links = [trace.Link(sender)] if sender.is_valid else []
        attributes: dict[str, str | int] = {
            **_of(queue),
            "messaging.operation.type": "process",
            "messaging.message.body.size": len(item.data if isinstance(item, ItemWithHeaders) else item.payload),
        }
        if item.id is not None:
            attributes["messaging.message.id"] = str(item.id)
        with self._tracer.start_as_current_span(
            f"process {queue}", kind=trace.SpanKind.CONSUMER, attributes=attributes, links=links
        ) as span:
            yield span


def _of(queue: str) -> dict[str, str | int]:
    return {"messaging.system": SYSTEM, "messaging.destination.name": queue}
