"""A disk that remembers the first refused call. Recovery and readers of sidecars continue without a file that cannot be
read. For a server that is right; a tool whose result would be wrong checks here before it uses the result.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from staniel.journal.disk.fs import MISSING, Fs, Reader


class RefusedCalls:
    """The first refused call of a disk; None if no call was refused. A missing file is not a refusal."""

    def __init__(self) -> None:
        self.refused: OSError | None = None

    def on(self, fs: Fs) -> Fs:
        """Return `fs`, watched."""
        return cast(Fs, _WatchedFs(fs, self))

    def check(self) -> None:
        """Raise the error of the first refused call, if there was one."""
        if self.refused is not None:
            raise self.refused

    def pop_error(self) -> OSError | None:
        """Return the error of the first refused call, and forget it."""
        refused, self.refused = self.refused, None
        return refused

    def call(self, verb: str, path: object, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except MISSING:
            raise
        except OSError as error:
            error.__dict__.setdefault("call", verb)
            if error.filename is None:
                error.filename = path
            if self.refused is None:
                self.refused = error
            raise


class _WatchedFs:
    def __init__(self, fs: Fs, watch: RefusedCalls) -> None:
        self._fs = fs
        self._watch = watch

    def reader(self, path: str) -> Reader:
        return _WatchedReader(self._watch.call("open", path, self._fs.reader, path), path, self._watch)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._fs, name)
        return partial(self._call, name, attribute) if callable(attribute) else attribute

    def _call(self, name: str, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self._watch.call(name.replace("_", " "), args[0] if args else None, method, *args, **kwargs)


class _WatchedReader:
    def __init__(self, reader: Reader, path: str, watch: RefusedCalls) -> None:
        self._reader = reader
        self._path = path
        self._watch = watch

    def read(self, at: int, count: int) -> bytes:
        data: bytes = self._watch.call("read", self._path, self._reader.read, at, count)
        return data

    def close(self) -> None:
        self._reader.close()
