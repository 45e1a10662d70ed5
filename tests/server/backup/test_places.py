"""Where backups are: folders and buckets, what they hold after several backups, damage, and what is refused."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from staniel.broker.operations.backup import HeldFiles
from staniel.server.backup.folder_store import FolderStore
from staniel.server.backup.manifest import BackupError, new_id
from staniel.server.backup.source import SourceFile
from staniel.server.backup.store import RUNNING, LocalFile, Stored, ids, prepare
from staniel.server.backup.take import make_backup
from staniel.server.backup.tidy import remove
from staniel.server.cli import backup as backup_commands
from staniel.server.cli.main import main
from tests.server.admin.asking import SpoolConnection
from tests.server.backup.copies import SMALL, back_up, data_files, drained, restored, staniel
from tests.support.process import Server, run_staniel, running
from tests.support.wire import Wire

ITEM = b"x" * 1000


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path / "server", config=SMALL) as server:
        put(server, "orders", 100)
        put(server, "mail", 100)
        yield server


def put(server: Server, queue: str, count: int) -> None:
    with Wire(server.address) as wire:
        for number in range(count):
            assert wire.put(queue, b"%d" % number + ITEM) == b"STORED"


def test_the_server_knows_when_the_last_backup_was_made(busy: Server, tmp_path: Path) -> None:
    def kept() -> dict[str, object]:
        found: dict[str, object] = json.loads((busy.spool / ".staniel" / "last_backup").read_bytes())
        return found

    made = back_up(busy.spool, tmp_path / "dest")
    assert kept() == {"made_at_ms": made["made_at_ms"], "where": str(tmp_path / "dest")}
    assert '"operation":"backup"' in (busy.spool / ".staniel" / "audit").read_text()
    busy.stop()
    resting = back_up(busy.spool, tmp_path / "other")
    assert kept() == {"made_at_ms": resting["made_at_ms"], "where": str(tmp_path / "other")}
    (manifest,) = (tmp_path / "other" / "backups").iterdir()
    names = [each["name"] for each in json.loads(manifest.read_text().splitlines()[0])["files"]]
    assert ".staniel/paused" not in names and ".staniel/last_backup" not in names, "a restored spool has no backup"
    busy.start()
    assert run_staniel("health", "--spool", str(busy.spool)).returncode == 0


def test_a_second_backup_copies_only_what_is_new(busy: Server, tmp_path: Path) -> None:
    first = back_up(busy.spool, tmp_path / "dest")
    again = back_up(busy.spool, tmp_path / "dest")
    assert first["copied_bytes"] >= first["bytes"] - 10 and first["bytes"] > 200_000
    assert (again["copied_files"], again["copied_bytes"]) == (0, 0)
    put(busy, "orders", 1)
    more = back_up(busy.spool, tmp_path / "dest")
    assert more["copied_bytes"] < 30_000 and more["copied_files"] == 1
    stored = {path.name: path.stat().st_size for path in data_files(tmp_path / "dest")}
    assert sum(stored.values()) == first["copied_bytes"] + more["copied_bytes"]
    found = json.loads(staniel("backup", "list", tmp_path / "dest", "--json").stdout)
    assert [each["id"] for each in found] == sorted(each["id"] for each in (first, again, more))
    assert [each["items"] for each in found] == [200, 200, 201]
    for made, count in ((first, 100), (more, 101)):
        folder = restored(tmp_path / "dest", tmp_path / "copy", "--backup", made["id"])
        assert len(drained(folder, ("orders",))["orders"]) == count


def test_of_a_file_that_has_grown_only_what_is_new_is_copied(tmp_path: Path) -> None:
    dest, large = tmp_path / "dest", b"y" * 900_000
    with running(tmp_path / "server") as server, Wire(server.address) as wire:
        sizes = []
        for number in range(4):
            for _ in range(3):
                assert wire.put("orders", b"%d" % number + large) == b"STORED"
            sizes.append(back_up(server.spool, dest)["copied_bytes"])
            assert wire.put("orders", b"small") == b"STORED"
        assert all(2_700_000 < size < 2_701_000 for size in sizes), sizes
    assert "0 faults" in staniel("backup", "verify", dest).stdout
    ids = [each["id"] for each in json.loads(staniel("backup", "list", dest, "--json").stdout)]
    for at, backup_id in enumerate(ids):
        found = drained(restored(dest, tmp_path / "copy", "--backup", backup_id), ("orders",), "")["orders"]
        wanted = [each for number in range(at + 1) for each in [*[b"%d" % number + large] * 3, b"small"]]
        assert found == wanted[:-1]
    staniel("backup", "prune", dest, "--keep", "2", "--yes")
    assert "0 faults" in staniel("backup", "verify", dest).stdout


def test_a_file_in_the_place_of_another_is_copied_though_it_is_longer(tmp_path: Path) -> None:
    """A new file may have the inode of one that is gone."""
    from staniel.server.backup.manifest import BackedUpFile, FilePart, decode, encode

    dest = tmp_path / "dest"
    with running(tmp_path / "server") as server, Wire(server.address) as wire:
        for _ in range(2):
            assert wire.put("orders", b"y" * 900_000) == b"STORED"
        made = back_up(server.spool, dest)
        path = dest / "backups" / f"{made['id']}.json"
        manifest = decode(path.read_bytes())
        at, old = next((at, each) for at, each in enumerate(manifest.files) if each.name == "orders")
        other = next(each for each in manifest.files if each.name != "orders")
        assert not other.bytes
        manifest.files[at] = BackedUpFile("orders", [FilePart(old.bytes - 9, old.parts[0].sha256)], old.known_by)
        (dest / "data" / old.parts[0].sha256[:2] / old.parts[0].sha256).write_bytes(b"?" * (old.bytes - 9))
        path.write_bytes(encode(manifest))
        assert wire.put("orders", b"more") == b"STORED"
        again = back_up(server.spool, dest)
        assert again["copied_bytes"] > 1_800_000
    folder = restored(dest, tmp_path / "copy", "--backup", again["id"])
    assert [len(each) for each in drained(folder, ("orders",), "")["orders"]] == [900_000, 900_000, 4]


def test_what_only_an_old_backup_needs_goes_with_it(busy: Server, tmp_path: Path) -> None:
    dest = tmp_path / "dest"
    back_up(busy.spool, dest)
    with Wire(busy.address) as wire:
        assert wire.ask(b"delete orders") == b"DELETED"
    last = back_up(busy.spool, dest)
    refused = staniel("backup", "prune", dest, "--keep", "1", code=2)
    assert "give --yes" in refused.stderr
    said = staniel("backup", "prune", dest, "--keep", "1", "--yes")
    assert said.stdout.startswith("removed 1 backup;")
    assert sum(path.stat().st_size for path in data_files(dest)) == last["bytes"]
    assert len(drained(restored(dest, tmp_path / "copy"), ("mail",))["mail"]) == 100


def test_a_flipped_bit_or_a_missing_file_is_found_and_never_restored(busy: Server, tmp_path: Path) -> None:
    dest = tmp_path / "dest"
    made = back_up(busy.spool, dest)
    largest = max(data_files(dest), key=lambda path: path.stat().st_size)
    whole = largest.read_bytes()
    largest.write_bytes(whole[:500] + bytes([whole[500] ^ 1]) + whole[501:])
    said = staniel("backup", "verify", dest, code=1)
    mend = f"its bytes are not those that were copied: remove {largest.relative_to(dest)}, and the next backup mends it"
    assert mend in said.stdout and said.stdout.endswith("; 1 fault\n")
    spool = tmp_path / "copy" / "spool"
    spool.parent.mkdir()
    assert "is not what was copied: name another with --backup" in staniel("restore", dest, spool, code=1).stderr
    assert not spool.exists()
    spool.mkdir()
    (spool / "lost+found").mkdir()
    staniel("restore", dest, spool, code=1)
    assert [path.name for path in spool.iterdir()] == ["lost+found"]
    (spool / "lost+found").rmdir()
    largest.unlink()
    (fault, totals) = map(json.loads, staniel("backup", "verify", dest, "--json", code=1).stdout.splitlines())
    assert (fault["backup"], fault["why"], totals["faults"]) == (made["id"], "it is missing", 1)
    again = back_up(busy.spool, dest)
    assert again["copied_bytes"] == len(whole)
    assert "0 faults" in staniel("backup", "verify", dest).stdout
    assert staniel("restore", dest, spool).stdout.endswith(f"\nto start: staniel serve --spool {spool}\n")
    assert len(drained(spool.parent, ("mail",))["mail"]) == 100


def test_a_damaged_list_of_files_is_found_and_other_backups_go_on(busy: Server, tmp_path: Path) -> None:
    dest = tmp_path / "dest"
    first, last = back_up(busy.spool, dest), back_up(busy.spool, dest)
    path = dest / "backups" / f"{last['id']}.json"
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"items":200', b'"items":201'))
    assert "its checksum does not match" in staniel("backup", "verify", dest, code=1).stdout
    assert "cannot be used" in staniel("restore", dest, tmp_path / "new", code=1).stderr
    told = staniel("backup", "list", dest, code=1)
    assert first["id"] in told.stdout and last["id"] not in told.stdout and "cannot be used" in told.stderr
    assert "cannot be used" in staniel("backup", "prune", dest, "--keep", "2", "--yes", code=1).stderr
    assert back_up(busy.spool, dest)["copied_bytes"] == 0
    restored(dest, tmp_path / "copy", "--backup", first["id"])


def test_a_list_that_names_files_outside_the_spool_is_refused(busy: Server, tmp_path: Path) -> None:
    from staniel.server.backup.manifest import BackedUpFile, decode, encode

    made = back_up(busy.spool, tmp_path / "dest")
    path = tmp_path / "dest" / "backups" / f"{made['id']}.json"
    manifest = decode(path.read_bytes())
    for name in ("../outside", "/etc/passwd", ".staniel/version", ".staniel/segments/../../x", ".staniel/cmdlog/x", ""):
        manifest.files[0] = BackedUpFile(name, [])
        path.write_bytes(encode(manifest))
        said = staniel("restore", tmp_path / "dest", tmp_path / "new", code=1)
        assert "names a file that no spool has" in said.stderr and not (tmp_path / "new").exists()


def test_what_cannot_be_done_is_one_line_that_says_what_to_do(busy: Server, tmp_path: Path) -> None:
    dest, other = tmp_path / "dest", tmp_path / "other"
    other.mkdir()
    (other / "file").write_text("of another program")
    back_up(busy.spool, dest)
    for words, arguments, code in (
        ("is not empty and has no backups", ("backup", other, "--spool", busy.spool), 1),
        ("lies within the spool", ("backup", busy.spool / "here", "--spool", busy.spool), 1),
        ("expected a path", ("backup", "ftp://host/x", "--spool", busy.spool), 1),
        ("no server listens", ("backup", dest, "--spool", other), 1),
        ("has no backups", ("restore", other, tmp_path / "new"), 1),
        ("does not exist: name the place", ("backup", "list", tmp_path / "nowhere"), 1),
        ("does not exist: name the place", ("backup", "verify", tmp_path / "nowhere"), 2),
        ("is not empty", ("restore", dest, other), 1),
        ("is not empty", ("restore", dest, busy.spool), 1),
        ("is not a folder", ("restore", dest, other / "file"), 1),
        ("there is no backup x", ("restore", dest, tmp_path / "new", "--backup", "x"), 1),
    ):
        said = staniel(*arguments, code=code)
        assert words in said.stderr and said.stderr.count("\n") == 1, said.stderr
    assert (other / "file").read_text() == "of another program" and len(list(other.iterdir())) == 1


def test_two_backups_into_one_folder_do_not_run_at_once(busy: Server, tmp_path: Path) -> None:
    from staniel.server.cli.backup import open_store

    back_up(busy.spool, tmp_path / "dest")
    first = open_store(str(tmp_path / "dest"), writes=True)
    said = staniel("backup", tmp_path / "dest", "--spool", busy.spool, code=1)
    assert "is making a backup in" in said.stderr
    first.close()
    back_up(busy.spool, f"file:{tmp_path}/dest")


def test_a_queue_whose_name_is_no_utf8_comes_back(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9 \xff")
    with running(tmp_path / "server") as server:
        path = server.spool / name
        server.stop()
        path.write_bytes(b"")
        server.start()
        back_up(server.spool, tmp_path / "dest")
    assert (restored(tmp_path / "dest", tmp_path / "copy") / "spool" / name).exists()


def listed(place: str, bucket: dict[str, str]) -> list[str]:
    return [each["id"] for each in json.loads(staniel("backup", "list", place, "--json", **bucket).stdout)]


def test_backups_in_a_bucket(busy: Server, tmp_path: Path, bucket: dict[str, str]) -> None:
    place = "s3://store/some/prefix"
    first = back_up(busy.spool, place, **bucket)
    put(busy, "orders", 1)
    second = back_up(busy.spool, place, **bucket)
    assert second["copied_files"] == 1 and first["copied_files"] > 10
    assert listed(place, bucket) == [first["id"], second["id"]]
    assert "0 faults" in staniel("backup", "verify", place, **bucket).stdout
    assert "has no backups" in staniel("backup", "verify", "s3://store/other", code=2, **bucket).stderr
    (tmp_path / "copy").mkdir()
    staniel("restore", place, tmp_path / "copy" / "spool", "--backup", second["id"], **bucket)
    found = drained(tmp_path / "copy", ("orders", "mail"))
    assert [len(items) for items in found.values()] == [101, 100]
    staniel("backup", "prune", place, "--keep", "1", "--yes", **bucket)
    assert listed(place, bucket) == [second["id"]]
    assert "0 faults" in staniel("backup", "verify", place, **bucket).stdout
    wrong = staniel("backup", "s3://nowhere/x", "--spool", busy.spool, code=1, **bucket)
    assert "cannot use s3://nowhere/x" in wrong.stderr and wrong.stderr.count("\n") == 1


def test_uploads_in_parts_that_were_interrupted_are_ended(
    bucket: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has come of them costs money, and no list of the bucket shows it."""
    import boto3

    from staniel.server.cli.backup import open_store

    for name, value in bucket.items():
        monkeypatch.setenv(name, value)
    client, store = boto3.client("s3"), open_store("s3://store/here", writes=True)
    for key in ("here/data/ab/abc", "elsewhere"):
        client.create_multipart_upload(Bucket="store", Key=key)
    store.abort_uploads(0)
    assert len(client.list_multipart_uploads(Bucket="store")["Uploads"]) == 2
    store.abort_uploads(1 << 60)
    assert [each["Key"] for each in client.list_multipart_uploads(Bucket="store")["Uploads"]] == ["elsewhere"]
    store.close()
    client.close()


def test_a_server_holds_the_files_of_a_few_backups_at_a_time(busy: Server) -> None:
    connections = [SpoolConnection(busy.spool) for _ in range(5)]
    statuses = []
    for connection in connections:
        connection.request("POST", "/api/backup", "{}", {"content-type": "application/json"})
        answer = connection.getresponse()
        answer.readline()
        statuses.append(answer.status)
    assert statuses == [200] * 4 + [409]
    for connection in connections:
        connection.close()


def test_a_piece_that_has_lost_its_end_is_copied_again(busy: Server, tmp_path: Path) -> None:
    dest = tmp_path / "dest"
    back_up(busy.spool, dest)
    largest = max(data_files(dest), key=lambda path: path.stat().st_size)
    size = largest.stat().st_size
    os.truncate(largest, 10)
    assert staniel("backup", "verify", dest, code=1).stdout
    assert back_up(busy.spool, dest)["copied_bytes"] == size
    assert "0 faults" in staniel("backup", "verify", dest).stdout


class Unlocked(FolderStore):
    """As a bucket is: another process may be at work, since moment 5,000."""

    quiet_ms = 1000

    def names(self, prefix: str) -> dict[str, Stored]:
        self._name_copies()
        changed_at_ms = 5000 if prefix == RUNNING else 1
        return {name: Stored(each.bytes, changed_at_ms) for name, each in super().names(prefix).items()}


class Files:
    """One file of a spool at rest."""

    was_running = False

    def __init__(self, path: Path) -> None:
        self.files = [SourceFile("orders", LocalFile(str(path), path.stat().st_size))]
        self.held = HeldFiles(0, "1", "spool", 1, 1, 0, "os", {}, 1, self.files[0].local.bytes)

    def check(self) -> None: ...

    def close(self) -> None: ...


def test_what_another_process_may_be_about_to_use_stays(tmp_path: Path) -> None:
    (tmp_path / "orders").write_bytes(ITEM)
    store = Unlocked(str(tmp_path / "dest"), writes=True)
    prepare(store)
    first = make_backup(store, Files(tmp_path / "orders"), lambda: 0, lambda size: None)
    store.write(f"{RUNNING}another", b"")
    assert remove(store, [first.id], 5500) == 0 and len(data_files(tmp_path / "dest")) == 1
    assert remove(store, [], 6500) == len(ITEM) and not store.names(RUNNING)
    store.close()


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.EMFILE, errno.ESTALE])
@pytest.mark.parametrize("unlisted", ["backups", "data", "running"])
def test_a_folder_that_cannot_be_listed_is_not_taken_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unlisted: str, code: int
) -> None:
    (tmp_path / "orders").write_bytes(ITEM)
    store = FolderStore(str(tmp_path / "dest"), writes=True)
    prepare(store)
    make_backup(store, Files(tmp_path / "orders"), lambda: 0, lambda size: None)
    store.write(f"{RUNNING}another", b"")
    kept, scandir = data_files(tmp_path / "dest"), os.scandir
    assert kept

    def refuse(path: str) -> object:
        if f"{path}/".startswith(f"{tmp_path}/dest/{unlisted}/"):
            raise OSError(code, os.strerror(code), path)
        return scandir(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", refuse)
        with pytest.raises(BackupError, match=f"{tmp_path}/dest/{unlisted}.*{os.strerror(code)}"):
            remove(store, [], 5500)
    assert data_files(tmp_path / "dest") == kept
    store.close()


def test_backups_of_two_spools_in_the_same_second_do_not_replace_each_other() -> None:
    """Where no lock keeps their processes apart."""
    found = [new_id(1_700_000_000_000, set(), origin) for origin in ("a:/spool", "b:/spool")]
    assert len(set(found)) == 2
    assert found[0] < new_id(1_700_000_000_000, {found[0]}, "a:/spool") < new_id(1_700_000_001_000, set(), "a:/spool")


def test_an_interrupted_verification_finds_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "orders").write_bytes(ITEM)
    store = FolderStore(str(tmp_path / "dest"), writes=True)
    prepare(store)
    make_backup(store, Files(tmp_path / "orders"), lambda: 0, lambda size: None)
    store.close()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(backup_commands.checks, "check", interrupt)
    done = CliRunner().invoke(main, ["backup", "verify", str(tmp_path / "dest")])
    assert done.exit_code == 2 and "not all was verified" in done.output


def test_a_backup_whose_parts_another_process_removes_is_none(tmp_path: Path) -> None:
    (tmp_path / "orders").write_bytes(ITEM)
    store = Unlocked(str(tmp_path / "dest"), writes=True)
    prepare(store)
    first = make_backup(store, Files(tmp_path / "orders"), lambda: 0, lambda size: None)
    (piece,) = data_files(tmp_path / "dest")
    with pytest.raises(BackupError, match="make the backup again"):
        make_backup(store, Files(tmp_path / "orders"), lambda: 0, lambda size: piece.unlink())
    assert ids(store) == [first.id]
    store.close()
