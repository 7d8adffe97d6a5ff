"""What `printf`, `seq`, `dirname` and their like print from their arguments alone."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence

from preflight.lazy.patterns import lazy_pattern

_CONVERSION = lazy_pattern(r"%(%|0?\d{0,3}[sd])")
_LONGEST_SEQUENCE = 2_000

#: Programs that print a path they are given, changed.
PATHS = frozenset(("dirname", "basename", "realpath", "readlink", "cygpath"))


def printf(words: Sequence[str]) -> str | None:
    """What `printf FORMAT ARGUMENT...` prints, for %s and %d with a width; None for anything else."""
    if not words:
        return None
    form, arguments = words[0].replace("\\n", "\n").replace("\\t", "\t"), list(words[1:])
    conversions = [found for found in _CONVERSION.findall(form) if found != "%"]
    if form.count("%") != len(_CONVERSION.findall(form)) + form.count("%%") or "\\" in form:
        return None
    if not conversions:
        return form.replace("%%", "%")
    out: list[str] = []
    for start in range(0, max(len(arguments), 1), len(conversions)):
        turn = arguments[start : start + len(conversions)]
        turn += [""] * (len(conversions) - len(turn))
        values: list[object] = []
        for conversion, value in zip(conversions, turn, strict=True):
            if conversion.endswith("d"):
                if not re.fullmatch(r"-?\d{1,18}", value or "0"):
                    return None
                values.append(int(value or "0"))
            else:
                values.append(value)
        out.append(form % tuple(values))
    return "".join(out)


def seq(words: Sequence[str]) -> str | None:
    """The numbers that `seq [-s SEPARATOR] [FIRST [STEP]] LAST` prints; None for other forms or far too many."""
    separator = "\n"
    rest = list(words)
    if rest[:1] == ["-s"] and len(rest) > 1:
        separator, rest = rest[1], rest[2:]
    try:
        numbers = [int(word) for word in rest]
    except ValueError:
        return None
    if not 1 <= len(numbers) <= 3:
        return None
    first = numbers[0] if len(numbers) > 1 else 1
    step = numbers[1] if len(numbers) == 3 else 1
    last = numbers[-1]
    if step == 0 or abs(last - first) // abs(step) > _LONGEST_SEQUENCE:
        return None
    turns = range(first, last + (1 if step > 0 else -1), step)
    return separator.join(str(turn) for turn in turns) + "\n"


def path_change(name: str, suffix: str = "") -> Callable[[str], str]:
    """What one of PATHS does to a path; `suffix` is the second argument of `basename`."""
    if name == "dirname":
        return _dirname
    if name == "basename":
        return lambda item: _basename(item, suffix)
    return posixpath.normpath


def _basename(item: str, suffix: str) -> str:
    base = posixpath.basename(item.rstrip("/"))
    return base.removesuffix(suffix) or base


def _dirname(item: str) -> str:
    return posixpath.dirname(item.rstrip("/")) or ("/" if item.startswith("/") else ".")
