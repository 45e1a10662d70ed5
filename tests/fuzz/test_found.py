"""What fuzzing has found: bytes under a checksum that is right, and yet no text, or nested without end."""

from __future__ import annotations

import zlib
from hashlib import sha256

import pytest

from staniel.journal.kestrel.sidecar import MAGIC, decode_sidecar
from staniel.server.backup.manifest import BackupError, decode
from tests.fuzz.targets import TARGETS

NESTED = 100_000


@pytest.mark.parametrize("body", [b"\x99\xa2\xff\xfe" + bytes(8), b"\x99\xa1q\x01" + b"\x91" * NESTED])
def test_a_sidecar_that_no_program_of_ours_wrote_is_none(body: bytes) -> None:
    assert decode_sidecar(MAGIC + zlib.crc32(body).to_bytes(4, "little") + body) is None


@pytest.mark.parametrize("line", [b"[" * NESTED, b'{"format":1,"id":' + b"[" * NESTED])
def test_a_manifest_that_is_nested_without_end_is_refused(line: bytes) -> None:
    with pytest.raises(BackupError):
        decode(line + b"\n" + sha256(line).hexdigest().encode())


def test_a_deletion_that_no_turn_has_ended_is_no_difference_of_a_restart() -> None:
    delete = b"DELETE /api/queues/q HTTP/1.1\r\nHost: staniel\r\nContent-Type: application/json\r\n\r\n"
    TARGETS["admin"].check(b"\x1bset q 0 0 4\r\nitem\r\n\x1b" + delete)
