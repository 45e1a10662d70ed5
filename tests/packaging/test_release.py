"""Two builds that differ are told apart, and what was not asked about vulnerabilities is not taken for sound."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.packaging.scripts import script

release, audit = script("release"), script("audit")


def wheel(
    path: Path, files: dict[str, bytes], date: tuple[int, int, int, int, int, int] = (2020, 2, 2, 0, 0, 0)
) -> None:
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w") as made:
        for name, data in files.items():
            made.writestr(zipfile.ZipInfo(name, date), data)


def sdist(path: Path, names: list[str], owner: int) -> None:
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w:gz") as made:
        for name in names:
            about = tarfile.TarInfo(name)
            about.uid, about.size = owner, 1
            made.addfile(about, io.BytesIO(b"x"))


def test_equal_builds_have_no_differences(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        wheel(tmp_path / folder / "s.whl", {"x": b"1", "y": b"2"})
    assert release.differences(tmp_path / "a", tmp_path / "b") == []


def test_a_difference_is_named(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    wheel(a / "content.whl", {"x": b"1", "y": b"2"})
    wheel(b / "content.whl", {"x": b"1", "y": b"3"})
    wheel(a / "date.whl", {"x": b"1"})
    wheel(b / "date.whl", {"x": b"1"}, (2021, 2, 2, 0, 0, 0))
    wheel(a / "order.whl", {"x": b"1", "y": b"2"})
    wheel(b / "order.whl", {"y": b"2", "x": b"1"})
    sdist(a / "owner.tar.gz", ["x"], 0)
    sdist(b / "owner.tar.gz", ["x"], 1000)
    wheel(a / "once.whl", {"x": b"1"})
    found = release.differences(a, b)
    wanted = ["content.whl: y, 1", "date.whl: x, 1", "once.whl: made once only", "order.whl: the archive itself, 0"]
    assert [each.removesuffix(" in all") for each in found] == [*wanted, "owner.tar.gz: x, 1"]


def test_a_release_replaces_an_older_one_and_nothing_else(tmp_path: Path) -> None:
    old = ["LICENSES.md", "SHA256SUMS", "requirements-s3.txt", "staniel-0.0.1-py3-none-any.whl", "staniel-0.0.1.tar.gz"]
    others = ["README.md", "requirements.txt", "staniel.toml", "other-1.tar.gz", "staniel-0.0.1.cdx.json.d"]
    for name in [*old, *others]:
        (tmp_path / name).touch()
    (tmp_path / "staniel-1.whl").mkdir()
    assert sorted(path.name for path in tmp_path.iterdir() if release.is_of_a_release(path)) == sorted(old)


SOUND: dict[str, Any] = {"name": "trio", "version": "1", "vulns": []}
BAD = {"name": "h11", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]}
UNKNOWN = {"name": "click", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("found", "code", "said"),
    [
        ([SOUND, {**BAD, "vulns": []}, {**SOUND, "name": "click"}], 0, "3 packages, no known vulnerability"),
        ([SOUND, BAD, UNKNOWN], 1, "h11: CVE-1, mended in 2"),
        ([SOUND, {**BAD, "vulns": []}, UNKNOWN], 3, "COULD NOT RUN"),
        ([UNKNOWN], 3, "no answer about 3 of 3 packages"),
        ([], 3, "COULD NOT RUN"),
    ],
)
def test_the_audit_is_content_only_if_it_was_told_about_each(
    capsys: pytest.CaptureFixture[str], found: list[dict[str, Any]], code: int, said: str
) -> None:
    assert audit.verdict({"trio", "h11", "click"}, found) == code
    heard = capsys.readouterr()
    assert said in heard.out + heard.err
