"""Reads pickled data without executing it: numbers, texts, lists, tuples and dictionaries, and nothing else.

`pickle.loads` imports and calls whatever a file names, and its memory for positions is as large as a file asks for.
Here the standard library only splits the file into its instructions; those that build plain containers are followed,
and any other ends the reading.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Iterator
from typing import Any

#: Number of instructions followed; a dump of two thousand collectives has half a million.
MAX_INSTRUCTIONS = 4_000_000

_MARK = object()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_VALUES = frozenset(
    (
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
        *("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "STRING", "BINSTRING", "SHORT_BINSTRING"),
        *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
    )
)
_PUTS = frozenset(("PUT", "BINPUT", "LONG_BINPUT"))
_GETS = frozenset(("GET", "BINGET", "LONG_BINGET"))
_IGNORED = frozenset(("PROTO", "FRAME"))


def load(data: bytes) -> Any:
    """Return the value that `data` holds. It may refer to itself.

    Raises:
        ValueError: the data is damaged, too long, or would build something else than plain containers.
    """
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    try:
        for number, (code, argument, _) in enumerate(pickletools.genops(data)):
            if number >= MAX_INSTRUCTIONS:
                raise ValueError(f"more than {MAX_INSTRUCTIONS} instructions")
            if code.name == "STOP":
                return stack[-1]
            _follow(code.name, argument, stack, memo)
    except (IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"damaged pickle: {type(error).__name__}") from None
    raise ValueError("damaged pickle: it has no end")


def _follow(name: str, argument: Any, stack: list[Any], memo: dict[int, Any]) -> None:
    if name in _VALUES:
        stack.append(argument)
    elif name in _CONSTANTS:
        stack.append(_CONSTANTS[name])
    elif name in _EMPTY:
        stack.append(_EMPTY[name]())
    elif name in _TUPLES:
        size = _TUPLES[name]
        if len(stack) < size:
            raise IndexError
        stack[-size:] = [tuple(stack[-size:])]
    elif name in _PUTS:
        memo[argument] = stack[-1]
    elif name == "MEMOIZE":
        memo[len(memo)] = stack[-1]
    elif name in _GETS:
        stack.append(memo[argument])
    elif name == "MARK":
        stack.append(_MARK)
    elif name == "APPEND":
        value = stack.pop()
        _list(stack[-1]).append(value)
    elif name == "SETITEM":
        value, key = stack.pop(), stack.pop()
        _dict(stack[-1])[_key(key)] = value
    elif name in ("APPENDS", "SETITEMS", "TUPLE", "LIST", "DICT"):
        _collect(name, _until_mark(stack), stack)
    elif name not in _IGNORED:
        raise ValueError(f"the pickle contains {name}, which builds more than plain containers")


def _collect(name: str, items: list[Any], stack: list[Any]) -> None:
    if name == "APPENDS":
        _list(stack[-1]).extend(items)
    elif name == "SETITEMS":
        _dict(stack[-1]).update(_pairs(items))
    elif name == "DICT":
        stack.append(dict(_pairs(items)))
    else:
        stack.append(tuple(items) if name == "TUPLE" else items)


def _pairs(items: list[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(map(_key, items[::2]), items[1::2], strict=True)


def _key(value: Any) -> Any:
    """Return a key of a dictionary, but no tuple: the hash of a tuple of tuples may take forever."""
    if not isinstance(value, str | int | float | bytes | None):
        raise TypeError
    return value


def _until_mark(stack: list[Any]) -> list[Any]:
    items: list[Any] = []
    while (value := stack.pop()) is not _MARK:
        items.append(value)
    return items[::-1]


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError
    return value


def _dict(value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise TypeError
    return value
