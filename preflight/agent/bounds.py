"""JSON from another machine, parsed within bounds.

The sender may be broken or hostile. So everything that could exhaust this process, or that arithmetic cannot handle, is
rejected here, before any other code reads the document: size, depth, number of items, integers of more than 64 bits,
non-finite numbers, duplicate keys, and text that cannot be encoded in UTF-8.
"""

from __future__ import annotations

import json
import math
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Tuple

#: The largest answer of a node. Facts are kilobytes; parsed JSON takes up to thirty times its size.
ANSWER_BYTES = 4 * 1024 * 1024
#: The nesting depth of lists and objects. Facts have fewer than ten levels.
MAX_DEPTH = 32
#: Values in one document; each costs some 70 bytes of memory even if it is one character long.
MAX_ITEMS = 250_000
#: Integers of 64 bits, signed or unsigned: each of them converts to a float.
LEAST_INTEGER, MAX_INTEGER = -(1 << 63), (1 << 64) - 1
_MAX_DIGITS = 20

_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
#: The first escape of a surrogate pair, or of one half of it.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class BoundsError(ValueError):
    """A document exceeds a bound; the message says which one."""


def parse(data: bytes, *, max_bytes: int = ANSWER_BYTES, max_items: int = MAX_ITEMS, max_depth: int = MAX_DEPTH) -> Any:
    """The value of one JSON document. Raises ValueError (BoundsError, or json's own) that names the fault."""
    if len(data) > max_bytes:
        raise BoundsError("%d bytes; at most %d are accepted" % (len(data), max_bytes))
    check_size(data, max_items=max_items)
    try:
        value = _DECODER.decode(data.decode("utf-8"))
    except RecursionError:
        raise BoundsError("more than %d levels deep" % max_depth) from None
    check_depth(data, value, max_depth)
    if _SURROGATE.search(data) is not None:
        # Raises UnicodeEncodeError, which is a ValueError, for half of a pair.
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    return value


def check_size(data: bytes, *, max_items: int = MAX_ITEMS) -> None:
    """Raise BoundsError if a document has too many values, without parsing it."""
    if _items(data) > max_items and _items(_STRING.sub(b'""', data)) > max_items:
        raise BoundsError("more than %d items" % max_items)


def check_depth(data: bytes, value: Any, max_depth: int = MAX_DEPTH) -> None:
    """Raise BoundsError if `value`, parsed from `data`, is nested too deeply."""
    if data.count(b"[") + data.count(b"{") <= max_depth:
        return
    level = [value]
    for _ in range(max_depth + 1):
        inner: List[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(entry for entry in item.values() if isinstance(entry, (dict, list)))
            elif isinstance(item, list):
                inner.extend(entry for entry in item if isinstance(entry, (dict, list)))
        if not inner:
            return
        level = inner
    raise BoundsError("more than %d levels deep" % max_depth)


def check_numbers(value: Any) -> None:
    """Raise BoundsError if any number in `value` is one that `parse` would not accept."""
    remaining = [value]
    while remaining:
        item = remaining.pop()
        if isinstance(item, dict):
            remaining.extend(item.values())
        elif isinstance(item, (list, tuple)):
            remaining.extend(item)
        elif isinstance(item, float) and not math.isfinite(item):
            raise BoundsError("%s is not a finite number" % item)
        elif isinstance(item, int) and not LEAST_INTEGER <= item <= MAX_INTEGER:
            raise BoundsError("an integer of %d bits; at most 64 are accepted" % item.bit_length())


def is_deep(data: bytes, max_depth: int = 64) -> bool:
    """Whether JSON text is nested more deeply than this, or has mismatched brackets."""
    brackets = _STRING.sub(b"", data).translate(None, _NO_BRACKETS)
    for _ in range(max_depth):
        inner = brackets.replace(b"[]", b"").replace(b"{}", b"")
        if len(inner) == len(brackets):
            break
        brackets = inner
    # A line of a document may open or close a few brackets that other lines close or open.
    return len(brackets) > max_depth


def _items(data: bytes) -> int:
    return data.count(b",") + data.count(b"[") + data.count(b"{")


def _integer(text: str) -> int:
    if len(text) <= _MAX_DIGITS:
        number = int(text)
        if LEAST_INTEGER <= number <= MAX_INTEGER:
            return number
    raise BoundsError("the integer %.24s%s has more than 64 bits" % (text, "..." if len(text) > 24 else ""))


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise BoundsError("%.40s is not a finite number" % text)
    return number


def _object(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen = set()  # type: set[str]
        for key, _ in pairs:
            if key in seen:
                raise BoundsError("the key %.40r occurs twice in one object" % key)
            seen.add(key)
    return found


_DECODER = json.JSONDecoder(parse_int=_integer, parse_float=_finite, parse_constant=_finite, object_pairs_hook=_object)
