"""Plays a case's steps against a running server.

A step is said and heard on a connection, opened on first use, or is an action:

    conn            which client; `proto` memcache (default), text or thrift
    send            bytes, written as latin-1
    expect          exactly this comes; "" without expect_closed: nothing comes, for timeout_ms (default 2000)
    expect_regex    all that comes matches; a named group is remembered, and `<name>` in a later expect means its text
    expect_closed   the end of the stream comes right after
    min_ms, max_ms  bounds of the time from the last byte sent to the match
    pause_ms        afterwards
    action          disconnect (conn), restart, kill9, wait_exit, start, reload (config, conn), pause
"""

from __future__ import annotations

import time
from typing import Any

from tests.conformance.server import Mismatch, Server, serving
from tests.conformance.wire import ExpectingWire

Step = dict[str, Any]
Case = dict[str, Any]
TIMEOUT_MS = 2000
STRETCHES = (1, 4, 12)
LATE_TIMES = 10
DURATIONS = {
    "expirationTimerFrequency",
    "maxAge",
    "maxQueueAge",
    "openTransactionTimeout",
    "statusChangeGracePeriod",
}
"""The settings, by Kestrel's names, for which a slow client is too late: a conversation goes on within them."""


class Late(Mismatch):
    """The right answer after `max_ms`: the server's fault only if it happens again and again."""


class Conversation:
    """All clients of one case."""

    def __init__(self, server: Server, case_config: dict[str, Any], byte_by_byte: bool = False) -> None:
        self.server = server
        self.case_config = case_config
        self.byte_by_byte = byte_by_byte
        self.wires: dict[str, ExpectingWire] = {}
        self.remembered: dict[str, str] = {}

    def play(self, steps: list[Step]) -> None:
        """Raises Mismatch with the number of the step that went wrong."""
        for number, step in enumerate(steps):
            try:
                self._step(step)
            except Mismatch as wrong:
                raise type(wrong)(f"step {number} {_brief(step)}: {wrong}") from None

    def close(self) -> None:
        for wire in self.wires.values():
            wire.close()
        self.wires.clear()

    def _step(self, step: Step) -> None:
        if "action" in step:
            self._act(step)
        else:
            self._talk(step)
        time.sleep(step.get("pause_ms", 0) / 1000)

    def _act(self, step: Step) -> None:
        match step["action"]:
            case "disconnect":
                self.wires.pop(step["conn"]).close()
            case "restart":
                self.server.stop()
                self._start_again()
            case "kill9":
                self.server.kill9()
                self._start_again()
            case "wait_exit":
                self.server.wait_exit()
                self.close()
            case "start":
                self.server.start()
            case "reload":
                self._reload(step)
            case "pause":
                pass
            case other:
                raise ValueError(f"no such action: {other}")

    def _start_again(self) -> None:
        self.close()
        self.server.start()

    def _reload(self, step: Step) -> None:
        self.server.configure(self.case_config | step["config"])
        self._talk({"conn": step["conn"], "send": "reload\r\n", "expect": "Reloaded config.\r\n"})

    def _talk(self, step: Step) -> None:
        wire = self._wire(step)
        said = wire.says(step.get("send", "").encode("latin-1"), self.byte_by_byte)
        self._hear(wire, step, said + step.get("timeout_ms", TIMEOUT_MS) / 1000)
        took_ms = (time.monotonic() - said) * 1000
        if took_ms < step.get("min_ms", 0):
            raise Mismatch(f"answered after {took_ms:.0f} ms already")
        if took_ms > step.get("max_ms", took_ms):
            raise Late(f"answered only after {took_ms:.0f} ms")

    def _hear(self, wire: ExpectingWire, step: Step, until: float) -> None:
        closed = step.get("expect_closed", False)
        if step.get("expect"):
            wire.hears(self._recall(step["expect"]).encode("latin-1"), until)
        elif "expect_regex" in step:
            match = wire.hears_like(step["expect_regex"], until, to_the_end=closed)
            self.remembered |= {name: text.decode("latin-1") for name, text in match.groupdict(b"").items()}
        elif "expect" in step and not closed:
            wire.hears_nothing(until)
        if closed:
            wire.hears_the_end(until)

    def _wire(self, step: Step) -> ExpectingWire:
        wire = self.wires.get(step["conn"])
        if wire is None:
            wire = self.wires[step["conn"]] = ExpectingWire(self.server.port(step.get("proto", "memcache")))
        return wire

    def _recall(self, text: str) -> str:
        for name, heard in self.remembered.items():
            text = text.replace(f"<{name}>", heard)
        return text


def _brief(step: Step) -> str:
    text = str(step)
    return text if len(text) <= 160 else f"{text[:160]}..."


def stretched(case: Case, factor: int) -> Case:
    """The case with `factor` times the durations of its settings, and pauses as much longer."""
    config = {
        part: {
            name: {key: length * factor if key in DURATIONS else length for key, length in settings.items()}
            if part == "queues"
            else (settings * factor if name in DURATIONS else settings)
            for name, settings in given.items()
        }
        for part, given in case.get("config", {}).items()
    }
    steps = [step | {"pause_ms": step["pause_ms"] * factor} if "pause_ms" in step else step for step in case["steps"]]
    return case | {"config": config, "steps": steps}


def converse(case: Case, dialect: str = "kestrel", byte_by_byte: bool = False) -> None:
    """One case on a server of its own. Machines are busy: a late answer counts when it has been late ten times, and a
    case with durations among its settings fails when it fails with longer and longer ones.
    """
    is_timed = stretched(case, 2).get("config") != case.get("config", {})
    factors = STRETCHES if is_timed else (1,) * LATE_TIMES
    for tried, factor in enumerate(factors, 1):
        try:
            return converse_once(stretched(case, factor), dialect, byte_by_byte)
        except Mismatch as wrong:
            if tried == len(factors) or not (is_timed or isinstance(wrong, Late)):
                raise


def converse_once(case: Case, dialect: str, byte_by_byte: bool) -> None:
    config = case.get("config", {})
    with serving(config, case.get("files", {}), dialect) as server:
        conversation = Conversation(server, config, byte_by_byte)
        try:
            conversation.play(case["steps"])
        finally:
            conversation.close()
