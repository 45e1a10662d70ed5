"""Headers of an item, and the spans of OpenTelemetry whose context they carry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staniel.client import Jobs
from staniel.client.headers import HEAD_BYTES_MAX, MARK, ItemWithHeaders, JobWithHeaders, split, with_headers
from staniel.protocol.client.replies import Item
from tests.client.kinds import each_kind, play
from tests.support.process import Server, running
from tests.support.wire import drain

Make = Callable[..., Any]
names = st.from_regex(r"[!-9;-~]{1,20}", fullmatch=True)
values = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40)


@given(st.binary(max_size=60), st.dictionaries(names, values, max_size=4))
def test_what_was_put_with_headers_is_read_with_them(data: bytes, headers: dict[str, str]) -> None:
    assert split(Item(with_headers(data, headers), 7, 9, b"q")) == ItemWithHeaders(data, 7, 9, b"q", headers)


def test_a_plain_reader_gets_the_headers_as_lines_before_the_payload() -> None:
    assert with_headers(b"pay\r\nload", {"traceparent": "00-ab-cd-01"}) == (
        b"%staniel-headers/1 26\r\ntraceparent: 00-ab-cd-01\r\npay\r\nload"
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"payload",
        MARK,
        MARK + b"5\r\n",
        MARK + b"5\r\nabc",
        MARK + b"5\r\nabcde",
        MARK + b"5\r\nabc\r\n",
        MARK + b"-1\r\nabc",
        MARK + b"999999\r\nabc",
        MARK + b"\r\n",
        b" " + with_headers(b"x", {"a": "b"}),
    ],
)
def test_data_without_whole_headers_is_left_as_it_is(data: bytes) -> None:
    assert split(Item(data)) == ItemWithHeaders(data)


@given(st.binary(max_size=40))
def test_no_bytes_raise(tail: bytes) -> None:
    found = split(Item(MARK + tail))
    assert found.data == MARK + tail or found.data in tail


@pytest.mark.parametrize(
    "headers", [{"": "a"}, {"a b": "c"}, {"a:": "c"}, {"a": "b\r\nc: d"}, {"a": "ä"}, {"a": "b" * HEAD_BYTES_MAX}]
)
def test_headers_that_are_no_lines_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="header"):
        with_headers(b"", headers)


class Letters:
    """A tracing of a program's own, which numbers the items and remembers what was done with them."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    @contextmanager
    def sending(self, queue: str, count: int) -> Iterator[dict[str, str]]:
        self.seen.append(f"send {count} to {queue}")
        yield {"number": str(len(self.seen))}

    @contextmanager
    def processing(self, queue: str, item: ItemWithHeaders) -> Iterator[None]:
        self.seen.append(f"begin {item.headers}")
        try:
            yield
        except Exception:
            self.seen.append("failed")
            raise
        self.seen.append("end")


@each_kind
@pytest.mark.parametrize("several", [False, True])
def test_every_read_takes_the_headers_apart(server: Server, kind: str, several: bool) -> None:
    letters = Letters()

    async def body(make: Make) -> None:
        client = make([server.address], tracing=letters) if several else make(*server.address, tracing=letters)
        async with client:
            await client.put("jobs", b"a")
            await client.put_many("jobs", [b"b", b"c"])
            found = await client.peek("jobs")
            assert (found.data, found.headers) == (b"a", {"number": "1"})
            async with client.reserve("jobs") as item:
                assert item.data == b"a"
            with suppress(ZeroDivisionError):
                async with client.reserve("jobs") as item:
                    raise ZeroDivisionError
            held = await client.open("jobs")
            assert (held.data, held.headers) == (b"b", {"number": "2"})
            await client.extend(held)
            await client.confirm(held)
            assert (await client.get("jobs")).headers == {"number": "2"}
            await client.put_many("jobs", [b"d", b"e"])
            items, _ = await client.next_items("jobs", 1)
            assert [(item.data, item.headers) for item in items] == [(b"d", {"number": "7"})]
            await client.next_items("jobs", 0, confirm=items)
            async with client.monitor("jobs", wait_s=1, max_items=1) as monitored:
                assert [(item.data, item.headers) async for item in monitored] == [(b"e", {"number": "7"})]

    play(kind, body, of="MultiClient" if several else "Client")
    assert letters.seen[:6] == [
        "send 1 to jobs",
        "send 2 to jobs",
        "begin {'number': '1'}",
        "end",
        "begin {'number': '2'}",
        "failed",
    ]


@each_kind
def test_items_without_headers_are_read_as_well_and_the_others_whole_by_a_plain_reader(
    server: Server, kind: str
) -> None:
    async def body(make: Make) -> None:
        async with make(*server.address) as plain, make(*server.address, tracing=Letters()) as traced:
            await plain.put("jobs", b"a")
            item = await traced.get("jobs")
            assert (item.data, item.headers) == (b"a", {})
            await traced.put("jobs", b"b")

    play(kind, body)
    assert drain(server.address, "jobs") == [b"%staniel-headers/1 11\r\nnumber: 1\r\nb"]


def spans() -> tuple[Any, Any]:
    """Return an exporter that keeps the spans of the provider beside it."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter, provider


@pytest.fixture
def job_server(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path, "--workq-port", "0") as server:
        yield server


@each_kind
def test_jobs_carry_headers_which_a_plain_client_gets_as_a_part_of_the_payload(job_server: Server, kind: str) -> None:
    letters = Letters()

    async def body(make: Make) -> None:
        async with make(*job_server.workq_address, tracing=letters) as jobs, make(*job_server.workq_address) as plain:
            await jobs.add("mail", b"a")
            await jobs.schedule("mail", b"b", datetime.now(UTC) + timedelta(milliseconds=50))
            await plain.add("plain", b"c")
            job, other = await jobs.lease("mail", wait_s=10), await plain.lease("mail", wait_s=10)
            assert (job.payload, job.headers) == (b"a", {"number": "1"})
            assert other.payload == b"%staniel-headers/1 11\r\nnumber: 2\r\nb"
            with letters.processing(job.name, job):
                await jobs.complete(job, b"done")
            assert (await jobs.result(job)).data == b"done"
            job = await jobs.lease("plain")
            assert (job.payload, job.headers) == (b"c", {})
            assert await jobs.lease("mail") is None

    play(kind, body, of="Jobs")
    assert letters.seen == ["send 1 to mail", "send 1 to mail", "begin {'number': '1'}", "end"]


@pytest.mark.programs("python:opentelemetry.sdk")
def test_the_work_on_a_job_is_linked_to_the_span_that_added_it(job_server: Server) -> None:
    from staniel.client.otel import Tracing

    exporter, provider = spans()
    tracing = Tracing(provider)
    with Jobs(*job_server.workq_address, tracing=tracing) as jobs:
        id = jobs.add("mail", b"a")
        job = jobs.lease("mail", wait_s=10)
        assert isinstance(job, JobWithHeaders)
        with tracing.processing("mail", job):
            jobs.complete(job)
    sent, processed = exporter.get_finished_spans()
    assert [span.name for span in (sent, processed)] == ["send mail", "process mail"]
    assert processed.links[0].context.span_id == sent.context.span_id
    assert processed.attributes["messaging.message.id"] == id


@each_kind
@pytest.mark.programs("python:opentelemetry.sdk")
def test_the_work_on_an_item_is_linked_to_the_span_that_put_it(server: Server, kind: str, tmp_path: Path) -> None:
    from staniel.client.otel import Tracing

    exporter, provider = spans()
    tracer = provider.get_tracer("test")

    async def body(make: Make) -> None:
        async with make(*server.address, tracing=Tracing(provider)) as client:
            with tracer.start_as_current_span("request"):
                await client.put("jobs", b"a")
            with suppress(ZeroDivisionError):
                async with client.reserve("jobs"):
                    with tracer.start_as_current_span("step"):
                        pass
                    raise ZeroDivisionError
            async with client.reserve("jobs"):
                pass

    play(kind, body)
    sent, request, step, failed, processed = exporter.get_finished_spans()
    assert [span.name for span in (sent, failed, processed)] == ["send jobs", "process jobs", "process jobs"]
    assert sent.parent.span_id == request.context.span_id
    assert step.parent.span_id == failed.context.span_id
    assert [span.links[0].context.span_id for span in (failed, processed)] == [sent.context.span_id] * 2
    assert (failed.parent, failed.status.is_ok, processed.status.is_ok) == (None, False, True)
    assert dict(sent.attributes) == {
        "messaging.system": "staniel",
        "messaging.destination.name": "jobs",
        "messaging.operation.type": "send",
    }
    assert processed.attributes["messaging.message.body.size"] == 1
