"""The output of `printf`, `seq`, `dirname` and similar programs, which depends only on their arguments."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence

_CONVERSION = re.compile(r"%(%|0?\d{0,3}[sd])")
_MAX_SEQUENCE = 2_000

#: Programs that print a changed form of a given path.
PATH_PROGRAMS = frozenset(("dirname", "basename", "realpath", "readlink", "cygpath"))


def printf(words: Sequence[str]) -> str | None:
    """The output of `printf FORMAT ARGUMENT...` for %s and %d with a width; None for other formats."""
    if not words:
        return None
    template, arguments = words[0].replace("\\n", "\n").replace("\\t", "\t"), list(words[1:])
    conversions = [found for found in _CONVERSION.findall(template) if found != "%"]
    if template.count("%") != len(_CONVERSION.findall(template)) + template.count("%%") or "\\" in template:
        return None
    if not conversions:
        return template.replace("%%", "%")
    out: list[str] = []
    for start in range(0, max(len(arguments), 1), len(conversions)):
        batch = arguments[start : start + len(conversions)]
        batch += [""] * (len(conversions) - len(batch))
        values: list[object] = []
        for conversion, value in zip(conversions, batch, strict=True):
            if conversion.endswith("d"):
                if not re.fullmatch(r"-?\d{1,18}", value or "0"):
                    return None
                values.append(int(value or "0"))
            else:
                values.append(value)
        out.append(template % tuple(values))
    return "".join(out)


def seq(words: Sequence[str]) -> str | None:
    """The output of `seq [-s SEPARATOR] [FIRST [STEP]] LAST`; None for other forms and for very long sequences."""
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
    if step == 0 or abs(last - first) // abs(step) > _MAX_SEQUENCE:
        return None
    printed = range(first, last + (1 if step > 0 else -1), step)
    return separator.join(str(number) for number in printed) + "\n"


def path_function(name: str, suffix: str = "") -> Callable[[str], str]:
    """The function that one of `PATH_PROGRAMS` applies to a path; `suffix` is the second argument of `basename`."""
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
