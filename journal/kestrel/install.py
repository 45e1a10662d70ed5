"""The installation of a finished pack in the place of the files that it covers.

The running server and recovery use the same function: at whatever step a crash interrupts it, calling it again
finishes.

Once a pack is durable under its name, it counts instead of every archive up to its number: a start leaves those out. So
if the system refuses to remove one, or to give the pack its archive's name, the pack is read under its own name for as
long as that lasts, and nothing that it covers comes twice.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from msgspec import Struct

from staniel.journal.background import CallbackTask
from staniel.journal.disk.fs import BROKEN_ERRNOS, MISSING, Fs, SyncFailed, remove_each
from staniel.journal.kestrel import files as kestrel_files
from staniel.journal.kestrel.records import SAVE_XID, WITH_XID


def remove_sidecars(fs: Fs, folder: str, names: list[str]) -> None:
    """Remove the sidecars of these files of a spool, durably, before the files change. The folder is synced even if
    there are none: an earlier attempt may have removed them and failed before the sync. Raises OSError.
    """
    for name in names:
        with suppress(*MISSING):
            fs.remove(kestrel_files.sidecar_path(folder, name))
    with suppress(*MISSING):
        fs.sync_folder(kestrel_files.sidecar_folder(folder))


def is_empty_pack(fs: Fs, path: str) -> bool:
    """Tell whether a pack is empty, or holds no more than the record that every pack begins with: a renewal or a power
    cut can leave such a file. A pack of ours without content holds two records. Raises OSError.
    """
    size = fs.size(path)
    return not size or (size == WITH_XID.size and fs.read(path, 0, 1)[0] == SAVE_XID)


def finish_pack(fs: Fs, folder: str, pack: str, sealed: str, covered: list[str]) -> None:
    """Remove the `covered` files, oldest first, then give `pack` its archive name `sealed`. All are file names.

    Their sidecars go first, because one of them speaks of a file with the name that the pack takes. The folder
    is synced between the two steps: were the disk to keep the rename and forget the removals, the old files
    would be replayed in front of a pack that already contains them. After an OSError `covered` has the files that may
    still be there.
    """
    remove_sidecars(fs, folder, [*covered, sealed])
    _remove_covered(fs, folder, covered)
    fs.sync_folder(folder)
    fs.rename(f"{folder}/{pack}", f"{folder}/{sealed}")
    fs.sync_folder(folder)


def _remove_covered(fs: Fs, folder: str, names: list[str]) -> None:
    """Remove all of them that the system lets go: recovery reads none while the pack has its own name, so one that
    stays must not keep the others. Raises the first OSError; `names` has those that stay then.
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
    if refused is not None:
        raise refused


class UnfinishedPack(Struct, frozen=True):
    """A pack that counts and is still called `pack` instead of `sealed`: the system refuses a call, and `error` says
    which. `covered`: the files that it has replaced and that may still be there. All are file names.
    """

    pack: str
    sealed: str
    covered: list[str]
    error: OSError


def try_to_finish(fs: Fs, folder: str, pack: str, sealed: str, covered: list[str]) -> UnfinishedPack | None:
    """Call `finish_pack`, and return the unfinished pack if the system refuses a call. Raises OSError if the disk is
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
    """A background task that puts a synced pack in the place of the files that it covers. File names, in `folder`."""

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
        """True once the files may have changed: before that an error leaves everything as it was."""
        self.unfinished: UnfinishedPack | None = None

    @property
    def is_vain(self) -> bool:
        """True if no covered file has gone."""
        return self.unfinished is not None and len(self.unfinished.covered) == len(self._covered)

    def work(self) -> None:
        temp, pack, sealed = self._names
        remove_sidecars(self._fs, self._folder, [*self._covered, sealed])  # first: the system may refuse it
        self._fs.rename(f"{self._folder}/{temp}", f"{self._folder}/{pack}")
        self.has_begun = True
        self._fs.sync_folder(self._folder)
        self.unfinished = try_to_finish(self._fs, self._folder, pack, sealed, self._covered)
