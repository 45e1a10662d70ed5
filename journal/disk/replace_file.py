"""Files that come into being whole: what a crash leaves is the old content or the new, never a part.

Knows temporary names, and the order that makes it safe: write, sync, rename, sync the folder. Refuses to know what the
bytes mean.
"""

from __future__ import annotations

from staniel.journal.disk.fs import File, Fs
from staniel.journal.kestrel.install import fresh_file, throw_away
from staniel.journal.libkestrel.files import temp_name


def install(fs: Fs, folder: str, name: str, data: bytes, now_ms: int) -> File:
    """Make `data` the whole content of file `name`, durably, and leave it open. Raises OSError, and nothing changed."""
    temp = f"{folder}/{temp_name(name, now_ms)}"
    file = fresh_file(fs, temp)
    try:
        file.write(data)
        file.sync()
        fs.rename(temp, f"{folder}/{name}")
    except OSError:
        throw_away(fs, temp, file)
        raise
    fs.sync_folder(folder)
    return file
