"""A reader of Kestrel's configuration files: assignments in a `new KestrelConfig { … }`.

Such a file is Scala, and may hold any program. The reader knows literals, units, lists and `new … { … }`; anything
else is `Unknown`, with its line, and reading continues behind it.
"""

from __future__ import annotations

import re
from typing import TypeAlias

from msgspec import Struct

from staniel.broker.config.values import DURATION_UNITS, SIZE_UNITS

TOKEN = re.compile(
    r'(?P<skip>[ \t\r]+|//[^\n]*|/\*.*?\*/)|(?P<string>"""(?:.*?)"""|"(?:[^"\\\n]|\\.)*")'
    r"|(?P<number>0[xX][0-9a-fA-F]+|[0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?[LlFfDd]?)"
    r"|(?P<name>[A-Za-z_$][\w$]*|`[^`\n]*`)|(?P<end>\n)|(?P<sign>::|=>|->|==|\+=|.)",
    re.DOTALL,
)
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
LISTS = ("List", "Seq", "Set", "Array", "Vector")
NUMBERS_LIKE = ("inBytes", "toInt", "toLong", "inMilliseconds")  # the same thing as another type
ENDLESS = ("Int.MaxValue", "Long.MaxValue", "Duration.Top", "Duration.MaxValue", "Duration.forever")
UNITS_OF_TIME = {
    "millisecond": "ms", "milliseconds": "ms", "millis": "ms", "second": "s", "seconds": "s", "minute": "m",
    "minutes": "m", "hour": "h", "hours": "h", "day": "d", "days": "d",
}  # fmt: skip
UNITS_OF_SIZE = {
    "byte": "B", "bytes": "B", "kilobyte": "KB", "kilobytes": "KB", "megabyte": "MB", "megabytes": "MB",
    "gigabyte": "GB", "gigabytes": "GB", "terabyte": "TB", "terabytes": "TB",
}  # fmt: skip


class ScalaError(Exception):
    """The file is no configuration of Kestrel; the text says why."""


class Token(Struct, frozen=True):
    """A token. `kind`: "string", "number", "name", "sign", "end" (of a line), "" behind the last one."""

    kind: str
    text: str
    line: int


class Duration(Struct, frozen=True):
    ms: float


class Size(Struct, frozen=True):
    bytes: float


class Word(Struct, frozen=True):
    """A name such as `Level.INFO`."""

    text: str


class Nothing(Struct, frozen=True):
    """The value None, or no limit."""


class Unknown(Struct, frozen=True):
    """A value that the reader does not understand."""


class Assignment(Struct, frozen=True):
    path: str
    value: Value
    line: int


class Made(Struct, frozen=True):
    """An object `new NAME { … }`, with its assignments."""

    name: str
    fields: list[Assignment]
    line: int


Value: TypeAlias = str | bool | int | float | Duration | Size | Word | Nothing | Unknown | Made | list["Value"]


def read_config(text: str) -> list[Assignment]:
    """Return the assignments of the file, in order. Raises ScalaError."""
    parser = ScalaParser(tokens_of(text))
    parser.find_config()
    return parser.block()


def tokens_of(text: str) -> list[Token]:
    tokens, line = [], 1
    for match in TOKEN.finditer(text):
        if match.lastgroup != "skip":
            tokens.append(Token(match.lastgroup or "", match[0], line))
        line += match[0].count("\n")
    return [*tokens, Token("", "", line)]


class ScalaParser:
    """A recursive-descent parser. A method that cannot read an expression returns Unknown and leaves its position
    undefined.
    """

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._named: dict[str, Value] = {}  # by `val`
        self._broken = False

    def find_config(self) -> None:
        """Skip to behind the `{` of `new KestrelConfig {`. Raises ScalaError."""
        while self._next.kind:
            if self._accept("new") and self._qualified().rpartition(".")[2] == "KestrelConfig" and self._accept("{"):
                return
            if self._next.kind and self._next.text != "new":
                self._at += 1
        raise ScalaError("it has no `new KestrelConfig { … }`: expected a configuration of Kestrel 2")

    def block(self) -> list[Assignment]:
        """Return the assignments up to the `}` that ends the block, which is consumed. Raises ScalaError."""
        assignments = list[Assignment]()
        while not self._accept("}"):
            token = self._next
            if not token.kind:
                raise ScalaError(f"line {token.line}: a {{ has no matching }}")
            if token.kind == "end" or token.text == ";":
                self._at += 1
            else:
                assignments += self._statement()
        return assignments

    # statements

    def _statement(self) -> list[Assignment]:
        begin, line = self._at, self._next.line
        if self._accept("import"):
            self._skip_statement()
            return []
        is_setting = self._accept("override")
        is_val = False
        while any(self._accept(word) for word in ("lazy", "val", "var")):
            is_val = not is_setting
        path = self._qualified()
        if self._accept(":"):
            self._qualified()
        if not path or not self._accept("="):
            self._at = begin
            shown = " ".join(token.text for token in self._tokens[begin : begin + 6] if token.line == line)
            self._skip_statement()
            return [Assignment(shown, Unknown(), line)]
        value = self._whole_expression()
        if is_val:
            self._named[path] = value
            return []
        return [Assignment(path, value, line)]

    def _whole_expression(self) -> Value:
        self._broken = False
        begin = self._at
        self._skip_ends()
        value = self._expression()
        if not self._broken and self._next.text in ("}", ";", "", "\n"):
            return value
        self._at = begin
        self._skip_statement()
        return Unknown()

    def _skip_statement(self) -> None:
        """Skip to the end of the statement: that of its line, unless brackets are open there."""
        depth = 0
        while True:
            token = self._next
            if not token.kind or (not depth and (token.kind == "end" or token.text in ("}", ";"))):
                return
            depth += (token.text in "({[") - (token.text in ")}]") if token.kind == "sign" else 0
            self._at += 1

    # expressions

    def _expression(self) -> Value:
        first = self._sum()
        if not self._accept_later("::"):
            return first
        self._skip_ends()
        others = self._expression()
        return [first, *others] if isinstance(others, list) else [first, others]

    def _sum(self) -> Value:
        value = self._product()
        while self._next.text in ("+", "-"):
            sign = self._pop_token().text
            self._skip_ends()
            value = _calculate(value, sign, self._product())
        return value

    def _product(self) -> Value:
        value = self._postfix()
        while self._next.text in ("*", "/"):
            sign = self._pop_token().text
            self._skip_ends()
            value = _calculate(value, sign, self._postfix())
        return value

    def _postfix(self) -> Value:
        value = self._primary()
        units = UNITS_OF_TIME | UNITS_OF_SIZE
        while (isinstance(value, int | float) and self._next.text in units) or self._accept_later("."):
            value = _with_unit(value, self._pop_token().text)
        return value

    def _primary(self) -> Value:
        token = self._next
        if token.kind == "string":
            return _text_of(self._pop_token().text)
        if token.kind == "number":
            return _number_of(self._pop_token().text)
        if self._accept("-"):
            value = self._primary()
            return -value if isinstance(value, int | float) else Unknown()
        if self._accept("("):
            (value, *others) = self._list_elements() or [Unknown()]
            return Unknown() if others else value
        if self._accept("new"):
            return self._made(token.line)
        if token.kind == "name":
            return self._name()
        self._broken = True
        return Unknown()

    def _name(self) -> Value:
        name = self._pop_token().text
        if name in ("true", "false"):
            return name == "true"
        if name in ("None", "Nil"):
            return Nothing() if name == "None" else []
        if name == "Some" and self._accept("("):
            return (self._list_elements() or [Unknown()])[0]
        if name in LISTS and self._accept("("):
            return self._list_elements()
        while self._next.text == "." and self._tokens[self._at + 1].kind == "name" and name not in self._named:
            self._at += 1
            name += f".{self._pop_token().text}"
        if name in ENDLESS:
            return Nothing()
        if self._next.text in ("(", "["):
            self._broken = True
        return self._named.get(name, Word(name))

    def _made(self, line: int) -> Value:
        name = self._qualified()
        if self._next.text == "[":
            self._broken = True
            return Unknown()
        if self._accept("("):
            self._list_elements()
        fields = list[Assignment]()
        if self._accept("{"):
            was_broken = self._broken
            fields = self.block()
            self._broken = was_broken
        return Made(name.rpartition(".")[2], fields, line)

    def _list_elements(self) -> list[Value]:
        """Return the elements behind an opening bracket, up to the closing one."""
        elements = list[Value]()
        self._skip_ends()
        while not self._broken and not self._accept(")"):
            elements.append(self._expression())
            self._skip_ends()
            if self._accept("="):  # a named argument
                self._skip_ends()
                elements[-1] = self._expression()
                self._skip_ends()
            if not self._accept(",") and self._next.text != ")":
                self._broken = True
            self._skip_ends()
        return elements

    def _qualified(self) -> str:
        """Return a name with dots; empty if there is none."""
        parts = list[str]()
        while self._next.kind == "name":
            parts.append(self._pop_token().text.strip("`"))
            if not (self._next.text == "." and self._tokens[self._at + 1].kind == "name"):
                break
            self._at += 1
        return ".".join(parts)

    # tokens

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    def _pop_token(self) -> Token:
        token = self._next
        self._at += bool(token.kind)
        return token

    def _accept(self, text: str) -> bool:
        if self._next.text != text or self._next.kind == "string":
            return False
        self._at += 1
        return True

    def _accept_later(self, text: str) -> bool:
        """Take a token like `_accept`, also on a later line."""
        begin = self._at
        self._skip_ends()
        if self._accept(text):
            return True
        self._at = begin
        return False

    def _skip_ends(self) -> None:
        while self._next.kind == "end":
            self._at += 1


def _text_of(spelled: str) -> str:
    if spelled.startswith('"""'):
        return spelled[3:-3]
    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", lambda match: _unescape(match[1]), spelled[1:-1])


def _unescape(text: str) -> str:
    return chr(int(text[1:], 16)) if len(text) > 1 else ESCAPES.get(text, text)


def _number_of(spelled: str) -> Value:
    text = spelled.replace("_", "")
    if text[:2].lower() == "0x":
        return int(text, 16)
    text = text.rstrip("LlFfDd")
    return int(text) if text.isdigit() else float(text)


def _with_unit(value: Value, unit: str) -> Value:
    if isinstance(value, int | float) and not isinstance(value, bool):
        if unit in UNITS_OF_TIME:
            return Duration(value * DURATION_UNITS[UNITS_OF_TIME[unit]])
        if unit in UNITS_OF_SIZE:
            return Size(value * SIZE_UNITS[UNITS_OF_SIZE[unit]])
    if unit in NUMBERS_LIKE and isinstance(value, int | float | Size | Duration):
        return value
    return Unknown()


def _calculate(left: Value, sign: str, right: Value) -> Value:
    if isinstance(left, str) and isinstance(right, str) and sign == "+":
        return left + right
    if isinstance(left, Size) and isinstance(right, Size) and sign in "+-":
        return Size(left.bytes + right.bytes if sign == "+" else left.bytes - right.bytes)
    if isinstance(left, Size) and isinstance(right, int | float) and sign in "*/" and right:
        return Size(left.bytes * right if sign == "*" else left.bytes / right)
    if isinstance(left, int | float) and isinstance(right, Size) and sign == "*":
        return Size(left * right.bytes)
    if isinstance(left, int) and isinstance(right, int) and (right or sign != "/"):
        return {"+": left + right, "-": left - right, "*": left * right}.get(sign, left // (right or 1))
    return Unknown()
