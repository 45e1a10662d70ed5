"""Sizes, durations and addresses: what is understood and what is not."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staniel.broker.config.addresses import Address, TcpAddress, UnixAddress, format_address, parse_address
from staniel.broker.config.values import (
    DURATION_UNITS,
    SIZE_UNITS,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)
from staniel.queues.names import name_error

AMOUNTS = st.integers(0, 2**63 - 1)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0B", 0),
        ("1b", 1),
        ("64 KB", 65536),
        ("64kb", 65536),
        ("128MB", 128 << 20),
        ("1.5GB", 3 << 29),
        ("1TB", 1 << 40),
        ("0.1B", 1),
        ("1.0001KB", 1025),
    ],
)
def test_a_size_is_read(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    "text", ["", "1", "KB", "-1KB", "1 XB", "1e3KB", "1,5GB", ".5GB", "1.GB", " 1KB", "1KB ", "1KiB", "٣KB"]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape("units B KB MB GB TB")):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("50ms", 50),
        ("30s", 30_000),
        ("1m", 60_000),
        ("2h", 7_200_000),
        ("1d", 86_400_000),
        ("1.5 s", 1500),
        ("0.4ms", 1),
    ],
)
def test_a_duration_is_read(text: str, duration_ms: int) -> None:
    assert parse_duration(text) == duration_ms


@pytest.mark.parametrize("text", ["", "5", "s", "-1s", "1M", "1 min", "1w", "1s 5ms", "inf s", "9" * 5000 + "s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="units ms s m h d"):
        parse_duration(text)


@given(AMOUNTS)
def test_every_size_survives_being_written(size_bytes: int) -> None:
    assert parse_size(format_size(size_bytes)) == size_bytes


@given(AMOUNTS)
def test_every_duration_survives_being_written(duration_ms: int) -> None:
    assert parse_duration(format_duration(duration_ms)) == duration_ms


@given(st.integers(1, 1023), st.sampled_from(sorted(SIZE_UNITS)))
def test_a_round_size_is_written_in_its_unit(count: int, unit: str) -> None:
    assert format_size(count * SIZE_UNITS[unit]) == f"{count}{unit}"


@given(st.integers(1, 23), st.sampled_from(sorted(DURATION_UNITS)))
def test_a_round_duration_is_written_in_its_unit(count: int, unit: str) -> None:
    assert format_duration(count * DURATION_UNITS[unit]) == f"{count}{unit}"


@given(st.decimals(0, 1000, places=3), st.sampled_from(sorted(DURATION_UNITS)))
def test_a_duration_above_zero_never_becomes_none(amount: object, unit: str) -> None:
    exact = float(str(amount)) * DURATION_UNITS[unit]
    assert (parse_duration(f"{amount}{unit}") == 0) == (exact == 0)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:22133", TcpAddress("127.0.0.1", 22133)),
        ("localhost:0", TcpAddress("localhost", 0)),
        ("[::1]:65535", TcpAddress("::1", 65535)),
        ("unix:run/staniel.sock", UnixAddress("run/staniel.sock")),
    ],
)
def test_an_address_is_read_and_written(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert format_address(address) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "22133",
        ":22133",
        "h",
        "h:",
        "h:65536",
        "h:-1",
        "h:+1",
        "h:1_0",
        "::1:80",
        "[::1]",
        "[]:1",
        "[::1]80",
        "unix:",
        "unix:a\0b",
        "a b:1",
        "h:000000001",
        "h:٣",
        "http://h:80",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_address(text)


@pytest.mark.parametrize("name", ["q", "m+c", "jobs_2-x", "a:b", "'", "é"])
def test_a_queue_may_have_such_a_name(name: str) -> None:
    assert name_error(name) == ""


@pytest.mark.parametrize("name", ["", "a.b", "a/b", "a~b", "a b", "a\n", "\0", "\x7f", "漢", "x" * 201])
def test_a_queue_may_not_have_such_a_name(name: str) -> None:
    assert name_error(name)
