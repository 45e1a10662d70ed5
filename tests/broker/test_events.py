"""Lines that clients can bring about as often as they like are few."""

from __future__ import annotations

from staniel.broker.events import KINDS_MAX, SELDOM_MS, Level, RateLimitedSink


class Lines:
    def __init__(self) -> None:
        self.seen: list[dict[str, object]] = []

    def __call__(self, level: Level, event: str, /, **fields: object) -> None:
        self.seen.append({"event": event, **fields})


def test_one_line_a_reason_and_the_next_says_how_many_were_left_out() -> None:
    lines = Lines()
    tell = RateLimitedSink(lines)
    for now_ms in range(SELDOM_MS + 1):
        tell(Level.INFO, "e", now_ms, why="a", client=now_ms)
    tell(Level.INFO, "e", SELDOM_MS, why="b", client=0)
    tell(Level.INFO, "e", 9 * SELDOM_MS, why="a", client=0)
    assert lines.seen == [
        {"event": "e", "why": "a", "client": 0},
        {"event": "e", "why": "a", "client": SELDOM_MS, "left_out": SELDOM_MS - 1},
        {"event": "e", "why": "b", "client": 0},
        {"event": "e", "why": "a", "client": 0},
    ]


def test_reasons_without_end_are_neither_written_nor_remembered_each() -> None:
    lines = Lines()
    tell = RateLimitedSink(lines, burst=3)
    for number in range(10 * KINDS_MAX):
        tell(Level.INFO, "e", 1, why=str(number))
        tell(Level.INFO, "e", 1, why="0")
    assert len(lines.seen) == KINDS_MAX + 2 + 3, "one of each that is told apart, two more of one, the others together"
    assert len(tell._limit._windows) == KINDS_MAX + 1
    tell(Level.INFO, "e", 1 + SELDOM_MS, why="new")
    assert lines.seen[-1] == {"event": "e", "why": "new"}, "who floods is not in another's way later"


def test_lines_are_counted_together_by_what_is_said_to_be_their_kind() -> None:
    lines = Lines()
    tell = RateLimitedSink(lines)
    for number in range(4):
        tell.of_kind("one", Level.INFO, "e", 1, why=str(number))
    tell.of_kind("other", Level.INFO, "e", 1, why="0")
    tell.of_kind("one", Level.INFO, "e", 1 + SELDOM_MS, why="4")
    assert [(line["why"], line.get("left_out")) for line in lines.seen] == [("0", None), ("0", None), ("4", 3)]


def test_a_burst_of_lines_is_written_and_the_rest_counted() -> None:
    lines = Lines()
    tell = RateLimitedSink(lines, burst=3)
    for number in range(10):
        tell(Level.INFO, "e", 1, number=number)
    assert [line["number"] for line in lines.seen] == [0, 1, 2]
    for number in (10, 11):
        tell(Level.INFO, "e", 1 + SELDOM_MS, number=number)
    assert lines.seen[3:] == [{"event": "e", "number": 10, "left_out": 7}, {"event": "e", "number": 11}]
