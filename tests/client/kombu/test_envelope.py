"""Messages as bytes: bodies of both kinds come back, and anything else is told from a message."""

from __future__ import annotations

import importlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.programs("python:kombu")


def envelope() -> Any:
    return importlib.import_module("staniel.client.kombu.envelope")


@pytest.mark.parametrize("body", ["", "text ü", b"", b"\x00\xff\r\nEND\r\n"])
def test_a_body_comes_back_as_it_was(body: str | bytes) -> None:
    message = {"body": body, "headers": {"id": "1"}, "properties": {"priority": 3, "delivery_info": {}}}
    assert envelope().decode(envelope().encode(message)) == message


def test_a_binary_body_is_not_inflated() -> None:
    message = {"body": b"\xff" * 100_000, "headers": {}, "properties": {}}
    assert len(envelope().encode(message)) < 100_200


def test_a_task_that_another_program_wrote_as_json_is_read() -> None:
    data = json.dumps({"body": "[]", "properties": {}}).encode()
    assert envelope().decode(data) == {"body": "[]", "properties": {"delivery_info": {}}, "headers": {}}


@given(st.binary(max_size=40) | st.binary(max_size=40).map(lambda tail: b"\x01K\x00\x00\x00\x05" + tail))
def test_any_other_bytes_are_undecodable(data: bytes) -> None:
    with pytest.raises(envelope().UndecodableItem):
        envelope().decode(data)


@pytest.mark.parametrize("json_text", [b"{}", b'{"body": 1}', b'{"body": 1, "properties": []}', b'{"body"'])
def test_json_that_is_no_message_is_undecodable(json_text: bytes) -> None:
    with pytest.raises(envelope().UndecodableItem):
        envelope().decode(json_text)
