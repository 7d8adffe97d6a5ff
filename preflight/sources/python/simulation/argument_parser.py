"""argparse in a simulated program: Python's own parser reads the words of the launch line."""

from __future__ import annotations

import argparse
import ast
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from preflight.sources.base import assume_nothing_given
from preflight.sources.python.simulation.values import (
    UNKNOWN,
    DictValue,
    External,
    Growing,
    ListValue,
    NotKnown,
    Unknown,
    native,
)

#: Stands for a word that is not known.
OPEN = "\0"
_ACTIONS = ("store", "store_true", "store_false", "append", "extend", "count", "store_const")


def string_to_bool(word: str) -> bool:
    """Parse a switch's word as the parser of transformers does. Raises argparse.ArgumentTypeError for any other
    word.
    """
    if word.lower() in ("yes", "true", "t", "y", "1"):
        return True
    if word.lower() in ("no", "false", "f", "n", "0"):
        return False
    raise argparse.ArgumentTypeError(f"Truthy value expected: got {word}")


def strtobool(word: str) -> int:
    """What distutils of Python 3.11 makes of a word for a switch.

    Raises:
        ValueError: for any other word.
    """
    if word.lower() not in ("y", "yes", "t", "true", "on", "1", "n", "no", "f", "false", "off", "0"):
        raise ValueError(f"invalid truth value {word!r}")
    return int(word.lower() in ("y", "yes", "t", "true", "on", "1"))


_TYPES: dict[str, Callable[[str], Any]] = {
    "builtins.int": int,
    "builtins.float": float,
    "builtins.str": str,
    "transformers.string_to_bool": string_to_bool,
    "distutils.util.strtobool": strtobool,
}


class Refused(Exception):
    """The parser rejects the line; the argument is the reason."""


@dataclass(eq=False)
class Parser(Growing):
    """An `argparse.ArgumentParser`, or a group of one.

    Args:
        is_open: whether something else may add options to it.
    """

    options: list[tuple[tuple[str, ...], dict[str, Any], ast.Call]] = field(default_factory=list)
    defaults: dict[str, Any] = field(default_factory=dict)
    is_open: bool = False
    abbreviates: bool = True
    has_help: bool = True

    def spellings(self) -> tuple[str, ...]:
        """Return every option that it declares, in all its spellings."""
        found = ["-h", "--help"] if self.has_help else []
        for names, given, _ in self.options:
            spelled = [name for name in names if name.startswith("-")]
            found += spelled
            action = given.get("action")
            if isinstance(action, External) and action.last == "BooleanOptionalAction":
                found += [f"--no-{name[2:]}" for name in spelled if name.startswith("--")]
        return tuple(dict.fromkeys(found))

    @property
    def takes_rest(self) -> bool:
        """Return whether a positional takes all words that are left."""
        return any(
            _number_of_words(given.get("nargs")) in (argparse.REMAINDER, argparse.PARSER)
            for _, given, _ in self.options
        )


#: The options that `deepspeed.add_config_arguments` adds (deepspeed/__init__.py of 0.19).
CONFIG_OPTIONS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    *((("--deepspeed",), {"action": "store_true"}), (("--deepspeed_config",), {"default": None})),
    *((("--deepscale",), {"action": "store_true"}), (("--deepscale_config",), {"default": None})),
)


class _Real(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Refused(message)


class _Choices(list[Any]):
    def __contains__(self, item: object) -> bool:
        return item is UNKNOWN or super().__contains__(item)


def parse(
    parser: Parser, words: Sequence[str | None] | None, convert: Callable[[Any, str], Any], region: object
) -> tuple[DictValue, str, ast.Call | None]:
    """Parse the words of a line.

    Args:
        convert: applies a function of the program's own to a word.

    Returns:
        The namespace, the reason why the parser refuses the line, and the call that adds the option concerned. Values
        are unknown where the words are.
    """
    real = _Real(add_help=False, allow_abbrev=parser.abbreviates)
    try:
        return _parse_words(real, parser, words, convert, region)
    finally:
        # It refers to itself, and to the run through its converters.
        vars(real).clear()


def _parse_words(
    real: argparse.ArgumentParser,
    parser: Parser,
    words: Sequence[str | None] | None,
    convert: Callable[[Any, str], Any],
    region: object,
) -> tuple[DictValue, str, ast.Call | None]:
    calls: dict[str, ast.Call] = {}
    unsure: set[str] = set()
    valued: set[str] = set()
    for names, given, call in parser.options:
        try:
            action, is_sure = _added(real, names, given, convert)
        except (TypeError, ValueError, argparse.ArgumentError, NotKnown):
            return DictValue(None, region, has_attributes=True), "", None
        calls.update(dict.fromkeys((*names, action.dest), call))
        if not is_sure:
            unsure.add(action.dest)
        if action.nargs is None:
            valued.update(names)
    real.set_defaults(**parser.defaults)
    known = _with_open_values(words, valued) if words is not None and not parser.is_open else None
    if words and known is None and not parser.is_open:
        known = _before_more(words, valued)
        for action in vars(real)["_actions"] if known is not None else ():
            # The words that follow may give it.
            action.required, action.default = False, UNKNOWN
    if known is None:
        return DictValue(None, region, has_attributes=True), "", None
    try:
        found, _ = real.parse_known_args(known)
    except Refused as refused:
        named = next((name for name in sorted(calls, key=len, reverse=True) if name in str(refused)), None)
        return DictValue(None, region, has_attributes=True), str(refused), calls[named] if named is not None else None
    items = {
        name: Unknown(text=f"{{{name}}}") if name in unsure or value is UNKNOWN else _lifted(value, region)
        for name, value in vars(found).items()
    }
    return DictValue(items, region, has_attributes=True), "", None


def _with_open_values(words: Sequence[str | None], valued: set[str]) -> list[str] | None:
    """Return the words, with a sign for each that is not known and is the value of an option; None if one may be
    anything.
    """
    found: list[str] = []
    for before, word in itertools.pairwise(("", *words)):
        if word is None and before not in valued:
            return None
        found.append(OPEN if word is None else word)
    return found


def _before_more(words: Sequence[str | None], valued: set[str]) -> list[str] | None:
    """Return the words before trailing unknown ones, if these are assumed to be empty, or else None."""
    known = list(words)
    # An unknown word after an option is its value.
    while known and known[-1] is None and (len(known) < 2 or known[-2] not in valued):
        known.pop()
    has_more = known and len(known) < len(words)
    return _with_open_values(known, valued) if has_more and assume_nothing_given("further arguments") else None


def _added(
    real: argparse.ArgumentParser, names: tuple[str, ...], given: dict[str, Any], convert: Callable[[Any, str], Any]
) -> tuple[argparse.Action, bool]:
    """Add an option; whether its value is known afterwards."""
    options: dict[str, Any] = {}
    is_sure = True
    for name in ("nargs", "const", "required", "dest"):
        if name in given:
            value = _number_of_words(given[name]) if name == "nargs" else given[name]
            options[name] = native(value) if name != "const" else value
    action = given.get("action", "store")
    if isinstance(action, External) and action.last == "BooleanOptionalAction":
        options["action"] = argparse.BooleanOptionalAction
    elif isinstance(action, str) and action in _ACTIONS:
        options["action"] = action
    elif "nargs" in given:
        is_sure = False
    else:
        # It may take no word, or several.
        raise NotKnown
    if "default" in given:
        options["default"] = given["default"]
        if action in ("append", "extend", "count") and not isinstance(given["default"], (int, type(None))):
            listed = given["default"].items if isinstance(given["default"], ListValue) else None
            options["default"] = list(listed) if listed is not None else None
            is_sure = is_sure and listed is not None
    if options.get("action", "store") in ("store", "append", "extend"):
        options["type"] = _converter(given.get("type"), convert)
        if "choices" in given:
            try:
                options["choices"] = _Choices(native(given["choices"]))
            except (NotKnown, TypeError):
                is_sure = False
    return real.add_argument(*names, **options), is_sure


def _number_of_words(value: Any) -> Any:
    """Return the number of words of an option, if a constant of argparse sets it."""
    is_constant = isinstance(value, External) and value.name.startswith("argparse.")
    return getattr(argparse, value.last, value) if is_constant else value


def _converter(kind: Any, convert: Callable[[Any, str], Any]) -> Callable[[str], Any]:
    function = _TYPES.get(kind.name) if isinstance(kind, External) else str if kind is None else None

    def converted(word: str) -> Any:
        if word == OPEN:
            return UNKNOWN
        return function(word) if function is not None else convert(kind, word)

    # argparse names the type when it refuses a word.
    converted.__name__ = getattr(function, "__name__", "value")
    return converted


def _lifted(value: Any, region: object) -> Any:
    return ListValue([_lifted(item, region) for item in value], region) if isinstance(value, list) else value
