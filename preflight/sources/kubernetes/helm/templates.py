"""Go's text/template syntax as a tree with locations, and the evaluation of a chart's template with its values.

Read from text/template/parse (Go 1.24): delimiters with trim markers, comments, pipelines, variables and blocks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from preflight._util.budget import spend
from preflight.model.job import Note, NoteKind, Span
from preflight.sources.formats.structured import Origin, Piece
from preflight.sources.kubernetes.helm.functions import (
    FUNCTIONS,
    SHOW,
    Data,
    Gap,
    Series,
    Table,
    Written,
    gap_text,
    is_true,
    printf,
    shown,
)
from preflight.sources.shell.shell_document import FileText

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
        """Return the current word; empty if there is none."""
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
        """Return a pipeline up to a closing parenthesis or the end."""
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
    """Return the value of a string constant."""
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


# Evaluates a chart's template with its values: the text that Helm would submit, every piece with its location.
#
# A value that is not in the files leaves a placeholder, which readers of YAML treat as an unresolved value. Helm
# itself would print nothing there, or reject the chart, unless the command line supplies the value.


#: Levels of templates that include each other.
MAX_CALLS = 40
#: Pieces of one rendered template.
MAX_PIECES = 60_000
_MAX_NOTES = 20
#: Functions that accept a gap as an argument.
_KEEP_GAPS = frozenset(("dict", "list", "tuple", "set", "append", "prepend", "hasKey", "merge", "mergeOverwrite"))
_SHOW_GAPS = frozenset(("print", "printf", "cat", "quote", "squote", "toYaml", "mustToYaml", "toYamlPretty"))


@dataclass(frozen=True, slots=True)
class Source:
    """The text that a template was parsed from: a file, or the argument of `tpl`.

    `pieces(start, end)` are its pieces for these characters; `place(start, end)` is the location of an action.
    """

    text: str
    pieces: Callable[[int, int], Sequence[Piece]]
    place: Callable[[int, int], Origin]

    @classmethod
    def of_file(cls, file: FileText) -> Source:
        """Return the text of a file."""

        def pieces(start: int, end: int) -> Sequence[Piece]:
            return (Piece(file.text[start:end], Origin(file, start, end)),)

        return cls(file.text, pieces, lambda start, end: Origin(file, start, end, exact=False))

    @classmethod
    def of_text(cls, text: str, place: Origin) -> Source:
        """Return a string that an action at `place` passes to `tpl`."""

        def pieces(start: int, end: int) -> Sequence[Piece]:
            if isinstance(text, Written):
                return text.cut(start, end).pieces
            return (Piece(text[start:end], replace(place, exact=False)),)

        return cls(str(text), pieces, lambda start, end: replace(place, exact=False))


@dataclass(frozen=True, slots=True)
class Defined:
    """A named template."""

    source: Source
    parts: tuple[Part, ...]


class _Stop(Exception):
    """`break` or `continue`."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


@dataclass(slots=True)
class Rendering:
    """Evaluates templates of one chart.

    Args:
        defined: the chart's named templates.
        methods: functions that a template may call on its objects, such as `.Files.Get`, by their path of names.
        blanks: whether a missing value renders as nothing, as in Helm, instead of as a placeholder.
    """

    defined: Mapping[str, Defined]
    methods: Mapping[tuple[str, ...], Callable[..., Data]] = field(default_factory=dict)
    blanks: bool = False
    notes: list[Note] = field(default_factory=list)
    _variables: list[dict[str, tuple[Data, Span | None]]] = field(default_factory=list)
    _used: list[Span] = field(default_factory=list)
    _source: Source | None = None
    _at: tuple[int, int] = (0, 0)
    _depth: int = 0
    _pieces: int = 0

    def render(self, source: Source, parts: Sequence[Part], top: Table) -> list[Piece]:
        """Return the pieces that the parts of a template render to."""
        return self._run(source, parts, top, None)

    def _run(self, source: Source, parts: Sequence[Part], dot: Data, dot_place: Span | None) -> list[Piece]:
        """Render a template with its own variables; `$` is its argument."""
        if self._depth >= MAX_CALLS:
            raise RecursionError(f"templates include each other more than {MAX_CALLS} times")
        before = self._source, self._variables, self._at
        self._source, self._variables = source, [{"$": (dot, dot_place)}]
        self._depth += 1
        into: list[Piece] = []
        try:
            self._parts(parts, dot, dot_place, into)
        except _Stop:
            pass
        finally:
            self._depth -= 1
            self._source, self._variables, self._at = before
        return into

    def _parts(self, parts: Sequence[Part], dot: Data, place: Span | None, into: list[Piece]) -> None:
        assert self._source is not None
        for part in parts:
            spend()
            if isinstance(part, TextPart):
                self._add(into, self._source.pieces(part.start, part.end))
            elif isinstance(part, Leave):
                raise _Stop(part.kind)
            else:
                self._at = (part.start, part.end)
                if isinstance(part, Output):
                    self._output(part, dot, place, into)
                elif isinstance(part, Call):
                    given = self._pipeline(part.pipeline, dot, place) if part.pipeline is not None else None
                    self._add(into, self._include(part.name, given))
                else:
                    self._block(part, dot, place, into)

    def _add(self, into: list[Piece], pieces: Sequence[Piece]) -> None:
        self._pieces += len(pieces)
        if self._pieces > MAX_PIECES:
            raise ValueError("the template becomes too large")
        into.extend(pieces)

    @property
    def _current_place(self) -> Origin:
        assert self._source is not None
        return self._source.place(*self._at)

    # -- actions -----------------------------------------------------------------------------------------------------

    def _output(self, part: Output, dot: Data, place: Span | None, into: list[Piece]) -> None:
        assert self._source is not None
        self._used.clear()
        value = self._pipeline(part.pipeline, dot, place)
        if part.pipeline.declares:
            return
        here = self._source.place(part.start, part.end)
        if value is None and not self.blanks:
            value = Gap(self._source.text[part.start : part.end].strip("{-} ") + " is not in the values")
        if isinstance(value, Gap):
            text = "" if self.blanks else gap_text(value)
            self._add(into, (Piece(text, here),))
        elif isinstance(value, Written):
            self._add(into, value.pieces)
        else:
            self._add(into, (Piece(shown(value), replace(here, value=self._used[0] if self._used else None)),))

    def _block(self, part: Block, dot: Data, place: Span | None, into: list[Piece]) -> None:
        self._variables.append({})
        try:
            self._used.clear()
            value = self._pipeline(part.pipeline, dot, place, declare=part.kind != "range")
            used = self._used[0] if self._used else None
            if isinstance(value, Gap):
                self._note(part, value)
            if part.kind == "range":
                self._range(part, value, dot, place, into)
            elif isinstance(value, Gap) or is_true(value):
                inner = (value, used) if part.kind == "with" else (dot, place)
                self._parts(part.body, *inner, into)
            else:
                self._parts(part.otherwise, dot, place, into)
        finally:
            self._variables.pop()

    def _range(self, part: Block, value: Data, dot: Data, place: Span | None, into: list[Piece]) -> None:
        empty = True
        for key, item, where in _items(value):
            empty = False
            spend()
            self._variables.append({})
            names = part.pipeline.declares
            if len(names) == 2:
                self._variables[-1][names[0]] = (key, None)
            if names:
                self._variables[-1][names[-1]] = (item, where)
            try:
                self._parts(part.body, item, where, into)
            except _Stop as stop:
                if stop.kind == "break":
                    break
            finally:
                self._variables.pop()
        if empty:
            self._parts(part.otherwise, dot, place, into)

    def _note(self, part: Block, gap: Gap) -> None:
        if len(self.notes) < _MAX_NOTES:
            assert self._source is not None
            span = self._source.place(part.start, part.end).span
            message = f"cannot determine whether this part is rendered: {gap.why}"
            self.notes.append(Note(NoteKind.TEMPLATE, message, span))

    def _include(self, name: str, given: Data) -> Sequence[Piece]:
        found = self.defined.get(name)
        if found is None:
            return (Piece(gap_text(Gap(f"the template {name} is not in the chart")), self._current_place),)
        used, self._used = self._used, []
        try:
            return self._run(found.source, found.parts, given, None)
        finally:
            self._used = used

    # -- pipelines ---------------------------------------------------------------------------------------------------

    def _pipeline(self, pipeline: Pipeline, dot: Data, place: Span | None, *, declare: bool = True) -> Data:
        value: Data = None
        for number, command in enumerate(pipeline.commands):
            spend()
            value = self._command(command, dot, place, [value] if number else [])
        if declare:
            for name in pipeline.declares:
                self._declare(name, value, assigns=pipeline.assigns)
        return value

    def _declare(self, name: str, value: Data, *, assigns: bool) -> None:
        entry = (value, self._used[0] if self._used else None)
        if assigns:
            for scope in reversed(self._variables):
                if name in scope:
                    scope[name] = entry
                    return
        self._variables[-1][name] = entry

    def _command(self, command: Sequence[Operand], dot: Data, place: Span | None, piped: list[Data]) -> Data:
        first, rest = command[0], command[1:]
        if isinstance(first, Function):
            return self._call(first.name, rest, dot, place, piped)
        if isinstance(first, Fields):
            method = self._method(first)
            if method is not None:
                base = self._base_of(first, dot, place)
                return self._call_guarded(method, [*base, *(self._operand(item, dot, place) for item in rest), *piped])
        if rest or piped:
            return Gap("a value that is not a function is called")
        return self._operand(first, dot, place)

    def _method(self, fields: Fields) -> Callable[..., Data] | None:
        found = self.methods.get(fields.names[-3:]) or self.methods.get(fields.names[-2:])
        return found or (self.methods.get(fields.names) if len(fields.names) == 1 else None)

    def _base_of(self, fields: Fields, dot: Data, place: Span | None) -> list[Data]:
        """Return the value on which a method such as `(.Files.Glob "*").AsConfig` is called."""
        return [self._operand(fields.base, dot, place)] if len(fields.names) == 1 else []

    def _operand(self, operand: Operand, dot: Data, place: Span | None) -> Data:
        if isinstance(operand, Literal):
            return operand.value
        if isinstance(operand, Dot):
            self._use(place)
            return dot
        if isinstance(operand, Variable):
            return self._variable(operand.name)
        if isinstance(operand, Function):
            return self._call(operand.name, (), dot, place, [])
        if isinstance(operand, Pipeline):
            return self._pipeline(operand, dot, place)
        method = self._method(operand)
        if method is not None:
            return self._call_guarded(method, self._base_of(operand, dot, place))
        base = self._operand(operand.base, dot, place)
        for name in operand.names:
            if isinstance(base, Gap):
                return base
            if not isinstance(base, Table):
                return None
            there = base.places.get(name)
            base = base.get(name)
            if there is not None and not isinstance(base, Table | Series):
                self._use(there.span)
        return base

    def _variable(self, name: str) -> Data:
        for scope in reversed(self._variables):
            if name in scope:
                value, place = scope[name]
                if not isinstance(value, Table | Series):
                    self._use(place)
                return value
        return Gap(f"{name} is not declared")

    def _use(self, place: Span | None) -> None:
        if place is not None and len(self._used) < 8:
            self._used.append(place)

    def _call(self, name: str, operands: Sequence[Operand], dot: Data, place: Span | None, piped: list[Data]) -> Data:
        if name in ("and", "or"):
            return self._junction(name, operands, dot, place, piped)
        arguments = [*(self._operand(item, dot, place) for item in operands), *piped]
        if name in ("include", "tpl"):
            return self._include_or_tpl(name, arguments)
        if name in ("required", "fail"):
            if name == "required" and len(arguments) == 2 and arguments[1] not in (None, ""):
                return arguments[1]
            return Gap(shown(arguments[0])) if arguments and isinstance(arguments[0], str) else Gap(name)
        function = FUNCTIONS.get(name)
        if function is None:
            return Gap(f"the function {name} is not evaluated")
        if name in SHOW and not self.blanks and any(item is None for item in arguments):
            if name not in ("printf", "print", "cat", "join"):
                return Gap("a value that is not in the chart's values")
            arguments = [Gap("not in the chart's values") if item is None else item for item in arguments]
        gap = next((item for item in arguments if isinstance(item, Gap)), None)
        if gap is not None and name not in _KEEP_GAPS:
            if name == "default" or name not in _SHOW_GAPS:
                return gap
            if name not in ("toYaml", "mustToYaml", "toYamlPretty"):
                arguments = [gap_text(item) if isinstance(item, Gap) else item for item in arguments]
                if name == "printf":
                    return self._call_guarded(printf, [arguments[0].replace("%d", "%v"), *arguments[1:]])
        return self._call_guarded(function, arguments)

    def _call_guarded(self, function: Callable[..., Data], arguments: Sequence[Data]) -> Data:
        try:
            return function(*arguments)
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, OverflowError) as error:
            return Gap(f"Helm rejects this: {error}"[:120])

    def _junction(
        self, name: str, operands: Sequence[Operand], dot: Data, place: Span | None, piped: list[Data]
    ) -> Data:
        """Return the value of `and` or `or`, which evaluate their arguments one by one."""
        value: Data = None
        for number in range(len(operands) + len(piped)):
            value = self._operand(operands[number], dot, place) if number < len(operands) else piped[0]
            if isinstance(value, Gap) or is_true(value) == (name == "or"):
                return value
        return value

    def _include_or_tpl(self, name: str, arguments: Sequence[Data]) -> Data:
        """Return the value of `include "name" data` or `tpl text data`."""
        if len(arguments) != 2:
            return Gap(f"{name} takes two arguments")
        first, given = arguments
        if isinstance(first, Gap):
            return first
        if not isinstance(first, str):
            return Gap(f"{name} of a value that is not a string")
        if name == "include":
            return Written.of(self._include(first, given))
        try:
            parts = parse(first).parts
        except TemplateFault as fault:
            return Gap(str(fault))
        return Written.of(self._run(Source.of_text(first, self._current_place), parts, given, None))


def _items(value: Data) -> Iterator[tuple[Data, Data, Span | None]]:
    """Yield the items of `range`: key, item, and the location of the item."""
    if isinstance(value, Table):
        for key in sorted(value):
            there = value.places.get(key)
            yield key, value[key], there.span if there is not None else None
    elif isinstance(value, Series):
        for number, item in enumerate(list(value)):
            where = value.places[number] if number < len(value.places) else None
            yield number, item, where.span if where is not None else None
    elif isinstance(value, int) and not isinstance(value, bool):
        for number in range(min(value, 10_000)):
            yield number, number, None
