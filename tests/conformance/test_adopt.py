"""Every journal of the case files is adopted: the new spool holds what the old folder did, by two readers."""

from __future__ import annotations

import base64
import zlib
from pathlib import Path
from typing import Any

import pytest

from staniel.server.backup.adopt import Adopted, Survey, adopt, survey
from staniel.server.backup.manifest import BackupError
from tests.conformance.spool import NOW_MS, recovered
from tests.conformance.test_journal import CASES, answers, config_of, expect
from tests.conformance.test_libkestrel import CASES as STREAM_CASES
from tests.conformance.test_workq_fixtures import DAMAGED, FIXTURES, TORN


def adopted(folder: Path, files: dict[str, bytes], now_ms: int = NOW_MS) -> tuple[Survey, Adopted] | None:
    """What was found in files `old` of a folder, and what became of it in `new`; None: there was nothing."""
    (folder / "old").mkdir()
    for name, data in files.items():
        (folder / "old" / name).write_bytes(data)
    if not files:
        with pytest.raises(BackupError, match="has no journals"):
            survey(str(folder / "old"), now_ms, lambda size: None)
        return None
    found = survey(str(folder / "old"), now_ms, lambda size: None)
    proved = adopt(found, str(folder / "new"), now_ms, lambda size: None)
    assert proved.differences == []
    assert {path.name: path.read_bytes() for path in (folder / "old").iterdir()} == files
    return found, proved


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]))
def test_kestrels_files_are_adopted(case: dict[str, Any], tmp_path: Path) -> None:
    files = {name: bytes.fromhex(content) for name, content in case["files"].items()}
    found = adopted(tmp_path, files)
    if found is None:
        return
    told = {each.name: each for each in found[0].journals}
    valid = case["expect"].get("valid_prefix", {})
    assert {one.file: one.flaw.at for each in told.values() for one in each.flaws} == valid
    with recovered(tmp_path / "new", config_of(case)) as spool:
        assert {each.file for each in spool.damages} <= valid.keys() - {case["queue"]}  # what is sealed stays as it is
        expect("items delivered", spool.drain(case["queue"]), *answers(case["expect"]))


@pytest.mark.parametrize("case", STREAM_CASES, ids=lambda case: str(case["name"]))
def test_libkestrels_files_are_adopted(case: dict[str, Any], tmp_path: Path) -> None:
    found = adopted(tmp_path, {name: bytes.fromhex(content) for name, content in case["files"].items()})
    if found is not None:
        assert sum(each.items for each in found[0].journals) == found[1].items


@pytest.mark.parametrize("name", FIXTURES)
def test_a_log_of_workqs_is_adopted(name: str, tmp_path: Path) -> None:
    fixture = FIXTURES[name]
    files = {file: zlib.decompress(base64.b64decode(data)) for file, data in fixture["files"].items()}
    found = adopted(tmp_path, files, int(fixture["truth_at_epoch"] * 1000))
    if found is None:
        assert not fixture["jobs"]
        return
    assert found[1].jobs == len(fixture["jobs"])
    assert found[0].has_losses == (name in DAMAGED)
    assert any(one.flaw.is_torn for each in found[0].journals for one in each.flaws) == (name in TORN)
