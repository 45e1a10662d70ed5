"""The log: a line on standard error for each event, quiet by default: time, level, event, then `name=value` pairs; or
the same as JSON. No line blocks the caller (outlet.py).
"""

from __future__ import annotations

import logging
import os

import msgspec
import trio

from staniel.broker.events import Level
from staniel.server.outlet import Outlet, do_nothing

LEVELS = {
    Level.DEBUG: logging.DEBUG,
    Level.INFO: logging.INFO,
    Level.WARNING: logging.WARNING,
    Level.ERROR: logging.ERROR,
}


PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3}  # syslog(3)
AGAIN_S = 0.1


class LineFormatter(logging.Formatter):
    """A formatter of logfmt: values with blanks, quotes or line ends are written as JSON strings."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"
    converter = staticmethod(__import__("time").gmtime)

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = getattr(record, "fields", {})
        words = [self.formatTime(record), record.levelname.lower(), record.getMessage()]
        return " ".join(words + [f"{name}={_value(value)}" for name, value in fields.items()])


class JsonFormatter(LineFormatter):
    """A formatter of JSON objects: time, level, event, then the fields. Numbers and booleans keep their types."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = getattr(record, "fields", {})
        line = {"time": self.formatTime(record), "level": record.levelname.lower(), "event": record.getMessage()}
        return msgspec.json.encode(line | {name: _plain(value) for name, value in fields.items()}).decode()


FORMATTERS = {"logfmt": LineFormatter, "json": JsonFormatter}


def _plain(value: object) -> object:
    return value if isinstance(value, int | float) else _encodable(str(value))


def _encodable(text: str) -> str:
    """Make a text encodable: file names may hold bytes that are not UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def _value(value: object) -> str:
    text = _encodable(str(value))
    if text and text.isprintable() and not any(mark in text for mark in ' "='):
        return text
    return msgspec.json.encode(text).decode()


class OutletHandler(logging.Handler):
    """A handler that writes lines to an outlet. For systemd each line begins with its priority, see sd-daemon(3)."""

    def __init__(self, outlet: Outlet, form: str) -> None:
        super().__init__()
        self.setFormatter(FORMATTERS[form]())
        self._outlet = outlet
        self._told = 0  # dropped lines that were reported
        self.has_priorities = bool(os.environ.get("JOURNAL_STREAM")) and not os.isatty(outlet.fd)

    def emit(self, record: logging.LogRecord) -> None:
        self._outlet.write(self._line(record))
        self.tell_dropped()

    def tell_dropped(self) -> None:
        """Write a line about dropped lines, once there is room for it."""
        left_out = self._outlet.dropped - self._told
        if left_out and not self._outlet.is_holding:
            self._told = self._outlet.dropped
            record = logging.LogRecord("staniel", logging.WARNING, "", 0, "log.dropped", None, None)
            record.fields = {"lines": left_out, "why": "there was no reader"}
            self._outlet.write(self._line(record))

    def _line(self, record: logging.LogRecord) -> bytes:
        text = self.format(record)
        if self.has_priorities:
            text = f"<{PRIORITIES[record.levelno]}>{text}"
        return f"{text}\n".encode("utf-8", "backslashreplace")


class ServerLog:
    """The log on standard error. `report` writes a line."""

    def __init__(self, outlet: Outlet, form: str = "") -> None:
        self.outlet = outlet
        self._form = form
        self._handler: OutletHandler | None = None
        self._logger = logging.getLogger("staniel")

    def open(self, level: str, form: str) -> None:
        """Write all lines from `level` ("debug", "info", "warning", "error") upwards, in the `form` of that name in
        FORMATTERS.
        """
        self._form = form
        self._logger.setLevel(level.upper())
        self._logger.propagate = False
        self._logger.handlers[:] = [self._open(form)]

    def _open(self, form: str) -> OutletHandler:
        self._handler = OutletHandler(self.outlet, form)
        return self._handler

    def report(self, level: Level, event: str, /, **fields: object) -> None:
        self._logger.log(LEVELS[level], event, extra={"fields": fields})

    def complain(self, text: str) -> None:
        """Write why the server ends or does not start: in a JSON log as JSON, else as a line for people."""
        handler = self._handler or self._open(self._form or "logfmt")
        if self._form == "json":
            record = logging.LogRecord("staniel", logging.ERROR, "", 0, "server.failed", None, None)
            record.fields = {"why": text}
            handler.emit(record)
            return
        start = f"<{PRIORITIES[logging.ERROR]}>" if handler.has_priorities else ""
        self.outlet.write(f"{start}staniel: {_encodable(text)}\n".encode())

    async def keep_writing(self) -> None:
        """Write held lines when their reader continues, until cancelled."""
        outlet = self.outlet
        try:
            while True:
                held = trio.Event()
                outlet.on_held = held.set
                if not outlet.is_holding:
                    await held.wait()
                try:
                    await trio.lowlevel.wait_writable(outlet.fd)
                except OSError:
                    pass  # epoll cannot watch it: try now and then
                outlet.flush()
                if self._handler is not None:
                    self._handler.tell_dropped()
                if outlet.is_holding:
                    await trio.sleep(AGAIN_S)
        finally:
            outlet.on_held = do_nothing
