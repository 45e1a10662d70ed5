"""A kombu message as the bytes of an item: a mark, the length of the JSON head, the head, the unchanged body.

Kombu's other virtual transports put bodies as base64 into JSON, which takes a third more bytes. An item that begins
with a brace is read as such JSON, so that programs without kombu can put tasks.
"""

from __future__ import annotations

from typing import Any

from kombu.utils.json import JSONEncoder, loads

_to_json = JSONEncoder().encode  # kombu's `dumps` makes such an encoder for each message

MARK = b"\x01K"
_LENGTH_BYTES = 4
_HEAD_AT = len(MARK) + _LENGTH_BYTES


class UndecodableItem(ValueError):
    """An item that is no message. The text says why."""


def encode(message: dict[str, Any]) -> bytes:
    """Return the bytes of a message, as kombu's `prepare_message` makes it."""
    head = dict(message)
    body = head.pop("body")
    if isinstance(body, str):
        head["text"] = True
        body = body.encode("utf-8", "surrogatepass")
    json = _to_json(head).encode("utf-8", "surrogatepass")
    return b"".join((MARK, len(json).to_bytes(_LENGTH_BYTES), json, body or b""))


def decode(data: bytes) -> dict[str, Any]:
    """Return the message. Raises UndecodableItem."""
    try:
        if data.startswith(b"{"):
            return _checked(loads(data))
        if not data.startswith(MARK):
            raise UndecodableItem(f"it begins with {data[:8]!r}")
        end = _HEAD_AT + int.from_bytes(data[len(MARK) : _HEAD_AT])
        message = loads(data[_HEAD_AT:end])
        body = data[end:]
        message["body"] = body.decode("utf-8", "surrogatepass") if message.pop("text", False) else body
        return _checked(message)
    except UndecodableItem:
        raise
    except Exception as error:  # JSON with objects of kombu's own raises whatever they raise
        raise UndecodableItem(f"{type(error).__name__}: {error}") from error


def _checked(message: Any) -> dict[str, Any]:
    if not isinstance(message, dict) or not isinstance(message.get("properties"), dict) or "body" not in message:
        raise UndecodableItem("it has no properties or no body")
    properties = message["properties"]
    if not isinstance(properties.setdefault("delivery_info", {}), dict):
        raise UndecodableItem("its delivery_info is not an object")
    if not isinstance(message.setdefault("headers", {}), dict):
        raise UndecodableItem("its headers are not an object")
    return message
