"""The values that a framework accepts for one key, and whether a given value is one of them.

The conversions are those of pydantic in its lax mode, which DeepSpeed's models use: `1` and `"yes"` are booleans, `"8"`
and `8.0` whole numbers. Source: pydantic's conversion table (2.12).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from preflight.model.job import Plain
from preflight.model.job.value import SECTION

_TRUE_OR_FALSE = frozenset(("0", "1", "off", "on", "f", "t", "false", "true", "n", "y", "no", "yes"))

#: What Accelerate's own conversion takes, whose texts are in lower case when it sees them.
_TRUTH = _TRUE_OR_FALSE


class Setting(NamedTuple):
    """One key of a framework's configuration.

    Args:
        key: with its sections, separated by dots.
        kind: `int`, `float`, `bool`, `str`, `path`, `list`, `section`; of a protobuf message `int_or_bool`,
            `bool_or_int`, `number`, `texts`, `numbers`; without any conversion `exact_bool`; of a command line `whole`,
            `decimal`, `strtobool`, `flag`, `given`; `json` for one of the types of a JSON Schema; empty for any.
        also: another kind that it accepts.
        choices: the values that it accepts; empty for any of its kind.
        words: texts that it accepts besides its kind (`auto`).
        minimum: its lower bound, inclusive; None without one.
        above: its lower bound, exclusive.
        maximum: its upper bound, inclusive.
        nullable: whether null counts as leaving it out.
        closed: for a section: whether a key that is not listed is rejected.
        alias: another name for it.
        replaced_by: the key that replaced it, and that it may not be combined with.
        when: the condition under which the framework reads it; empty for always.
        former: values that it accepted in earlier releases.
        bool_until: the release up to which true and false count as whole numbers; empty if they always do.
        added: of the releases that the table was read from, the first that has it; empty if all have it.
        gone: the last release that has it; empty if the newest has it.
        since: the first release that rejects other values; empty for all known releases.
        until: the last release that is known to reject them; empty for the newest.
        types: of the kind `json`: the names of its types; any if there are none.
        pattern: of the kind `json`: what a text has to contain; choices count in upper and lower case.
    """

    key: str
    kind: str = ""
    also: str = ""
    choices: tuple[Plain, ...] = ()
    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    nullable: bool = False
    closed: bool = False
    alias: str = ""
    replaced_by: str = ""
    since: str = ""
    until: str = ""
    when: str = ""
    former: tuple[Plain, ...] = ()
    words: tuple[Plain, ...] = ()
    bool_until: str = ""
    added: str = ""
    gone: str = ""
    types: tuple[Plain, ...] = ()
    pattern: str = ""


def refused(setting: Setting, value: Plain) -> str:
    """A description of the expected value; empty if the framework accepts this one."""
    if value is None:
        return "" if setting.nullable or not setting.kind else _named(setting)
    if value in setting.words:
        return ""
    if setting.kind == "json":
        return "" if _fits_schema(setting, value) else _named(setting)
    if setting.kind == "words":
        words = value.split() if isinstance(value, str) else value if isinstance(value, tuple) else (value,)
        known = isinstance(value, bool) or all(word in (*setting.choices, *setting.former) for word in words)
        return "" if known or value == SECTION else _named(setting)
    if setting.kind == "names":
        return "" if not isinstance(value, str) or value in setting.choices else _named(setting)
    if setting.kind == "lower":
        taken = value is False or (isinstance(value, str) and value.lower() in setting.choices)
        return "" if taken else _named(setting)
    if setting.choices and setting.kind == "given":
        return "" if str(value) in setting.choices and value is not True else _named(setting)
    if setting.choices:
        # Whole numbers are converted before they are looked up.
        chosen = _number("int", value) if setting.kind == "int" else value
        return "" if chosen in (*setting.choices, *setting.former) else _named(setting)
    number = _number(setting.kind, value)
    if setting.kind in ("int", "float"):
        if number is None or not _within(setting, number):
            return _named(setting)
        return ""
    if isinstance(value, int | float | str) and setting.kind in ("whole", "number", "int_or_bool", "decimal"):
        outside = _is_of_kind(setting.kind, value) and not _within(setting, float(value))
        if outside:
            return _named(setting)
    taken = _is_of_kind(setting.kind, value) or (bool(setting.also) and _is_of_kind(setting.also, value))
    return "" if taken else _named(setting)


def _json_types(value: Plain) -> tuple[str, ...]:
    """The types that JSON Schema gives a value; a number without a fraction is an integer."""
    if value == SECTION:
        return ("object",)
    if isinstance(value, bool):
        return ("boolean",)
    if isinstance(value, tuple):
        return ("array",)
    if isinstance(value, str):
        return ("string",)
    return ("integer", "number") if isinstance(value, int) or float(str(value)).is_integer() else ("number",)


def _fits_schema(setting: Setting, value: Plain) -> bool:
    types = _json_types(value)
    if setting.types and not set(types) & set(setting.types):
        return False
    if "string" in types:
        text = str(value)
        known = not setting.choices or text.lower() in (str(choice).lower() for choice in setting.choices)
        return known and (not setting.pattern or re.search(setting.pattern, text) is not None)
    return "number" not in types or _within(setting, float(str(value)))


#: Kinds of a command line, whose values are texts; argparse calls Python's own types.
_CONVERTED: dict[str, Callable[[str], object]] = {"whole": int, "decimal": float}


def _is_text_of(kind: str, value: Plain) -> bool:
    try:
        _CONVERTED[kind](str(value))
    except ValueError:
        return False
    return not isinstance(value, tuple)


def _is_plain_number(value: Plain) -> bool:
    return isinstance(value, int | float)


def _number(kind: str, value: Plain) -> float | None:
    if isinstance(value, tuple) or value is None:
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    if kind == "int" and (not number.is_integer() or (isinstance(value, str) and "e" in value.lower())):
        return None
    return number


def _within(setting: Setting, number: float) -> bool:
    return (
        (setting.minimum is None or number >= setting.minimum)
        and (setting.above is None or number > setting.above)
        and (setting.maximum is None or number <= setting.maximum)
    )


def _is_of_kind(kind: str, value: Plain) -> bool:
    if kind == "bool":
        return (
            isinstance(value, bool) or value in (0, 1) or (isinstance(value, str) and value.lower() in _TRUE_OR_FALSE)
        )
    if kind == "truth":
        return str(value).lower() in _TRUTH
    if kind == "flag":
        return value is True
    if kind == "given":
        return value is not True
    if kind == "strtobool":
        return str(value).lower() in _TRUTH
    if kind == "exact_bool":
        return isinstance(value, bool)
    if kind in ("int_or_bool", "bool_or_int"):
        return isinstance(value, int)
    if kind == "number":
        return _is_plain_number(value)
    if kind in ("texts", "numbers"):
        items = value if isinstance(value, tuple) else tuple(value) if isinstance(value, str) else (None,)
        return all(isinstance(item, str) if kind == "texts" else _is_plain_number(item) for item in items)
    if kind in _CONVERTED:
        if isinstance(value, bool):
            return False
        return _is_text_of(kind, value)
    if kind in ("str", "path"):
        return isinstance(value, str)
    if kind == "section":
        return value == SECTION
    if kind == "list":
        return isinstance(value, tuple) and value != SECTION
    return True


_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a text",
    "exact_bool": "true or false",
    "strtobool": "true or false",
    "flag": "no value",
    "given": "one value",
    "int_or_bool": "a whole number",
    "bool_or_int": "true or false",
    "whole": "a whole number",
    "decimal": "a number",
    "number": "a number",
    "texts": "a list of texts",
    "numbers": "a list of numbers",
    "truth": "true or false",
    "path": "a path",
    "list": "a list",
    "section": "a section with keys of its own",
}


_NAMES_OF_TYPES = {
    "object": "section",
    "boolean": "exact_bool",
    "array": "list",
    "string": "str",
    "integer": "int",
    "number": "float",
}


def _named(setting: Setting) -> str:
    if setting.choices:
        return f"one of {', '.join(map(str, setting.choices))}"
    bounds = [
        f"{word} {bound:g}"
        for word, bound in (("at least", setting.minimum), ("more than", setting.above), ("at most", setting.maximum))
        if bound is not None
    ]
    if setting.kind == "json":
        words = [*dict.fromkeys(_WORDS[_NAMES_OF_TYPES[str(name)]] for name in setting.types if name != "null")]
        shown = " or ".join(words) + (f" that matches `{setting.pattern}`" if 0 < len(setting.pattern) < 60 else "")
        return " ".join((shown or "another value", *((", ".join(bounds),) if bounds else ())))
    named = " ".join((_WORDS.get(setting.kind, "another value"), *((", ".join(bounds),) if bounds else ())))
    return ", or ".join((named, *map(str, setting.words)))
