"""The terminal: frames on its alternate screen, keys, changes of its size. The previous content is restored at the end,
however the command ends.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

from staniel.server.cli.top.feed import Feed
from staniel.server.cli.top.frame import frame, help_frame, rows_on
from staniel.server.cli.top.model import COLUMNS, TopModel

ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
KEYS = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1b[C": "right",
    b"\x1b[D": "left",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b"\x1b[H": "home",
    b"\x1b[1~": "home",
    b"\x1b[F": "end",
    b"\x1b[4~": "end",
    b"\x1bOA": "up",
    b"\x1bOB": "down",
    b"\x1bOC": "right",
    b"\x1bOD": "left",
}
ESCAPE, BACKSPACES, ENTERS, QUITS = "\x1b", ("\x7f", "\b"), ("\r", "\n"), ("q", "Q", "\x03")
FILTER_MAX = 200


class QuitPressed(Exception):
    """The user has pressed a key that quits."""


class Screen:
    """A screen. `first` is the number of rows scrolled past; `prompt` the filter while it is typed, else None."""

    def __init__(self, model: TopModel, where: str, interval_s: float) -> None:
        self.model = model
        self.where = where
        self.interval_s = interval_s
        self.first = 0
        self.prompt: str | None = None
        self.shows_help = False
        self._console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
        self._wake_in, self._wake_out = os.pipe()
        os.set_blocking(self._wake_out, False)
        os.set_blocking(self._wake_in, False)
        self._size = (0, 0)

    def wake(self) -> None:
        """Wake the screen for a new event. Any thread may call it."""
        try:
            os.write(self._wake_out, b"!")
        except BlockingIOError:
            pass  # it is awake

    def run(self, feed: Feed) -> None:
        """Run until a key quits. New events are drawn with the next frame; a key and a new size at once."""
        keyboard = sys.stdin.fileno()
        with self._full_screen(keyboard):
            feed.start()
            due_s = 0.0
            while True:
                left_s = due_s - time.monotonic()
                ready, _, _ = select.select([keyboard, self._wake_in], [], [], max(0.0, left_s))
                self._apply_news(feed)
                is_asked = False
                if keyboard in ready:
                    try:
                        self._handle_keys(os.read(keyboard, 1024))
                    except QuitPressed:
                        return
                    is_asked = True
                if is_asked or time.monotonic() >= due_s or os.get_terminal_size() != self._size or self._is_new:
                    self.draw()
                    due_s = time.monotonic() + self.interval_s

    @property
    def _is_new(self) -> bool:
        """True for the first complete data, which does not wait for the next frame."""
        return self.model.is_whole and not self._has_drawn_rows

    _has_drawn_rows = False

    def _apply_news(self, feed: Feed) -> None:
        try:
            os.read(self._wake_in, 4096)
        except BlockingIOError:
            pass
        take_in(self.model, feed)

    def draw(self) -> None:
        """Draw a frame over the one before."""
        self._size = size = os.get_terminal_size()
        self._has_drawn_rows = self.model.is_whole
        if self.shows_help:
            lines = help_frame(size)
        else:
            last = max(0, len(self.model.shown()) - rows_on(size.lines))
            self.first = max(0, min(self.first, last))
            lines = frame(self.model, self.where, size, now_ms(), self.first, self.prompt)
        sys.stdout.write("\x1b[H" + "\x1b[K\r\n".join(rendered(self._console, lines, size.columns)) + "\x1b[J")
        sys.stdout.flush()

    # keys

    def _handle_keys(self, data: bytes) -> None:
        for key in keys_of(data):
            if self.shows_help:
                self.shows_help = False
            elif self.prompt is not None:
                self._edit_filter(key)
            else:
                self._run_key(key)

    def _edit_filter(self, key: str) -> None:
        assert self.prompt is not None
        if key == ESCAPE:
            self.model.filter, self.prompt = "", None
        elif key in ENTERS:
            self.prompt = None
        elif key == "\x03":
            raise QuitPressed
        else:
            if key in BACKSPACES:
                self.prompt = self.prompt[:-1]
            elif len(key) == 1 and key.isprintable() and len(self.prompt) < FILTER_MAX:
                self.prompt += key
            self.model.filter = self.prompt
            self.first = 0

    def _run_key(self, key: str) -> None:
        page = max(1, rows_on(self._size[1]))
        model = self.model
        if key in QUITS:
            raise QuitPressed
        if key in ("left", "<"):
            model.sort_by(model.sort - 1)
        elif key in ("right", ">"):
            model.sort_by(model.sort + 1)
        elif key == "r":
            model.is_reversed = not model.is_reversed
        elif key == "/":
            self.prompt = model.filter
        elif key == ESCAPE:
            model.filter = ""
        elif key in ("p", " "):
            model.pause(now_ms())
        elif key in ("?", "h"):
            self.shows_help = True
        self.first += {"up": -1, "down": 1, "page up": -page, "page down": page, "end": 1 << 40}.get(key, 0)
        if key == "home":
            self.first = 0

    # the terminal

    @contextmanager
    def _full_screen(self, keyboard: int) -> Iterator[None]:
        before = termios.tcgetattr(keyboard)
        handlers = {
            signal.SIGWINCH: signal.signal(signal.SIGWINCH, lambda number, at: self.wake()),
            signal.SIGTERM: signal.signal(signal.SIGTERM, _end),
            signal.SIGHUP: signal.signal(signal.SIGHUP, _end),
            # A shell starts background jobs with this signal ignored.
            signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
        }
        try:
            tty.setcbreak(keyboard)
            sys.stdout.write(ENTER)
            yield
        except KeyboardInterrupt:
            pass
        finally:
            sys.stdout.write(LEAVE)
            sys.stdout.flush()
            termios.tcsetattr(keyboard, termios.TCSAFLUSH, before)
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _end(number: int, at: object) -> None:
    raise SystemExit(128 + number)


def take_in(model: TopModel, feed: Feed) -> None:
    """Apply the events received since the last call. Raises msgspec.ValidationError."""
    while feed.news:
        news = feed.news.popleft()
        if isinstance(news, str):
            model.lose(news)
        else:
            model.learn(news, now_ms())


def now_ms() -> int:
    """Return the time of a monotonic clock."""
    return time.monotonic_ns() // 1_000_000


def rendered(console: Console, lines: list[Text], width: int) -> list[str]:
    """Return the lines with the terminal's sequences for their styles, and no others."""
    console.width = max(1, width)
    with console.capture() as captured:
        console.print(Text("\n").join(lines), no_wrap=True, overflow="crop", end="")
    return captured.get().split("\n")


def keys_of(data: bytes) -> list[str]:
    """Return the pressed keys: letters, and names for keys that send sequences; unknown ones are left out."""
    keys: list[str] = []
    while data:
        sequence = next((known for known in KEYS if data.startswith(known)), None)
        if sequence is not None:
            keys.append(KEYS[sequence])
            data = data[len(sequence) :]
        elif data[:2] in (b"\x1b[", b"\x1bO"):
            end = next((at for at in range(2, len(data)) if 0x40 <= data[at] <= 0x7E), len(data) - 1)
            data = data[end + 1 :]
        else:
            size = next((size for size in (1, 2, 3, 4) if _is_letter(data[:size])), 1)
            keys.append(data[:size].decode("utf-8", "replace"))
            data = data[size:]
    return keys


def _is_letter(data: bytes) -> bool:
    try:
        return len(data.decode("utf-8")) == 1
    except UnicodeDecodeError:
        return False


__all__ = ["COLUMNS", "Screen", "keys_of", "now_ms", "rendered", "take_in"]
