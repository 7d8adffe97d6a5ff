"""Hydra's overrides on a command line, and OmegaConf's interpolations: `${a.b}`, `${.c}`, `${..c}`, `${oc.env:VAR,x}`.

Source: hydra/grammar/OverrideParser.g4 and OverrideLexer.g4 (hydra-core 1.3), and the page "Override grammar" of its
documentation.

Source: omegaconf/grammar/OmegaConfGrammarParser.g4 and omegaconf/resolvers (omegaconf 2.3). A resolver that a program
registers itself, and what depends on time or on Hydra's own run, stays unresolved.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from preflight._util.budget import spend
from preflight.model.job import Known, OneOf, Plain, Strength, Unresolved, Value, alternatives, join, lift
from preflight.sources.base import Word, assume_not_set
from preflight.sources.hydra.configuration import (
    MISSING,
    Leaf,
    ListSetting,
    Place,
    Section,
    Setting,
    copy_setting,
    is_reference,
    split_key,
    text_of,
)
from preflight.sources.launchers.option_parser import concatenate, known_prefix


@dataclass(frozen=True, slots=True)
class Override:
    """One override of a run.

    Args:
        element: its value, if all of it is known.
        value: its value in the form of a claim's value; unresolved if it contains a variable.
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
        """Return whether the override selects several configurations of a group."""
        return isinstance(self.element, list)

    @property
    def is_unknown(self) -> bool:
        """Return whether its value is not one known value."""
        return not isinstance(self.value, Known)

    def names(self) -> tuple[str, ...] | None:
        """Return the configurations that it selects from a group; None if it selects none."""
        if isinstance(self.element, list):
            return tuple(str(item) for item in self.element)
        if self.element is None or isinstance(self.element, Sweep | Opaque | dict) or not isinstance(self.value, Known):
            return None
        return (str(self.element),)

    def setting(self) -> Setting:
        """Return its value as part of a configuration."""
        is_read = isinstance(self.value, Known) or isinstance(self.element, list | dict)
        return _setting(self.element, self.place) if is_read else Leaf(self.value, self.place)


def _setting(element: Element, place: Place) -> Setting:
    if isinstance(element, list):
        return ListSetting(place, [_setting(item, place) for item in element])
    if isinstance(element, dict):
        return Section(place, {key: _setting(item, place) for key, item in element.items()})
    return Leaf(as_value(element), place)


def from_words(words: Iterable[Word]) -> list[Override]:
    """Return the overrides among the words of a line; options and other words are skipped."""
    return [found for word in words if (found := from_word(word)) is not None]


def from_word(word: Word) -> Override | None:
    """Return the word as an override; None for any other word."""
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
    """Return the value after the equals sign of a word with a variable, as far as it is known."""
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
_ARGUMENT = re.compile(r"\s*([A-Za-z_]\w*)\s*=")
_ESCAPED = re.compile(r"\\([\\()\[\]{}:=, \t])")
#: Nested lists and mappings of a line are followed to this depth.
_MAX_DEPTH = 20
#: Members of a `range(...)` that are listed one by one.
_MAX_VALUES = 64


class Action(enum.Enum):
    """The effect of an override on its key."""

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
    """Return the action, key and package of an override, and where its value begins (0 if it has none); None if the
    text is not an override.
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
    """Return an element as the value of a claim; a list of scalars is a tuple."""
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
        at = self._after_blanks(self._at)
        found = self._text[at : at + 1] == sign
        self._at = at + 1 if found else self._at
        return found

    def _after_blanks(self, at: int) -> int:
        while self._text[at : at + 1] in (" ", "\t"):
            at += 1
        return at

    def element(self, ends: str, depth: int) -> Element:
        spend()
        if depth > _MAX_DEPTH:
            raise OverrideError("lists are nested too deeply")
        start = self._at
        if self.take("["):
            return [self.element(",]", depth + 1) for _ in self._items("]", "a list")]
        if self.take("{"):
            return self._mapping(depth)
        start = self._after_blanks(start)
        function = _FUNCTION.match(self._text, start)
        if function is not None:
            self._at = function.end()
            return self._function(function[1], depth)
        if self._text[start : start + 1] in ("'", '"'):
            return self._read_quoted(start)
        return self._primitive(start, ends)

    def _items(self, closing: str, what: str) -> Iterator[None]:
        """Yield once before each item of a list, a mapping or a call, up to its end."""
        while not self.take(closing):
            yield
            if self.take(closing):
                return
            if not self.take(","):
                raise OverrideError(f"{what} is not closed")

    def _mapping(self, depth: int) -> Element:
        items: dict[str, Element] = {}
        for _ in self._items("}", "a mapping"):
            key = self._primitive(self._at, ":,}")
            if not self.take(":"):
                raise OverrideError("a key of a mapping has no value")
            items[str(key)] = self.element(",}", depth + 1)
        return items

    def _function(self, name: str, depth: int) -> Element:
        positional: list[Element] = []
        named: dict[str, Element] = {}
        for _ in self._items(")", f"the call of {name}"):
            match = _ARGUMENT.match(self._text, self._at)
            if match is not None:
                self._at = match.end()
                named[match[1]] = self.element(",)", depth + 1)
            else:
                positional.append(self.element(",)", depth + 1))
        return _call_function(name, positional, named)

    def _read_quoted(self, start: int) -> Element:
        quote = self._text[start]
        at = start + 1
        while at < len(self._text) and self._text[at] != quote:
            at += 2 if self._text[at] == "\\" else 1
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


#: Links of a chain of references; no configuration has more.
_MAX_NESTING = 40
#: Primus' own form of a variable with a default, `${NNODES:2}` (primus/core/config/yaml_loader.py).
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*", re.DOTALL)
_RESOLVER = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*:(.*)", re.DOTALL)


class Unreadable(Exception):
    """An interpolation that Hydra itself cannot resolve: a cycle, a missing key, broken syntax.

    `key` is the dotted name of a key without a value, which a program may set; otherwise it is empty.
    """

    def __init__(self, message: str, *, key: str = "", is_required: bool = False) -> None:
        super().__init__(message)
        self.key = key
        #: Whether the key is `???`: somebody must give it, which a program may do.
        self.is_required = is_required


@dataclass(slots=True)
class Resolver:
    """Resolves values of one configuration.

    Args:
        root: the configuration.
        environment: variables that the program sees, as far as the files show.
        incomplete: why some keys that the program will find may be missing; empty if all keys are known.
    """

    root: Section
    environment: Mapping[str, Value] = field(default_factory=dict)
    incomplete: str = ""
    #: Keys at which a mapping meets a list, which OmegaConf does not merge.
    clashes: list[tuple[str, Place]] = field(default_factory=list)
    _active: set[tuple[str, ...]] = field(default_factory=set)

    def at(self, path: tuple[str, ...]) -> Setting | None:
        """Return the value at a path of keys, following references on the way; None if there is none.

        Raises:
            Unreadable: a reference on the way cannot be resolved.
        """
        found, _ = self._walk(path)
        return found

    def value(self, path: tuple[str, ...]) -> Value | None:
        """Return the resolved value at a path; None if there is none.

        Raises:
            Unreadable: Hydra cannot resolve it either.
        """
        found, path = self._walk(path)
        if found is None:
            return None
        resolved = self.resolved(found, path)
        if isinstance(resolved, Section):
            return Unresolved("a mapping")
        if isinstance(resolved, ListSetting):
            return self._list(resolved, path)
        return resolved

    def resolved(self, setting: Setting, path: tuple[str, ...]) -> Value | Section | ListSetting:
        """Return a leaf's value, or the container that it refers to.

        Raises:
            Unreadable: Hydra cannot resolve it either.
        """
        if not isinstance(setting, Leaf):
            return setting
        if not is_reference(setting):
            return setting.value
        if path in self._active or len(self._active) >= _MAX_NESTING:
            raise Unreadable(f"`{'.'.join(path)}` refers to itself")
        self._active.add(path)
        try:
            return self._text(text_of(setting) or "", path)
        finally:
            self._active.discard(path)

    def _list(self, sequence: ListSetting, path: tuple[str, ...]) -> Value:
        items: list[Plain] = []
        for index, item in enumerate(sequence.items):
            value = self.resolved(item, (*path, str(index)))
            if isinstance(value, Unresolved):
                return value
            if not isinstance(value, Known) or isinstance(value.value, tuple):
                return Unresolved("a list of lists, mappings or alternatives")
            items.append(value.value)
        return Known(tuple(items))  # type: ignore[arg-type]

    def _walk(self, path: tuple[str, ...]) -> tuple[Setting | None, tuple[str, ...]]:
        at: Setting | None = self.root
        where: tuple[str, ...] = ()
        for key in path:
            spend()
            if isinstance(at, Leaf) and is_reference(at):
                target = self.resolved(at, where)
                at = target if isinstance(target, Section | ListSetting) else None
            if isinstance(at, Section):
                at = at.members.get(key)
            elif isinstance(at, ListSetting):
                at = at.items[int(key)] if key.isdecimal() and len(key) < 6 and int(key) < len(at.items) else None
            else:
                at = None
            if at is None:
                return None, path
            where = (*where, key)
        return at, where

    def _text(self, text: str, path: tuple[str, ...]) -> Value | Section | ListSetting:
        """Return the value of a string with interpolations; a single one keeps its type."""
        pieces = _pieces(text)
        if len(pieces) == 1 and pieces[0][0]:
            return self._reference(pieces[0][1], path)
        found: list[Value] = []
        for is_own, piece in pieces:
            if not is_own:
                found.append(Known(piece))
                continue
            value = self._reference(piece, path)
            if not isinstance(value, Known | OneOf | Unresolved):
                value = Unresolved("a mapping inside a string")
            found.append(value)
        return lift(lambda *parts: "".join(map(str, parts)), *found)

    def _inner(self, text: str, path: tuple[str, ...]) -> str | Unresolved:
        """Return the text of a key that itself contains interpolations."""
        if "${" not in text:
            return text
        value = self._text(text, path)
        if isinstance(value, Known):
            return str(value.value)
        return value if isinstance(value, Unresolved) else Unresolved("a key that depends on a branch")

    def _reference(self, inside: str, path: tuple[str, ...]) -> Value | Section | ListSetting:
        spend()
        resolver = _RESOLVER.fullmatch(inside)
        if resolver is not None and "${" not in resolver[1]:
            return self._resolver(resolver[1], resolver[2], path)
        key = self._inner(inside.strip(), path)
        if isinstance(key, Unresolved):
            return key
        return self._key(key, path)

    def _key(self, key: str, path: tuple[str, ...]) -> Value | Section | ListSetting:
        dots = len(key) - len(key.lstrip("."))
        if dots > len(path):
            raise Unreadable(f"`${{{key}}}` points above the configuration")
        base = path[: len(path) - dots] if dots else ()
        rest = key[dots:]
        target = (*base, *split_key(rest)) if rest else base
        if target[:1] == ("hydra",):
            return Unresolved("known only while Hydra runs")
        found, where = self._walk(target)
        if found is None:
            if self.incomplete:
                return Unresolved(self.incomplete)
            raise Unreadable(f"`${{{key}}}` refers to `{'.'.join(target)}`, which does not exist", key=".".join(target))
        if text_of(found) == MISSING:
            dotted = ".".join(target)
            raise Unreadable(f"`${{{key}}}` refers to `{dotted}`, which is `???`", key=dotted, is_required=True)
        if not isinstance(found, Leaf) and where == path[: len(where)]:
            raise Unreadable(f"`${{{key}}}` refers to the mapping that contains it")
        return self.resolved(found, where)

    def _resolver(self, name: str, arguments: str, path: tuple[str, ...]) -> Value | Section | ListSetting:
        if name in ("oc.env", "env"):
            return self._variable(arguments, path)
        if name == "oc.select":
            key, _, default = arguments.partition(",")
            wanted = self._inner(key.strip(), path)
            if isinstance(wanted, Unresolved):
                return wanted
            found, where = self._walk(tuple(split_key(wanted)))
            if found is None and self.incomplete:
                return Unresolved(self.incomplete)
            if found is None or text_of(found) == MISSING:
                return self._argument(default, path)
            return self.resolved(found, where)
        if name == "oc.decode":
            bare = _unquote(arguments.strip())
            value = self._text(bare, path) if "${" in bare else Known(bare)
            return lift(_decode, value) if isinstance(value, Known | OneOf | Unresolved) else value
        if _VARIABLE.fullmatch(name):
            return self._variable(f"{name},{arguments}", path)
        return Unresolved(f"${{{name}:...}}, which the program computes")

    def _variable(self, arguments: str, path: tuple[str, ...]) -> Value | Section | ListSetting:
        name, comma, default = arguments.partition(",")
        wanted = self._inner(name.strip(), path)
        if isinstance(wanted, Unresolved):
            return wanted
        known = self.environment.get(wanted)
        if known is not None:
            return lift(str, known)
        if not comma:
            return Unresolved(f"${wanted}, which the caller sets", (wanted,))
        value = self._argument(default, path)
        if not isinstance(value, Known | OneOf):
            return value
        shown = ", ".join(map(str, alternatives(value)))
        if not assume_not_set(wanted, shown):
            return Unresolved(f"${wanted}, set by the caller, default {shown}", (wanted,))
        # The resolver returns strings, as the environment does.
        return lift(lambda item: item if item is None else str(item), value)

    def _argument(self, text: str, path: tuple[str, ...]) -> Value | Section | ListSetting:
        if not text.strip():
            return Known(None)
        if "${" not in text:
            return lift(_decode, Known(text.strip()))
        return self._text(_unquote(text.strip()), path)


def _unquote(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def _decode(item: Plain) -> Plain:
    if not isinstance(item, str):
        return item
    try:
        value = as_value(parse_value(item))
    except OverrideError:
        return item
    found = alternatives(value)
    return found[0] if len(found) == 1 else item


def _pieces(text: str) -> list[tuple[bool, str]]:
    """Return the text in pieces: those inside an interpolation, and those outside.

    Raises:
        Unreadable: an interpolation is not closed.
    """
    pieces: list[tuple[bool, str]] = []
    plain = ""
    at = 0
    while at < len(text):
        if text.startswith("\\${", at):
            plain, at = plain + "${", at + 3
            continue
        if not text.startswith("${", at):
            plain, at = plain + text[at], at + 1
            continue
        try:
            end = _end_of_interpolation(text, at)
        except OverrideError:
            raise Unreadable(f"`{text[:60]}` is not closed") from None
        pieces += [(False, plain)] if plain else []
        pieces.append((True, text[at + 2 : end - 1]))
        plain, at = "", end
    if plain:
        pieces.append((False, plain))
    return pieces


def merge(into: Section, other: Section, resolver: Resolver, path: tuple[str, ...] = ()) -> None:
    """Merge another mapping into one, as OmegaConf does: mappings key by key; everything else is replaced."""
    for key, new in other.members.items():
        spend()
        old = into.members.get(key)
        if isinstance(old, Leaf) and is_reference(old):
            try:
                target = resolver.resolved(old, (*path, key))
            except Unreadable:
                target = old.value
            if isinstance(target, Section | ListSetting):
                old = copy_setting(target)
                into.members[key] = old
        if isinstance(old, Section) and isinstance(new, Section):
            merge(old, new, resolver, (*path, key))
        elif old is None or text_of(new) != MISSING:
            if not isinstance(old, Leaf | None) and not isinstance(new, Leaf) and type(old) is not type(new):
                resolver.clashes.append((".".join((*path, key)), new.place))
            new.before = old
            into.members[key] = new
