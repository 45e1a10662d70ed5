"""A call that a bucket refuses, or that does not reach it: the command ends with a line, each backup stays whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import pytest
from click.testing import CliRunner, Result

from staniel.server.backup.restore import is_unfinished
from staniel.server.cli.main import main as staniel
from tests.journal.tools.errno_tools import fixed_time, template, tree

PLACE = "s3://store/here"
NOW_MS = 1_800_000_000_000
COMMANDS = {
    "take": ("backup", "take", PLACE, "--spool", "{s}"),
    "list": ("backup", "list", PLACE),
    "verify": ("backup", "verify", PLACE),
    "prune": ("backup", "prune", PLACE, "--keep", "1", "--yes"),
    "restore": ("restore", PLACE, "{t}"),
}


def refused() -> dict[str, Exception]:
    from botocore.exceptions import ClientError, ConnectionClosedError, EndpointConnectionError, ReadTimeoutError

    return {
        "busy": ClientError({"Error": {"Code": "SlowDown", "Message": "Reduce your request rate"}}, "Any"),
        "denied": ClientError({"Error": {"Code": "AccessDenied", "Message": "Access Denied"}}, "Any"),
        "gone": EndpointConnectionError(endpoint_url="http://there"),
        "silent": ReadTimeoutError(endpoint_url="http://there"),
        "cut off": ConnectionClosedError(endpoint_url="http://there"),
    }


@contextmanager
def refusing(at: int = -1, error: Exception | None = None, *, lasts: bool = False) -> Iterator[list[str]]:
    """Refuse call number `at` of the client of S3, or each from there on. Yields the calls."""
    from botocore.client import BaseClient

    calls: list[str] = []
    right = BaseClient._make_api_call

    def call(self: Any, name: str, arguments: Any) -> Any:
        calls.append(name)
        here = len(calls) - 1
        if error is not None and (here == at or (lasts and here > at)):
            raise error
        return right(self, name, arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BaseClient, "_make_api_call", call)
        yield calls


class Bucket:
    """The bucket with two backups, as often as it is asked for."""

    def __init__(self, root: Path) -> None:
        import boto3

        self.root = root
        self.client = boto3.client("s3")
        for at in range(2):
            assert self.runs("take", NOW_MS + 1000 * at).exit_code == 0
            (root / "s/.staniel/paused").write_bytes(b"{}" * (at + 1))
        assert self.is_whole()
        self.before = self.hashes()
        self.data = {key: self.client.get_object(Bucket="store", Key=key)["Body"].read() for key in self.before}
        self.ids = sorted(key for key in self.before if key.startswith("here/backups/"))
        assert len(self.ids) == 2

    def hashes(self) -> dict[str, str]:
        """Of each object its hash, which the store makes of the bytes: one call, where reading all takes dozens."""
        return {each["Key"]: each["ETag"] for each in self.client.list_objects_v2(Bucket="store").get("Contents", ())}

    def is_whole(self) -> bool:
        said = self.runs("verify")
        return said.exit_code == 0 and "0 faults" in said.output

    def reset(self) -> None:
        there = self.hashes()
        for key in there.keys() - self.before.keys():
            self.client.delete_object(Bucket="store", Key=key)
        for key, data in self.data.items():
            if key not in there or there[key] != self.before[key]:
                self.client.put_object(Bucket="store", Key=key, Body=data)
        assert self.hashes().keys() == self.before.keys()
        rmtree(self.root / "t", ignore_errors=True)

    def runs(self, command: str, now_ms: int = NOW_MS + 60_000) -> Result:
        names = {"s": f"{self.root}/s", "t": f"{self.root}/t"}
        with fixed_time(now_ms):
            return CliRunner().invoke(staniel, [each.format_map(names) for each in COMMANDS[command]])


@pytest.fixture
def there(tmp_path: Path, bucket: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Bucket:
    for name, value in bucket.items():
        monkeypatch.setenv(name, value)
    copytree(template() / "s", tmp_path / "s")
    return Bucket(tmp_path)


def check(there: Bucket, command: str, said: Result, whole: dict[str, bytes], why: str) -> list[str]:
    """Return what is wrong with what a command has said and left."""
    wrong = []
    assert said.exception is None or isinstance(said.exception, SystemExit), said.exception
    if said.exit_code:
        lines = [line for line in said.output.splitlines() if PLACE in line and why in line]
        wrong += [] if lines else [f"no line with place and reason: {said.output!r}"]
    is_restored = (there.root / "t").exists() and tree(there.root / "t") == whole
    if command == "restore" and (said.exit_code == 0) is not is_restored:
        wrong.append("restored or not, and it says otherwise")
    if (
        command == "restore"
        and not is_restored
        and (there.root / "t").exists()
        and not is_unfinished(f"{there.root}/t")
    ):
        wrong.append("neither marked nor whole")
    left = there.hashes()
    wanted = there.ids[-1:] if command == "prune" else there.ids
    if not set(wanted) <= left.keys():
        wrong.append("a backup is gone")
    if left != there.before and not there.is_whole():  # the bytes of before are whole
        wrong.append(f"a backup is not whole: {there.runs('verify').output!r}")
    return wrong


@pytest.mark.parametrize("command", COMMANDS)
def test_a_refused_call_costs_no_backup(there: Bucket, command: str) -> None:
    with refusing() as calls:
        sound = there.runs(command)
    assert sound.exit_code == 0 and calls, sound.output
    whole = tree(there.root / "t") if (there.root / "t").exists() else {}
    there.reset()
    kinds = list(refused().items())
    ends: set[int] = set()
    for at, name in enumerate(calls):
        for is_lasting in (False, True):
            kind, error = kinds[(at + is_lasting) % len(kinds)]
            with refusing(at, error, lasts=is_lasting):
                said = there.runs(command)
            ends.add(said.exit_code)
            wrong = check(there, command, said, whole, str(error))
            assert not wrong, (command, at, name, kind, is_lasting, wrong)
            there.reset()
    assert ends - {0}
