"""The sans-IO client for jobs: what it writes is what the server's parser reads, what it reads does not depend on how
the bytes are cut.
"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from staniel.protocol.client.conversation import REPLY_LINE_BYTES_MAX, ConversationState
from staniel.protocol.client.replies import Error, Fault, ProtocolViolation
from staniel.protocol.client.workq.conversation import JobConversation
from staniel.protocol.client.workq.replies import Inspected, Job, JobAnswer, JobReply, JobResult
from staniel.protocol.client.workq.requests import encode
from staniel.protocol.limits import Limits
from staniel.protocol.workq.job_requests import AddJob, DeleteJob, LeaseJob
from staniel.protocol.workq.job_terms import JobTerms
from staniel.protocol.workq.parser import WorkqParser
from staniel.protocol.workq.requests import (
    AwaitResult,
    FinishJob,
    InspectJob,
    InspectQueue,
    InspectQueues,
    InspectServer,
    RunJob,
    ScheduleJob,
    WorkqRequest,
)
from tests.support.feeding import cut

ID = bytes.fromhex("6ba7b8109dad41d180b400c04fd430c8")
SHOWN = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
ids = st.binary(min_size=16, max_size=16).map(lambda raw: raw[:6] + b"\x41" + raw[7:8] + b"\x81" + raw[9:])
names = st.text("abcXYZ019_.-", min_size=1, max_size=40).map(str.encode)
data = st.binary(max_size=60)
terms = st.builds(
    JobTerms, names, st.integers(1, 86_400_000), st.integers(1, 2_592_000_000), st.integers(-(2**31), 2**31 - 1),
    st.integers(0, 255), st.integers(0, 255),
)  # fmt: skip
waits = st.integers(0, 86_400_000)
requests = st.one_of(
    st.tuples(ids, terms, data).map(lambda parts: AddJob(*parts)),
    st.builds(ScheduleJob, ids, terms, st.integers(0, 2**63 - 1), data),
    st.builds(LeaseJob, st.lists(names, min_size=1, max_size=4).map(tuple), waits),
    st.builds(FinishJob, ids, data, st.booleans()),
    st.builds(DeleteJob, ids),
    st.builds(AwaitResult, ids, waits),
    st.builds(InspectJob, ids),
    st.builds(InspectQueue, names),
    st.builds(InspectQueues, st.integers(0, 2**32 - 1), st.integers(1, 100)),
    st.just(InspectServer()),
)
COMPILED_FIELDS = {
    "AddJob": ("id", "terms", "payload"),
    "LeaseJob": ("names", "wait_ms", "has_invalid_name"),
    "DeleteJob": ("id",),
}
cuts = st.lists(st.integers(0, 60), max_size=30)


def plain(request: WorkqRequest) -> object:
    """Return the name of the class and the values of its fields. Compiled classes do not list their fields."""
    name = type(request).__name__
    if name not in COMPILED_FIELDS:
        return name, msgspec.to_builtins(request)
    return name, [msgspec.to_builtins(getattr(request, field)) for field in COMPILED_FIELDS[name]]


@given(st.lists(requests, max_size=6), cuts)
def test_the_server_reads_the_requests_that_the_client_wrote(written: list[WorkqRequest], sizes: list[int]) -> None:
    parser = WorkqParser(Limits())
    said = JobConversation().send(*written)
    assert [plain(each) for piece in cut(said, sizes) for each in parser.feed(piece)] == [plain(w) for w in written]


WRONG = [
    AddJob(bytes(16), JobTerms(b"q", 1, 1), b""),
    AddJob(ID, JobTerms(b"a b", 1, 1), b""),
    AddJob(ID, JobTerms(b"q", 0, 1), b""),
    AddJob(ID, JobTerms(b"q", 86_400_001, 1), b""),
    AddJob(ID, JobTerms(b"q", 1, 2_592_000_001), b""),
    AddJob(ID, JobTerms(b"q", 1, 1, 2**31), b""),
    AddJob(ID, JobTerms(b"q", 1, 1, 0, 256), b""),
    AddJob(ID, JobTerms(b"q", 1, 1), bytes((1 << 20) + 1)),
    ScheduleJob(ID, JobTerms(b"q", 1, 1), 2**63, b""),
    LeaseJob((), 0),
    LeaseJob((b"q",) * 1023, 0),
    LeaseJob((b"q",), 86_400_001),
    InspectQueues(0, 101),
    RunJob(ID, JobTerms(b"q", 1, 0), 1, b""),
]


@pytest.mark.parametrize("wrong", WRONG, ids=range(len(WRONG)))
def test_what_the_protocol_cannot_express_is_not_written(wrong: WorkqRequest) -> None:
    conversation = JobConversation()
    with pytest.raises(ValueError):
        conversation.send(DeleteJob(ID), wrong)
    assert conversation.unanswered == 0
    with pytest.raises(ValueError):
        encode(wrong)


def read(said: bytes, *asked: WorkqRequest) -> list[JobReply]:
    """What `said` means after requests, read whole and byte by byte."""
    whole, dripped = JobConversation(), JobConversation()
    whole.send(*asked)
    dripped.send(*asked)
    replies = whole.receive(said)
    assert [reply for at in range(len(said)) for reply in dripped.receive(said[at : at + 1])] == replies
    assert (dripped.state, dripped.unanswered) == (whole.state, whole.unanswered)
    return replies


LEASE, AWAIT, ADD = LeaseJob((b"q",), 9), AwaitResult(ID, 9), AddJob(ID, JobTerms(b"q", 1, 1), b"")


def test_replies_are_matched_to_requests_in_order() -> None:
    said = b"+OK\r\n-CLIENT-ERROR Duplicate job\r\n+OK 1\r\n%b q 60000 4\r\n\r\n+O\r\n-TIMEOUT\r\n" % SHOWN.encode()
    said += b"+OK 1\r\n%b 0 1\r\nx\r\n-NOT-FOUND\r\n-CLIENT-ERROR Duplicate result\r\n-SERVER-ERROR no\r\n" % (
        SHOWN.encode()
    )
    finish = FinishJob(ID, b"", True)
    assert read(said, ADD, ADD, LEASE, LEASE, AWAIT, DeleteJob(ID), finish, finish) == [
        JobAnswer.OK,
        JobAnswer.DUPLICATE_JOB,
        Job(SHOWN, "q", 60000, b"\r\n+O"),
        JobAnswer.TIMEOUT,
        JobResult(SHOWN, False, b"x"),
        JobAnswer.NOT_FOUND,
        JobAnswer.DUPLICATE_RESULT,
        Error(Fault.SERVER, "no"),
    ]


def test_an_inspected_payload_may_hold_anything() -> None:
    said = b"+OK 1\r\n%b 3\r\nname q\r\npayload-size 9\r\npayload a\r\nstate \r\n" % SHOWN.encode()
    (reply,) = read(said, InspectJob(ID))
    assert reply == Inspected({SHOWN: {"name": b"q", "payload-size": b"9", "payload": b"a\r\nstate "}})
    (server,) = read(b"+OK 1\r\nserver 2\r\nactive-clients 1\r\nevicted-jobs 0\r\nstarted x\r\n", InspectServer())
    assert isinstance(server, Inspected) and list(server.objects["server"]) == [
        "active-clients", "evicted-jobs", "started",
    ]  # fmt: skip
    assert read(b"+OK 0\r\n", InspectQueues(0, 9)) == [Inspected({})]


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        (b"STORED\r\n", ADD),
        (b"+OK\n", ADD),
        (b"+OK\r\n", LEASE),
        (b"-TIMEOUT\r\n", ADD),
        (b"+OK 2\r\n", LEASE),
        (b"+OK 1\r\nno lease\r\n", LEASE),
        (b"+OK 1\r\n%b q 1 3\r\nabcd\r\n" % SHOWN.encode(), LEASE),
        (b"+OK 1\r\n%b q 1 9999999\r\n" % SHOWN.encode(), LEASE),
        (b"+OK 1\r\n%b 2 3\r\n" % SHOWN.encode(), AWAIT),
        (b"+OK 1\r\n", ADD),
        (b"+OK 1\r\nx 2\r\npayload-size z\r\nx y\r\n", InspectJob(ID)),
        (b"+OK 1\r\nx 2\r\npayload-size 1\r\nnothing 1\r\n", InspectJob(ID)),
        (b"x" * (REPLY_LINE_BYTES_MAX + 2), ADD),
    ],
)
def test_other_bytes_are_a_violation_and_nothing_behind_them_is_read(said: bytes, asked: WorkqRequest) -> None:
    conversation = JobConversation()
    conversation.send(asked, ADD)
    (bad,) = conversation.receive(said)
    assert isinstance(bad, ProtocolViolation)
    assert (conversation.state, conversation.receive(b"+OK\r\n")) == (ConversationState.ERROR, [])


def test_bytes_that_were_not_asked_for_are_a_violation() -> None:
    assert [type(each) for each in JobConversation().receive(b"+OK\r\n")] == [ProtocolViolation]


@given(st.binary(max_size=200), requests, cuts)
def test_no_bytes_raise(said: bytes, asked: WorkqRequest, sizes: list[int]) -> None:
    conversation = JobConversation()
    conversation.send(asked, asked)
    for piece in cut(said, sizes):
        conversation.receive(piece)
