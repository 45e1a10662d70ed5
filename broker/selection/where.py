"""Terms that choose items. An item has to meet all of them.

    id=1732790000000-9f86d081884c7d65    as `staniel find` and `GET …/items` show it; several with commas
    position=0-99                        from the head on, 0 is the head
    text~timeout                         these letters anywhere in the payload
    regex~"user": (7|8)\\b               an expression of RE2 that matches anywhere in the payload
    age>1h   size>=10KB   tries>=3       since the put; of the payload; how often it was handed out
    origin=work   reason=dead            of a dead letter: the queue that it left, and why

`<`, `<=`, `>`, `>=` and `=` compare numbers. `text~` compares bytes; `regex~` reads UTF-8.

Up to four `text~` and one `regex~` can be given. RE2 takes time in proportion to the payload times the size of the
compiled expression: with Python's own one operator's pattern could hold up every client. So the larger an expression
is, the less of a payload is searched. It is an extra of the installation, so that the base stays small.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from hashlib import blake2b
from operator import eq, ge, gt, le, lt

from msgspec import Struct

from staniel.broker.config.values import parse_duration, parse_size
from staniel.queues.calendar import Calendar
from staniel.queues.item import Item
from staniel.queues.past import Why, past_of

TERMS_MAX = 20
TERM_LENGTH_MAX = 100_000  # a list of ids is long
TEXT_TERMS_MAX, REGEX_TERMS_MAX = 4, 1
TEXT_BYTES_MAX = 16 << 20  # of the beginning of a payload, searched for a text: 3 ms
REGEX_BYTES_MAX = 32 << 10  # searched for an expression; with a large one less, so that
REGEX_WORK_MAX = 400_000  # bytes times instructions do not exceed this: at worst 20 ms
REGEX_SIZE_MAX = 400  # instructions; `"user": (7|8)\b` has 15
REGEX_LENGTH_MAX = 1000  # characters; compiling a thousand times `a?` takes milliseconds
REGEX_COST = 36  # applying an instruction to a byte takes as long as searching so many bytes for a text
HASHED_BYTES = 4096  # of each end of a payload, for the item's id
PATTERN_MEMORY_BYTES = 1 << 20
NUMBER_LENGTH_MAX = 40
SHOWN_LENGTH_MAX = 200
EXTRA = "regex~ needs the extra `regex` where the server runs: pip install 'staniel[regex]'; text~ needs nothing"
EXAMPLES = "such as age>1h, text~timeout, tries>=3, id=ID, position=0-99"
_TERM = re.compile(r"(id|position|text|regex|age|size|tries|origin|reason)(<=|>=|<|>|=|~)(.*)", re.DOTALL)
_COMPARED = {"<": lt, "<=": le, ">": gt, ">=": ge, "=": eq}


class BadTerm(ValueError):
    """The error for a term that cannot be parsed. The text says why."""


class Candidate(Struct):
    """An item in a search at `at_ms`, in server time. `position`: how many items stood before it. `deliveries`: how
    often it was delivered before.
    """

    position: int
    item: Item
    deliveries: int
    calendar: Calendar
    at_ms: int

    @property
    def age_ms(self) -> int:
        return max(0, self.at_ms - self.calendar.added_ms(self.item, self.at_ms))


ItemTest = Callable[[Candidate], bool]


class Where(Struct, frozen=True):
    """The parsed terms. `first` and `last`: the range of positions. `searched_bytes`: how much of a payload each term
    searches; -1: none. `texts`: the number of terms that search for a text. `regex_bytes`, `regex_size`: how much of a
    payload the expression searches, and the number of its instructions. `tells_equal_apart`: a term depends on
    deliveries or position, so that equal items are not interchangeable. `terms`: the text as given.
    """

    tests: tuple[ItemTest, ...] = ()
    first: int = 0
    last: int = 1 << 62
    searched_bytes: int = -1
    texts: int = 0
    regex_bytes: int = 0
    regex_size: int = 0
    tells_equal_apart: bool = False
    terms: str = ""

    def cost(self, size_bytes: int) -> int:
        """Return the time that searching a payload of that size takes, in bytes of a text search."""
        regex_work = min(size_bytes, self.regex_bytes) * self.regex_size
        return size_bytes + min(size_bytes, TEXT_BYTES_MAX) * self.texts + regex_work * REGEX_COST

    def holds(self, seen: Candidate) -> bool:
        if not self.first <= seen.position <= self.last:
            return False
        for test in self.tests:  # noqa: SIM110  # a generator takes three times as long
            if not test(seen):
                return False
        return True


def item_id(item: Item) -> str:
    """Return an item's id: the time of the put, and a digest of its length and of the two ends of its payload. The id
    stays the same while the item waits, also across restarts. Items that are equal in these values share an id.
    """
    size = len(item.data).to_bytes(8, "little")
    digest = blake2b(ends_of(item.data, HASHED_BYTES), digest_size=8, salt=size)
    return f"{item.added_ms}-{digest.hexdigest()}"


def ends_of(data: bytes, size_bytes: int) -> bytes:
    """Return `size_bytes` bytes of each end of `data`, or all of it."""
    return data if len(data) <= 2 * size_bytes else data[:size_bytes] + data[-size_bytes:]


def parse(terms: Iterable[str]) -> Where:
    """Parse terms. Raises BadTerm."""
    terms = list(terms)
    tests: list[ItemTest] = []
    first, last, searched = 0, 1 << 62, -1
    texts = regexes = regex_size = regex_bytes = 0
    tells_equal_apart = False
    for count, term in enumerate(terms):
        if count == TERMS_MAX:
            raise BadTerm(f"more than {TERMS_MAX} terms")
        match = _TERM.fullmatch(term) if len(term) <= TERM_LENGTH_MAX else None
        if match is None:
            raise BadTerm(f"{term[:80]!r} is not a term: expected a field, an operator and a value, {EXAMPLES}")
        field, operator, value = match.groups()
        tells_equal_apart |= field in ("tries", "position")
        if field in ("text", "regex"):
            _expect(term, operator == "~" and bool(value), f"{field}~ and what to look for")
            limit = TEXT_BYTES_MAX
            if field == "text":
                texts += 1
                tests.append(_text(value))
            else:
                regexes += 1
                test, regex_size, regex_bytes = _regex(value)
                tests.append(test)
                limit = regex_bytes
            searched = limit if searched < 0 else min(searched, limit)
        elif field == "position":
            ends = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", value)
            _expect(term, operator == "=" and ends is not None, "position=N or position=FIRST-LAST; 0 is the head")
            assert ends is not None
            _expect(term, int(ends[1]) <= int(ends[2] or ends[1]), "position=FIRST-LAST with FIRST before LAST")
            first = max(first, int(ends[1]))
            last = min(last, int(ends[2] or ends[1]))
        elif field in ("age", "size", "tries"):
            tests.append(_number(term, field, operator, value))
        else:
            _expect(term, operator == "=" and bool(value), f"{field}= and a value")
            tests.append(_word(term, field, value))
    said = " and ".join(terms)
    shown = said if len(said) <= SHOWN_LENGTH_MAX else f"{said[:SHOWN_LENGTH_MAX]}…"
    if texts > TEXT_TERMS_MAX or regexes > REGEX_TERMS_MAX:
        raise BadTerm(f"at most {TEXT_TERMS_MAX} text~ and {REGEX_TERMS_MAX} regex~; an expression can say (one|other)")
    return Where(tuple(tests), first, last, searched, texts, regex_bytes, regex_size, tells_equal_apart, shown)


def _expect(term: str, is_right: bool, expected: str) -> None:
    if not is_right:
        raise BadTerm(f"{term[:80]!r}: expected {expected}")


def _text(value: str) -> ItemTest:
    wanted = value.encode("utf-8", "surrogateescape")
    return lambda seen: seen.item.data.find(wanted, 0, TEXT_BYTES_MAX) >= 0


def _regex(value: str) -> tuple[ItemTest, int, int]:
    """Return (the test, the size of the expression, how many bytes of a payload it searches)."""
    if len(value) > REGEX_LENGTH_MAX:
        raise BadTerm(f"regex~ is too large: {len(value)} characters, {REGEX_LENGTH_MAX} at most")
    try:
        import re2
    except ImportError:
        raise BadTerm(EXTRA) from None
    options = re2.Options()
    options.log_errors = False  # to standard error
    options.max_mem = PATTERN_MEMORY_BYTES
    try:
        pattern = re2.compile(value.encode("utf-8", "surrogateescape"), options)
    except re2.error as error:
        why = error.args[0] if error.args else error
        told = why.decode("utf-8", "replace") if isinstance(why, bytes) else str(why)
        raise BadTerm(f"regex~ is not an expression of RE2: {told}") from None
    size = pattern.programsize
    if size > REGEX_SIZE_MAX:
        why = f"it compiles to {size} instructions, {REGEX_SIZE_MAX} at most: repeat or list fewer, or use text~"
        raise BadTerm(f"regex~ is too large: {why}")
    bytes_max = min(REGEX_BYTES_MAX, REGEX_WORK_MAX // max(1, size))
    return lambda seen: pattern.search(seen.item.data[:bytes_max]) is not None, size, bytes_max


def _number(term: str, field: str, operator: str, value: str) -> ItemTest:
    is_right = operator in _COMPARED and len(value) <= NUMBER_LENGTH_MAX
    _expect(term, is_right, f"{field} with <, <=, >, >= or =, and a short number")
    compare = _COMPARED[operator]
    try:
        if field == "age":
            age_ms = parse_duration(value)
            return lambda seen: compare(seen.age_ms, age_ms)
        if field == "size":
            size_bytes = parse_size(value)
            return lambda seen: compare(len(seen.item.data), size_bytes)
    except ValueError as error:
        raise BadTerm(f"{term[:80]!r}: {error}") from None
    _expect(term, value.isascii() and value.isdigit() and len(value) <= 18, "a number of deliveries")
    tries = int(value)
    return lambda seen: compare(seen.deliveries, tries)


def _word(term: str, field: str, value: str) -> ItemTest:
    if field == "id":
        ids = frozenset(value.split(","))
        times = {shown_id.rpartition("-")[0] for shown_id in ids}
        is_right = all(re.fullmatch(r"-?[0-9]{1,19}-[0-9a-f]{16}", shown_id) for shown_id in ids)
        _expect(term, is_right, "ids as `staniel find` shows them")
        return lambda seen: str(seen.item.added_ms) in times and item_id(seen.item) in ids
    if field == "reason":
        known = [why.name.lower() for why in Why]
        _expect(term, value in known, f"reason={' or '.join(known)}")
        return lambda seen: (past := past_of(seen.item)) is not None and past.why.name.lower() == value
    return lambda seen: (past := past_of(seen.item)) is not None and past.origin_name == value
