"""Overrides on a command line: parsed if their text is known, partly known if they contain a variable."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from preflight.model.job import Known, OneOf, Strength, Unresolved, Value, join
from preflight.sources.base import Word
from preflight.sources.hydra.config_tree import Leaf, Place, Section, Sequence, Setting
from preflight.sources.hydra.override_grammar import (
    Action,
    Element,
    Opaque,
    OverrideError,
    Sweep,
    as_value,
    parse,
    parse_key,
    parse_value,
)
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
        return Sequence(place, [_setting(item, place) for item in element])
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
