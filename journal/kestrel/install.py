"""The installation of a finished pack in place of the files that it covers.

The running server and recovery use the same function: if a crash interrupts it at any step, calling it again finishes
it.

Once a pack is durable under its name, it replaces every archive up to its number: recovery ignores those. So if the
system refuses to remove an archive, or to give the pack its archive's name, the pack is read under its own name
meanwhile, and no item that it covers is read twice.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from msgspec import Struct

from staniel.journal.background import CallbackTask
from staniel.journal.disk.fs import BROKEN_ERRNOS, MISSING, Fs, SyncFailed, remove_each
from staniel.journal.disk.removal import RemovalList
from staniel.journal.kestrel import files as kestrel_files
from staniel.journal.kestrel.records import SAVE_XID, WITH_XID


def remove_sidecars(fs: Fs, folder: str, names: list[str]) -> None:
    """Remove the sidecars of these files of a spool, durably, before the files change. The folder is synced even if
    there are none, because an earlier attempt may have removed them and failed before the sync. Raises OSError.
    """
    for name in names:
        with suppress(*MISSING):
            fs.remove(kestrel_files.sidecar_path(folder, name))
    with suppress(*MISSING):
        fs.sync_folder(kestrel_files.sidecar_folder(folder))


def is_empty_pack(fs: Fs, path: str) -> bool:
    """Tell whether a pack is empty, or has no more than the record that every pack begins with: a renewal or a power
    cut can leave such a file. A pack of ours without content has two records. Raises OSError.
    """
    size = fs.size(path)
    return not size or (size == WITH_XID.size and fs.read(path, 0, 1)[0] == SAVE_XID)


def finish_pack(fs: Fs, folder: str, pack: str, sealed: str, covered: list[str]) -> None:
    """Remove the `covered` files, oldest first, then give `pack` its archive name `sealed`. All are file names.

    Their sidecars go first, because one of them describes a file with the name that the pack takes. The folder is
    synced between the two steps: if the disk kept the rename and lost the removals, the old files would be replayed
    before a pack that already contains them. After an OSError `covered` has the files that may still be there.
    """
    removal_list = RemovalList(fs, folder, kestrel_files.parse(pack).queue)
    if covered:
        removal_list.write(covered)
    remove_sidecars(fs, folder, [*covered, sealed])
    _remove_covered(fs, folder, covered)
    fs.rename(f"{folder}/{pack}", f"{folder}/{sealed}")
    fs.sync_folder(folder)
    removal_list.drop()


def _remove_covered(fs: Fs, folder: str, names: list[str]) -> None:
    """Remove all files that the system allows to remove, durably: the next attempt lists only the remaining ones.
    Recovery reads none of them while the pack has its own name, so if one stays, the others need not. Raises the first
    OSError; `names` has the remaining files then.
    """
    refused: OSError | None = None
    stay: list[str] = []
    for name in names:
        try:
            remove_each(fs, folder, [name])
        except OSError as error:
            if error.errno in BROKEN_ERRNOS:
                raise
            stay.append(name)
            refused = refused or error
    names[:] = stay
    fs.sync_folder(folder)
    if refused is not None:
        raise refused


class UnfinishedPack(Struct, frozen=True):
    """A valid pack that is still called `pack` instead of `sealed`, because the system refuses a call; `error` says
    which. `covered`: replaced files that may still be there. All are file names.
    """

    pack: str
    sealed: str
    covered: list[str]
    error: OSError


def try_to_finish(fs: Fs, folder: str, pack: str, sealed: str, covered: list[str]) -> UnfinishedPack | None:
    """Call `finish_pack`. If the system refuses a call, return the unfinished pack. Raises OSError if the disk is
    broken.
    """
    left = list(covered)
    try:
        finish_pack(fs, folder, pack, sealed, left)
    except SyncFailed:
        raise
    except OSError as error:
        if error.errno in BROKEN_ERRNOS:
            raise
        return UnfinishedPack(pack, sealed, left, error)
    return None


class FinishPack(CallbackTask):
    """A background task that tries again to finish a pack. `left`: the pack, if it is still unfinished."""

    def __init__(self, fs: Fs, folder: str, pack: UnfinishedPack, then: Callable[[OSError | None, int], None]) -> None:
        super().__init__(then)
        self._fs, self._folder = fs, folder
        self.left: UnfinishedPack | None = pack

    def work(self) -> None:
        assert self.left is not None
        self.left = try_to_finish(self._fs, self._folder, self.left.pack, self.left.sealed, self.left.covered)


class InstallPack(CallbackTask):
    """A background task that puts a synced pack in place of the files that it covers. File names are relative to
    `folder`.
    """

    def __init__(
        self,
        fs: Fs,
        folder: str,
        names: tuple[str, str, str],
        covered: list[str],
        then: Callable[[OSError | None, int], None],
    ) -> None:
        super().__init__(then)
        self._fs, self._folder, self._names, self._covered = fs, folder, names, covered
        self.has_begun = False
        """True once the files may have changed. Before that an error has changed nothing."""
        self.unfinished: UnfinishedPack | None = None

    @property
    def is_vain(self) -> bool:
        """True if no covered file was removed."""
        return self.unfinished is not None and len(self.unfinished.covered) == len(self._covered)

    def work(self) -> None:
        temp, pack, sealed = self._names
        remove_sidecars(self._fs, self._folder, [*self._covered, sealed])  # first, because the system may refuse it
        self._fs.rename(f"{self._folder}/{temp}", f"{self._folder}/{pack}")
        self.has_begun = True
        self._fs.sync_folder(self._folder)
        self.unfinished = try_to_finish(self._fs, self._folder, pack, sealed, self._covered)
