"""The pieces of a copy: every one fits into a message, whatever files a spool has."""

from __future__ import annotations

import pytest

from staniel.cluster.messages import PIECE_BYTES_MAX
from staniel.cluster.places import Place
from staniel.cluster.spool_names import SpoolPaths
from staniel.server.cluster.copying import CopySource, CopyTarget
from tests.cluster.spools import contents, empty_disk


@pytest.mark.parametrize(("count", "name_bytes", "size"), [(6000, 200, 10), (1500, 20, 0), (3, 10, 700_000)])
def test_a_spool_is_copied_in_pieces_that_a_message_takes(count: int, name_bytes: int, size: int) -> None:
    ours, theirs, paths = empty_disk("s/.staniel"), empty_disk("s/.staniel"), SpoolPaths("s")
    for number in range(count):
        file = ours.append(f"s/{number:0{name_bytes}}")
        file.write(b"x" * size)
        file.close()
    source, target = CopySource(ours, paths, "member-1", Place(1, 1)), CopyTarget(theirs, paths)
    sizes, is_last = [], False
    while not is_last:
        piece, is_last = source.next_piece()
        sizes.append(len(piece))
        target.write(piece)
    assert max(sizes) <= PIECE_BYTES_MAX
    assert target.is_complete and contents(theirs, paths) == contents(ours, paths)
