"""Go's text/template syntax: a template becomes a tree of text, actions and blocks, each with its location.

Read from text/template/parse (Go 1.24): delimiters with trim markers, comments, pipelines, variables and blocks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TypeAlias

from preflight._util.budget import spend

#: Levels of nested blocks, and of nested parentheses.
MAX_DEPTH = 60
_ACTION = re.compile(
    r"\{\{(?P<left>-(?=\s))?(?:\s*/\*(?P<comment>.*?)\*/\s*?|(?P<body>(?:\"(?:[^\"\\\n]|\\.)*\"|`[^`]*`|[^\"`]){0,20000}?))"
    r"(?P<right>\s-)?\}\}",
    re.DOTALL,
)
_TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<string>\"(?:[^\"\\\n]|\\.)*\")|(?P<raw>`[^`]*`)|(?P<char>'(?:[^'\\]|\\.)+')"
    r"|(?P<number>[+-]?(?:0[xX][0-9a-fA-F_]+|[0-9][0-9_]*(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?))"
    r"|(?P<field>\.[A-Za-z_]\w*)|(?P<variable>\$\w*)|(?P<word>[A-Za-z_]\w*)|(?P<sign>:=|[=|(),.])"
)


_BLANKS = re.compile(r"[ \t\r\n]*")


class TemplateFault(ValueError):
    """The template cannot be parsed; `start` is the location."""

    def __init__(self, message: str, start: int) -> None:
        super().__init__(message)
        self.start = start


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant."""

    value: str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Dot:
    """`.`, the current value."""


@dataclass(frozen=True, slots=True)
class Variable:
    """`$name`; `$` is the value that the template was given."""

    name: str


@dataclass(frozen=True, slots=True)
class Function:
    """A function's name, called with the arguments of its command."""

    name: str


@dataclass(frozen=True, slots=True)
class Fields:
    """`base.a.b`."""

    base: Operand
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Commands, each of which gets the result of the one before as its last argument.

    `declares` are the variables it sets; `assigns`: whether they are set with `=` and so exist already.
    """

    commands: tuple[tuple[Operand, ...], ...]
    declares: tuple[str, ...] = ()
    assigns: bool = False


Operand: TypeAlias = "Literal | Dot | Variable | Function | Fields | Pipeline"


@dataclass(frozen=True, slots=True)
class TextPart:
    """Characters `start` to `end` of the template."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Output:
    """`{{ pipeline }}`."""

    start: int
    end: int
    pipeline: Pipeline


@dataclass(frozen=True, slots=True)
class Block:
    """`if`, `with` or `range`; `otherwise` is the part after `else`."""

    kind: str
    start: int
    end: int
    pipeline: Pipeline
    body: tuple[Part, ...] = ()
    otherwise: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """`{{ template "name" pipeline }}`."""

    start: int
    end: int
    name: str
    pipeline: Pipeline | None


@dataclass(frozen=True, slots=True)
class Leave:
    """`break` or `continue`."""

    kind: str


Part: TypeAlias = "TextPart | Output | Block | Call | Leave"


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed file: its own parts, and the templates that it defines by name."""

    parts: tuple[Part, ...]
    defined: dict[str, tuple[Part, ...]] = field(default_factory=dict)


def parse(text: str) -> Template:
    """Parse a string as a template. Raises TemplateFault."""
    return _Parser(text).parse()


@dataclass(slots=True)
class _Open:
    """A block that is still open."""

    kind: str
    start: int
    end: int
    pipeline: Pipeline | None = None
    name: str = ""
    body: list[Part] = field(default_factory=list)
    otherwise: list[Part] | None = None
    #: An `else if` closes with the `end` of the block that it belongs to.
    chained: bool = False

    def add(self, part: Part) -> None:
        (self.body if self.otherwise is None else self.otherwise).append(part)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._defined: dict[str, tuple[Part, ...]] = {}
        self._stack = [_Open("", 0, 0)]

    def parse(self) -> Template:
        at, text = 0, self._text
        while True:
            begin = text.find("{{", at)
            if begin < 0:
                break
            spend()
            match = _ACTION.match(text, begin)
            if match is None:
                raise TemplateFault("an action is not closed", begin)
            end = begin
            if match["left"]:
                end = at + len(text[at:begin].rstrip(" \t\r\n"))
            self._text_part(at, end)
            if match["comment"] is None:
                self._action(match["body"], match.start("body"), begin, match.end())
            at = match.end()
            if match["right"] and (blanks := _BLANKS.match(text, at)) is not None:
                at = blanks.end()
        self._text_part(at, len(text))
        if len(self._stack) > 1:
            raise TemplateFault(f"{{{{ {self._stack[-1].kind} }}}} has no end", self._stack[-1].start)
        return Template(tuple(self._stack[0].body), self._defined)

    def _text_part(self, start: int, end: int) -> None:
        if end > start:
            self._stack[-1].add(TextPart(start, end))

    def _action(self, body: str, offset: int, start: int, end: int) -> None:
        tokens = _Tokens(body, offset)
        word = tokens.word
        if word in ("if", "with", "range"):
            tokens.next()
            self._push(_Open(word, start, end, tokens.pipeline()))
        elif word == "else":
            tokens.next()
            self._else(tokens, start, end)
        elif word == "end":
            self._end(start, end)
        elif word in ("define", "block"):
            tokens.next()
            name = tokens.string()
            pipeline = tokens.pipeline() if word == "block" else None
            self._push(_Open(word, start, end, pipeline, name))
        elif word == "template":
            tokens.next()
            name = tokens.string()
            self._stack[-1].add(Call(start, end, name, tokens.pipeline() if not tokens.is_done else None))
            return
        elif word in ("break", "continue"):
            self._stack[-1].add(Leave(word))
        else:
            pipeline = tokens.pipeline()
            if not tokens.is_done:
                raise TemplateFault(f"unexpected {tokens.rest!r}", offset)
            self._stack[-1].add(Output(start, end, pipeline))

    def _push(self, block: _Open) -> None:
        if len(self._stack) > MAX_DEPTH:
            raise TemplateFault(f"more than {MAX_DEPTH} nested blocks", block.start)
        self._stack.append(block)

    def _else(self, tokens: _Tokens, start: int, end: int) -> None:
        block = self._stack[-1]
        if block.kind not in ("if", "with", "range") or block.otherwise is not None:
            raise TemplateFault("an else without an if", start)
        block.otherwise = []
        if tokens.word in ("if", "with"):
            kind = tokens.word
            tokens.next()
            self._push(_Open(kind, start, end, tokens.pipeline(), chained=True))

    def _end(self, start: int, end: int) -> None:
        while True:
            if len(self._stack) < 2:
                raise TemplateFault("an end without a block", start)
            block = self._stack.pop()
            if block.kind in ("define", "block"):
                self._defined[block.name] = tuple(block.body)
                if block.kind == "block":
                    self._stack[-1].add(Call(block.start, block.end, block.name, block.pipeline))
            else:
                assert block.pipeline is not None
                closed = Block(
                    block.kind, block.start, block.end, block.pipeline, tuple(block.body), tuple(block.otherwise or ())
                )
                self._stack[-1].add(closed)
            if not block.chained:
                return


class _Tokens:
    """The tokens of one action, read one by one."""

    def __init__(self, body: str, offset: int) -> None:
        self._offset = offset
        self._tokens: list[tuple[str, str, bool]] = []
        at, spaced = 0, False
        while at < len(body):
            match = _TOKEN.match(body, at)
            if match is None:
                raise TemplateFault(f"unexpected {body[at : at + 10]!r}", offset + at)
            at = match.end()
            kind = match.lastgroup or ""
            if kind == "space":
                spaced = True
                continue
            self._tokens.append((kind, match[0], spaced))
            spaced = False
        spend(len(self._tokens))
        self._at = 0
        self._depth = 0

    @property
    def is_done(self) -> bool:
        return self._at >= len(self._tokens)

    @property
    def rest(self) -> str:
        return self._tokens[self._at][1] if not self.is_done else ""

    @property
    def word(self) -> str:
        """The current word; empty if there is none."""
        return self.rest if not self.is_done and self._tokens[self._at][0] == "word" else ""

    def next(self) -> tuple[str, str, bool]:
        if self.is_done:
            raise TemplateFault("the action ends too early", self._offset)
        self._at += 1
        return self._tokens[self._at - 1]

    def _peek(self, ahead: int = 0) -> tuple[str, str, bool]:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else ("", "", False)

    def string(self) -> str:
        kind, text, _ = self.next()
        if kind not in ("string", "raw"):
            raise TemplateFault("a name in quotes is missing", self._offset)
        return unquoted(text)

    def pipeline(self) -> Pipeline:
        """A pipeline up to a closing parenthesis or the end."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise TemplateFault(f"more than {MAX_DEPTH} nested parentheses", self._offset)
        declares: list[str] = []
        assigns = False
        if self._peek()[0] == "variable":
            ahead = 1
            names = [self._peek()[1]]
            while self._peek(ahead)[1] == "," and self._peek(ahead + 1)[0] == "variable":
                names.append(self._peek(ahead + 1)[1])
                ahead += 2
            if self._peek(ahead)[1] in (":=", "="):
                assigns = self._peek(ahead)[1] == "="
                declares = names
                self._at += ahead + 1
            elif len(names) > 1 or self._peek(ahead)[1] == ",":
                raise TemplateFault("unexpected ','", self._offset)
        commands: list[tuple[Operand, ...]] = []
        command: list[Operand] = []
        while not self.is_done and self._peek()[1] != ")":
            if self._peek()[0] == "sign" and self._peek()[1] == "|":
                self.next()
                commands.append(self._command(command))
                command = []
                continue
            command.append(self._operand())
        commands.append(self._command(command))
        self._depth -= 1
        return Pipeline(tuple(commands), tuple(declares), assigns)

    def _command(self, operands: list[Operand]) -> tuple[Operand, ...]:
        if not operands:
            raise TemplateFault("a command is missing in the pipeline", self._offset)
        return tuple(operands)

    def _operand(self) -> Operand:
        kind, text, _ = self.next()
        found: Operand
        if kind in ("string", "raw"):
            found = Literal(unquoted(text))
        elif kind == "char":
            found = Literal(ord(unquoted('"' + text[1:-1] + '"')[:1] or "\0"))
        elif kind == "number":
            found = Literal(_number(text, self._offset))
        elif kind == "variable":
            found = Variable(text)
        elif kind == "field":
            found = Fields(Dot(), (text[1:],))
        elif kind == "word":
            constants = {"true": True, "false": False, "nil": None}
            found = Literal(constants[text]) if text in constants else Function(text)
        elif text == "(":
            found = self.pipeline()
            if self.next()[1] != ")":
                raise TemplateFault("a parenthesis is not closed", self._offset)
        elif text == ".":
            found = Dot()
        else:
            raise TemplateFault(f"unexpected {text!r}", self._offset)
        names: list[str] = []
        while self._peek()[0] == "field" and not self._peek()[2]:
            names.append(self.next()[1][1:])
        if not names:
            return found
        return Fields(found.base, (*found.names, *names)) if isinstance(found, Fields) else Fields(found, tuple(names))


_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[0-7]{3}|.)", re.DOTALL)


def unquoted(text: str) -> str:
    """The value of a string constant."""
    if text[:1] == "`":
        return text[1:-1]

    def meaning(match: re.Match[str]) -> str:
        code = match[1]
        if code[0] in "xu" and len(code) > 1:
            return chr(int(code[1:], 16))
        return chr(int(code, 8)) if len(code) == 3 else _ESCAPES.get(code, code)

    return _ESCAPE.sub(meaning, text[1:-1])


def _number(text: str, offset: int) -> int | float:
    plain = text.replace("_", "")
    if len(plain) > 40:
        raise TemplateFault("a number is too long", offset)
    try:
        return int(plain, 16) if plain.lstrip("+-")[:2].lower() == "0x" else int(plain)
    except ValueError:
        try:
            return float(plain)
        except ValueError:
            raise TemplateFault(f"{plain!r} is not a number", offset) from None
