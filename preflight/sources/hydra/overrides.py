"""Overrides on a command line: parsed by Hydra's grammar if their text is known, partly known if they contain a
variable.

Source: hydra/grammar/OverrideParser.g4 and OverrideLexer.g4 (hydra-core 1.3), and the page "Override grammar" of its
documentation.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from preflight._util.budget import spend
from preflight.model.job import Known, OneOf, Plain, Strength, Unresolved, Value, join
from preflight.sources.base import Word
from preflight.sources.hydra.configuration import Leaf, ListSetting, Place, Section, Setting
from preflight.sources.launchers.option_parser import concatenate, known_prefix


@dataclass(frozen=True, slots=True)
class Override:
    """One override of a run.

    Args:
        element: its value, if all of it is known.
        value: its value as that of a claim; unresolved if it contains a variable.
        given: whether there is a value at all (`~key` has none).
        error: why the word is not an override in Hydra's grammar; empty if it is one.
    """

    action: Action
    key: str
    package: str | None
    element: Element
    value: Value
    given: bool
    place: Place
    error: str = ""

    @property
    def is_list(self) -> bool:
        """Whether it selects several configurations of a group."""
        return isinstance(self.element, list)

    @property
    def is_unknown(self) -> bool:
        """Whether its value is not one known value."""
        return not isinstance(self.value, Known)

    def names(self) -> tuple[str, ...] | None:
        """The configurations that it selects from a group; None if it selects none."""
        if isinstance(self.element, list):
            return tuple(str(item) for item in self.element)
        if self.element is None or isinstance(self.element, Sweep | Opaque | dict) or not isinstance(self.value, Known):
            return None
        return (str(self.element),)

    def setting(self) -> Setting:
        """Its value as part of a configuration."""
        return _setting(self.element, self.place) if isinstance(self.value, Known) else self._other()

    def _other(self) -> Setting:
        if isinstance(self.element, list | dict):
            return _setting(self.element, self.place)
        return Leaf(self.value, self.place)


def _setting(element: Element, place: Place) -> Setting:
    if isinstance(element, list):
        return ListSetting(place, [_setting(item, place) for item in element])
    if isinstance(element, dict):
        return Section(place, {key: _setting(item, place) for key, item in element.items()})
    return Leaf(as_value(element), place)


def from_words(words: Iterable[Word]) -> list[Override]:
    """The overrides among the words of a line; options and other words are skipped."""
    return [found for word in words if (found := from_word(word)) is not None]


def from_word(word: Word) -> Override | None:
    """The word as an override; None for any other word."""
    text = known_prefix(word)
    head = parse_key(text)
    if head is None:
        return None
    action, key, package, start = head
    place = Place(Strength.FLAG, written=word.span, spelled=word.spelling)
    if isinstance(word.value, Known):
        try:
            parsed = parse(str(word.value.value))
        except OverrideError as error:
            return Override(action, key, package, None, Unresolved(str(error)), True, place, str(error))
        return Override(action, key, package, parsed.value, as_value(parsed.value), parsed.given, place)
    value = _value_of(word, start)
    return Override(action, key, package, Opaque("a variable"), value, True, place)


def _value_of(word: Word, start: int) -> Value:
    """The value after the equals sign of a word with a variable, as far as it is known."""
    if isinstance(word.value, OneOf):
        return join(_parse(str(item)[start:]) for item in word.value.values)
    first = word.parts[0] if word.parts else None
    if not isinstance(first, Known) or len(str(first.value)) < start:
        return word.value
    rest = str(first.value)[start:]
    pieces = [*([Known(rest)] if rest else []), *word.parts[1:]]
    value = concatenate(pieces) if pieces else Known("")
    if isinstance(value, Known | OneOf):
        return join(_parse(str(item)) for item in ((value.value,) if isinstance(value, Known) else value.values))
    return value


def _parse(text: str) -> Value:
    try:
        return as_value(parse_value(text))
    except OverrideError as error:
        return Unresolved(str(error))


_KEY = re.compile(
    r"(?P<sign>~|\+\+|\+)?(?P<key>[A-Za-z_$][\w$/-]*(?:(?:\.(?:[A-Za-z_$][\w$-]*|\d+))|\[[\w.-]+\])*)"
    r"(?:@(?P<package>[\w$.:-]*))?(?P<equals>=)?"
)
_INT = re.compile(r"[+-]?(?:0|[1-9](?:_?\d)*)")
_UNSIGNED = r"(?:0|[1-9](?:_?\d)*)"
_POINT = rf"(?:{_UNSIGNED}\.|{_UNSIGNED}?\.\d(?:_?\d)*)"
_FLOAT = re.compile(rf"[+-]?(?:{_POINT}|(?:{_UNSIGNED}|{_POINT})[eE][+-]?\d(?:_?\d)*|[Ii][Nn][Ff]|[Nn][Aa][Nn])")
_FUNCTION = re.compile(r"([A-Za-z_][\w-]*)\s*\(")
_ESCAPED = re.compile(r"\\([\\()\[\]{}:=, \t])")
#: Nested lists and mappings of a line are followed to this depth.
_MAX_DEPTH = 20
#: Members of a `range(...)` that are listed one by one.
_MAX_VALUES = 64


class Action(enum.Enum):
    """What an override does to its key."""

    CHANGE = ""
    ADD = "+"
    FORCE = "++"
    DELETE = "~"


class OverrideError(ValueError):
    """The text is not an override in Hydra's grammar."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Several values, one per run, which `--multirun` starts."""

    values: tuple[Element, ...]


@dataclass(frozen=True, slots=True)
class Opaque:
    """A value that only Hydra can compute (`glob(...)`, `interval(...)`)."""

    why: str


Element: TypeAlias = "Plain | list[Element] | dict[str, Element] | Sweep | Opaque"


@dataclass(frozen=True, slots=True)
class OverrideText:
    """One parsed override; `value` is None for `null` and for a missing value; `given` distinguishes the two."""

    action: Action
    key: str
    package: str | None
    given: bool
    value: Element


def parse_key(text: str) -> tuple[Action, str, str | None, int] | None:
    """The action, key and package of an override, and where its value begins (0 if it has none); None if the text is
    not an override.
    """
    match = _KEY.match(text)
    if match is None or (match["equals"] is None and (match["sign"] != "~" or match.end() != len(text))):
        return None
    end = match.end() if match["equals"] else 0
    return Action(match["sign"] or ""), match["key"], match["package"], end


def parse(text: str) -> OverrideText:
    """Parse a string as an override.

    Raises:
        OverrideError: the text is not an override.
    """
    found = parse_key(text)
    if found is None:
        raise OverrideError(f"`{text[:80]}` is not an override")
    action, key, package, start = found
    if not start:
        return OverrideText(action, key, package, False, None)
    return OverrideText(action, key, package, True, parse_value(text[start:]))


def parse_value(text: str) -> Element:
    """Parse the value after `=`; several values, separated by commas, are a sweep.

    Raises:
        OverrideError: the text is not a value in Hydra's grammar.
    """
    if not text.strip(" \t"):
        return ""
    parser = _Parser(text)
    values = [parser.element(",", 0)]
    while parser.take(","):
        values.append(parser.element(",", 0))
    if parser.rest():
        raise OverrideError(f"`{parser.rest()[:40]}` is not expected in `{text[:80]}`")
    return values[0] if len(values) == 1 else Sweep(tuple(values))


def as_value(element: Element) -> Value:
    """An element as the value of a claim; a list of scalars is a tuple."""
    if isinstance(element, Sweep):
        return join(as_value(item) for item in element.values)
    if isinstance(element, Opaque):
        return Unresolved(element.why)
    if isinstance(element, list):
        items = [item for item in element if not isinstance(item, list | dict | Sweep | Opaque | tuple)]
        return Known(tuple(items)) if len(items) == len(element) else Unresolved("a list of lists or mappings")
    if isinstance(element, Mapping):
        return Unresolved("a mapping")
    return Known(element)


class _Parser:
    """Reads one value from left to right."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0

    def rest(self) -> str:
        return self._text[self._at :].strip(" \t")

    def take(self, sign: str) -> bool:
        at = self._at
        while at < len(self._text) and self._text[at] in " \t":
            at += 1
        if self._text[at : at + 1] != sign:
            return False
        self._at = at + 1
        return True

    def element(self, ends: str, depth: int) -> Element:
        spend()
        if depth > _MAX_DEPTH:
            raise OverrideError("lists are nested too deeply")
        start = self._at
        if self.take("["):
            return self._list(depth)
        if self.take("{"):
            return self._mapping(depth)
        while self._text[start : start + 1] in (" ", "\t"):
            start += 1
        function = _FUNCTION.match(self._text, start)
        if function is not None:
            self._at = function.end()
            return self._function(function[1], depth)
        if self._text[start : start + 1] in ("'", '"'):
            return self._read_quoted(start)
        return self._primitive(start, ends)

    def _list(self, depth: int) -> Element:
        items: list[Element] = []
        if self.take("]"):
            return items
        while True:
            items.append(self.element(",]", depth + 1))
            if self.take("]"):
                return items
            if not self.take(","):
                raise OverrideError("a list is not closed")

    def _mapping(self, depth: int) -> Element:
        items: dict[str, Element] = {}
        if self.take("}"):
            return items
        while True:
            key = self._primitive(self._at, ":,}")
            if not self.take(":"):
                raise OverrideError("a key of a mapping has no value")
            items[str(key)] = self.element(",}", depth + 1)
            if self.take("}"):
                return items
            if not self.take(","):
                raise OverrideError("a mapping is not closed")

    def _function(self, name: str, depth: int) -> Element:
        positional: list[Element] = []
        named: dict[str, Element] = {}
        if not self.take(")"):
            while True:
                match = re.compile(r"\s*([A-Za-z_]\w*)\s*=").match(self._text, self._at)
                if match is not None:
                    self._at = match.end()
                    named[match[1]] = self.element(",)", depth + 1)
                else:
                    positional.append(self.element(",)", depth + 1))
                if self.take(")"):
                    break
                if not self.take(","):
                    raise OverrideError(f"the call of {name} is not closed")
        return _call_function(name, positional, named)

    def _read_quoted(self, start: int) -> Element:
        quote = self._text[start]
        at = start + 1
        while at < len(self._text):
            if self._text[at] == "\\":
                at += 2
                continue
            if self._text[at] == quote:
                break
            at += 1
        if at >= len(self._text):
            raise OverrideError("a quotation mark is not closed")
        inner = self._text[start + 1 : at]
        self._at = at + 1
        # Backslashes count only before a quotation mark.
        return re.sub(r"(\\+)(?=['\"]|$)", lambda m: "\\" * (len(m[1]) // 2), inner) if "\\" in inner else inner

    def _primitive(self, start: int, ends: str) -> Plain:
        at = start
        while at < len(self._text):
            sign = self._text[at]
            if sign == "\\" and at + 1 < len(self._text):
                at += 2
            elif self._text.startswith("${", at):
                at = _end_of_interpolation(self._text, at)
            elif sign in ends or sign in "[]{}()'\"":
                break
            else:
                at += 1
        raw = self._text[start:at].strip(" \t")
        self._at = at
        if not raw:
            raise OverrideError("a value is missing")
        return _scalar(raw)


def _end_of_interpolation(text: str, start: int) -> int:
    depth = 0
    for at in range(start + 1, len(text)):
        if text[at] == "{":
            depth += 1
        elif text[at] == "}":
            depth -= 1
            if not depth:
                return at + 1
    raise OverrideError("an interpolation is not closed")


def _scalar(raw: str) -> Plain:
    lower = raw.lower()
    if lower in ("true", "false"):
        return lower == "true"
    if lower == "null":
        return None
    if len(raw) <= 60 and _INT.fullmatch(raw):
        return int(raw.replace("_", ""))
    if len(raw) <= 60 and _FLOAT.fullmatch(raw):
        return float(raw.replace("_", ""))
    return _ESCAPED.sub(r"\1", raw)


def _call_function(name: str, positional: list[Element], named: Mapping[str, Element]) -> Element:
    if name == "choice":
        return Sweep(tuple(positional)) if positional else Opaque("choice() without a choice")
    if name == "range":
        return _range(positional, named)
    if name in ("shuffle", "sort", "tag") and positional and isinstance(positional[-1], Sweep):
        return positional[-1]
    if name in ("int", "float", "str", "bool") and len(positional) == 1:
        return _cast(name, positional[0])
    return Opaque(f"{name}(...), which Hydra computes")


def _range(positional: list[Element], named: Mapping[str, Element]) -> Element:
    slots = ("start", "stop", "step")
    given = dict(zip(slots if len(positional) > 1 else ("stop",), positional, strict=False)) | dict(named)
    found: list[float] = []
    for slot, default in zip(slots, (0, None, 1), strict=True):
        value = given.get(slot, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return Opaque("a range without numbers")
        found.append(value)
    start, stop, step = found
    if not step or not math.isfinite(start + stop + step) or abs((stop - start) / step) > _MAX_VALUES:
        return Opaque("a range of many values")
    values: list[Element] = []
    while (start < stop) if step > 0 else (start > stop):
        values.append(start)
        start += step
    return Sweep(tuple(values)) if values else Opaque("an empty range")


def _cast(name: str, element: Element) -> Element:
    if isinstance(element, Sweep):
        return Sweep(tuple(_cast(name, item) for item in element.values))
    if isinstance(element, list | dict | Opaque | tuple):
        return Opaque(f"{name}(...), which Hydra computes")
    try:
        if name == "int":
            return int(element)  # type: ignore[arg-type]
        if name == "float":
            return float(element)  # type: ignore[arg-type]
        if name == "bool":
            return element.lower() in ("true", "1") if isinstance(element, str) else bool(element)
    except (TypeError, ValueError, OverflowError):
        return Opaque(f"{name}({element!r}) is not a valid {name}")
    if element is None or isinstance(element, bool):
        return "null" if element is None else str(element).lower()
    return str(element)
