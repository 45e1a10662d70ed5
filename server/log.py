"""Events as lines on standard error, one each, quiet by default: time, level, event, then `name=value` pairs; or all of
that as JSON.
"""

from __future__ import annotations

import logging
import sys

import msgspec

from staniel.broker.events import EventSink, Level

LEVELS = {
    Level.DEBUG: logging.DEBUG,
    Level.INFO: logging.INFO,
    Level.WARNING: logging.WARNING,
    Level.ERROR: logging.ERROR,
}


class LineFormatter(logging.Formatter):
    """logfmt: values with blanks, quotes or line ends are written as JSON strings."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"
    converter = staticmethod(__import__("time").gmtime)

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = getattr(record, "fields", {})
        words = [self.formatTime(record), record.levelname.lower(), record.getMessage()]
        return " ".join(words + [f"{name}={_value(value)}" for name, value in fields.items()])


class JsonFormatter(LineFormatter):
    """One JSON object: time, level, event, then the fields. Numbers and truths stay what they are."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = getattr(record, "fields", {})
        line = {"time": self.formatTime(record), "level": record.levelname.lower(), "event": record.getMessage()}
        return msgspec.json.encode(line | {name: _plain(value) for name, value in fields.items()}).decode()


FORMATTERS = {"logfmt": LineFormatter, "json": JsonFormatter}


def _plain(value: object) -> object:
    return value if isinstance(value, int | float) else _encodable(str(value))


def _encodable(text: str) -> str:
    """Names of files may hold bytes that are no UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def _value(value: object) -> str:
    text = _encodable(str(value))
    if text and text.isprintable() and not any(mark in text for mark in ' "='):
        return text
    return msgspec.json.encode(text).decode()


def open_log(level: str, form: str) -> EventSink:
    """Everything from `level` ("debug", "info", "warning", "error") upwards goes to standard error, in the `form` that
    one of FORMATTERS is called after.
    """
    logger = logging.getLogger("staniel")
    logger.setLevel(level.upper())
    logger.propagate = False
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FORMATTERS[form]())
    logger.handlers[:] = [handler]

    def report(level: Level, event: str, /, **fields: object) -> None:
        logger.log(LEVELS[level], event, extra={"fields": fields})

    return report
