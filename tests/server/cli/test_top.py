"""`staniel top` on a real terminal: what it draws, its keys, a server that restarts, and what it costs."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from staniel.broker.admin.sampler import DiskView
from staniel.broker.operations.holds import HoldFigure
from staniel.journal.holds import HoldState
from staniel.server.cli.top.frame import whole
from staniel.server.cli.top.model import COLUMNS, TopEvent, TopModel
from tests.support.process import STANIEL, Server, run_staniel, running
from tests.support.ready import is_readable
from tests.support.wire import Wire

SECONDS_MAX = 60.0
FRAME = re.compile(rb"\x1b\[H(.*?)\x1b\[J", re.DOTALL)
STYLE = re.compile(r"\x1b\[[0-9;]*m|\x1b\[K")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path, config="admin.port = 0\ndefault.sync_journal = 'os'\n") as server:
        yield server


class Terminal:
    """A terminal of some size in which a command runs."""

    def __init__(self, columns: int, lines: int, *command: str, **environment: str) -> None:
        self.heard = b""
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # as where a shell has put the tests into the background
            os.environ.update({"TERM": "xterm-256color", **environment})
            os.execv(command[0], command)
        self.resize(columns, lines)

    def resize(self, columns: int, lines: int) -> None:
        self.columns, self.lines = columns, lines
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def press(self, keys: bytes) -> None:
        self.heard = b""
        os.write(self._fd, keys)

    def listen(self, seconds: float) -> None:
        if is_readable(self._fd, seconds):
            try:
                self.heard += os.read(self._fd, 65536)
            except OSError:
                time.sleep(0.01)  # the command has ended

    def sees(self, condition: Callable[[list[str]], bool]) -> list[str]:
        """The first frame of which it is so."""
        until_s = time.monotonic() + SECONDS_MAX
        while time.monotonic() < until_s:
            self.listen(0.1)
            for found in reversed(FRAME.findall(self.heard)):
                shown = self.plain(found)
                if condition(shown):
                    return shown
        raise AssertionError(self.heard[-3000:])

    def plain(self, frame: bytes) -> list[str]:
        """The lines without styles. Nothing else may steer the terminal, and nothing is larger than it."""
        text = STYLE.sub("", frame.decode())
        lines = [line.rstrip("\r") for line in text.split("\n")]
        assert all(line.isprintable() for line in lines), text
        return lines

    def shows(self, text: str) -> list[str]:
        return self.sees(lambda lines: any(text in line for line in lines))

    def ends(self) -> int:
        until_s = time.monotonic() + SECONDS_MAX
        while time.monotonic() < until_s:
            self.listen(0.05)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
        raise AssertionError("it does not end")

    def close(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._fd)


@pytest.fixture
def opened() -> Iterator[Callable[..., Terminal]]:
    terminals: list[Terminal] = []

    def open_one(server: Server, columns: int = 100, lines: int = 24, *options: str) -> Terminal:
        command = [*STANIEL, "top", "--spool", str(server.spool), "--interval", "0.2", *options]
        terminals.append(Terminal(columns, lines, *command))
        return terminals[-1]

    yield open_one
    for terminal in terminals:
        terminal.close()


def fill(server: Server, **counts: int) -> None:
    with Wire(server.address) as wire:
        for queue, count in counts.items():
            for _ in range(count):
                assert wire.put(queue, b"x") == b"STORED"


def names(lines: list[str]) -> list[str]:
    """The queues that a frame shows, in their order."""
    at = next(number for number, line in enumerate(lines) if line.startswith("NAME"))
    return [line.split()[0] for line in lines[at + 1 : -1] if line.strip()]


def test_queues_are_shown_sorted_filtered_and_held_still(server: Server, opened: Callable[..., Terminal]) -> None:
    fill(server, apples=1, pears=3, plums=2)
    top = opened(server)
    lines = top.shows("pears")
    assert names(lines) == ["pears", "plums", "apples"] and "ready" in lines[0]
    assert "3 queues  6 items" in lines[1] and "connection" in lines[1] and "last sync" in lines[2]
    assert len(lines) == 24 and all(len(line) <= 100 for line in lines)
    top.press(b"r")
    top.sees(lambda lines: names(lines) == ["apples", "plums", "pears"])
    top.press(b"r\x1b[D")  # to the left: by name
    top.sees(lambda lines: names(lines) == ["apples", "pears", "plums"])
    top.press(b"/PL")
    top.sees(lambda lines: names(lines) == ["apples", "plums"] and "filter: PL" in lines[-1])
    top.press(b"\r")
    top.shows("filter: PL  q quit")
    top.press(b"\x1b")
    top.sees(lambda lines: len(names(lines)) == 3)
    top.press(b"p")
    top.shows(" PAUSED ")
    fill(server, kiwis=9)
    top.press(b"r")
    assert "kiwis" not in top.sees(lambda lines: " PAUSED " in lines[-1])
    top.press(b"p")
    top.shows("kiwis")
    top.press(b"?")
    top.shows("of the oldest item that can be handed out")
    top.press(b" ")
    top.shows("kiwis")
    top.press(b"q")
    assert top.ends() == 0
    assert top.heard.rstrip().endswith(b"\x1b[?1049l"), "what stood there before stands there again"


def test_small_terminals_and_those_that_change(server: Server, opened: Callable[..., Terminal]) -> None:
    fill(server, **{f"queue{number}": 1 for number in range(30)})
    top = opened(server, 200, 50)
    assert "SYNC" in top.shows("queue29")[3]
    for columns, lines in ((60, 10), (20, 5), (8, 3), (1, 1), (80, 24)):
        top.heard = b""
        top.resize(columns, lines)
        size = (columns, lines)
        shown = top.sees(lambda seen: (max(map(len, seen)), len(seen)) <= size and len(seen) == size[1])  # noqa: B023
        assert all(len(line) <= columns for line in shown)
    top.press(b"\x1b[F")
    assert names(top.shows("queue9"))[-1] == "queue9"
    top.press(b"\x03")
    assert top.ends() == 0


def test_no_figure_of_the_head_is_cut_off(server: Server, opened: Callable[..., Terminal]) -> None:
    fill(server, work=1)
    lines = opened(server, 60, 20).shows("work")
    assert re.fullmatch(r".*  (\S+/s|\d+ (open|waiting|connections))", lines[1].rstrip()), lines[1]
    assert re.fullmatch(r".*(ago|unsynced \S+ \w*B|of \S+ \w*B)", lines[2].rstrip()), lines[2]


def test_no_name_steers_the_terminal(server: Server, opened: Callable[..., Terminal]) -> None:
    with Wire(server.address) as wire:
        for name in (b"caf\xc3\xa9", b"\xc2\x9b31m", b"\xff\xfe", "\u4e16\u754c".encode(), b"n" * 150):
            assert wire.put(name.decode("latin-1"), b"x") == b"STORED" or True
    top = opened(server, 60, 12)
    lines = top.shows("nnnn")
    assert any("…" in line for line in lines)


def test_it_goes_on_when_the_server_is_back(server: Server, opened: Callable[..., Terminal]) -> None:
    fill(server, work=2)
    top = opened(server)
    top.shows("work")
    server.stop()
    assert "work" in names(top.shows("NOT CONNECTED"))
    server.start()
    fill(server, later=1)
    top.sees(lambda lines: "later" in names(lines) and "ready" in lines[0])
    os.kill(top.pid, signal.SIGTERM)
    assert top.ends() == 128 + signal.SIGTERM


def test_one_frame_for_a_file(server: Server) -> None:
    fill(server, work=2, other=1)
    said = run_staniel("top", "--once", "--sort", "name", STANIEL_SPOOL=str(server.spool))
    assert said.returncode == 0 and "\x1b" not in said.stdout
    assert [line.split()[0] for line in said.stdout.splitlines()[3:]] == ["NAME▼", "other", "work"]
    over_tcp = run_staniel("top", "--json", "--filter", "wo", STANIEL_URL=f"http://127.0.0.1:{server.second_port}")
    assert '"name": "work"' in over_tcp.stdout and '"name": "other"' not in over_tcp.stdout


def test_a_frame_for_a_file_has_names_whole(server: Server) -> None:
    name = "long-" * 30
    fill(server, **{name: 1})
    told = run_staniel("top", "--once", STANIEL_SPOOL=str(server.spool)).stdout.splitlines()
    assert told[1].startswith("1 queue  1 item, ")
    assert told[4].split()[:2] == [name, "1"] and told[4].split()[-1] == "os"


def test_what_is_missing_is_said(server: Server, tmp_path: Path) -> None:
    refused = run_staniel("top", STANIEL_SPOOL=str(server.spool))
    assert refused.returncode == 2 and "--once" in refused.stderr
    nothing = run_staniel("top", "--once", STANIEL_SPOOL=str(tmp_path / "none"))
    assert nothing.returncode == 1 and "no server listens" in nothing.stderr
    hidden = tmp_path / "hidden" / "rich"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('hidden')")
    without = run_staniel("top", "--once", STANIEL_SPOOL=str(server.spool), PYTHONPATH=str(hidden.parent))
    assert without.returncode == 1 and "pip install 'staniel[top]'" in without.stderr
    assert without.stderr.count("\n") == 1


@pytest.mark.slow
def test_at_rest_it_costs_little(server: Server) -> None:
    """One percent of a core with 1,000 queues: measured as processor time, with room for a slow machine."""
    fill(server, **{f"queue{number}": 1 for number in range(1000)})
    top = Terminal(120, 40, *STANIEL, "top", "--spool", str(server.spool))
    try:
        top.shows("queue12")
        seconds = 4.0  # twelve ticks of the system's count of processor time may pass
        before = cpu_seconds(top.pid)
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            top.listen(0.2)
        assert cpu_seconds(top.pid) - before < 0.03 * seconds
    finally:
        top.close()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_row_is_forgotten_when_its_queue_is_gone_or_the_server_begins_anew() -> None:
    model = TopModel()
    row = ["q", 1, 2, 0, 0.0, 0.0, 0, 0, 0, 0, "none", "always", -1, "", False, 0, []]
    model.learn(TopEvent(is_first=True, rows=[[*row, 5, "zz"], ["r", *row[1:]]]), 0)
    assert [each.name for each in model.shown()] == ["q", "r"] and len(COLUMNS) == 13
    model.learn(TopEvent(rows=[["r"]]), 0)
    assert [each.name for each in model.shown()] == ["q"]
    model.learn(TopEvent(is_first=True, more=True, rows=[["s", *row[1:]]]), 0)
    assert [each.name for each in model.shown()] == ["q"], "until all is known again"
    model.learn(TopEvent(rows=[["t", *row[1:]]]), 0)
    assert [each.name for each in model.shown()] == ["s", "t"]


def test_retention_holds_stand_beside_the_disk() -> None:
    figures = [HoldFigure("archive", HoldState.ACTIVE, 3 << 20, 0, 0), HoldFigure("old", HoldState.DROPPED, 0, 9, 0)]
    model = TopModel()
    model.learn(TopEvent(at_ms=180_000, is_first=True, disk=DiskView(1 << 30, 1 << 40, figures)), 0)
    text = "\n".join(line.plain for line in whole(model, "here", 200, 0))
    assert "1.0 TB  hold archive 3.0 MB, 3 m 0 s  hold old DROPPED" in text
