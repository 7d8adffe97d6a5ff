"""The options that a script's parser declares, and values that consist of what a launch line gives for them.

Source: Python's argparse (3.11).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterable, Sequence

from preflight.model.job import Known, Value
from preflight.model.job.value import OfOptions, ProgramOption

#: What may give an option another value than the command line, or change the line.
_CHANGES = re.compile(
    r"\bset_defaults\b|\bsetattr\(|__dict__|\bvars\(\w+\)(?:\[|\.update)|\bsys\.argv\b(?!\[0\])|\bfromfile_prefix_chars\b"
    r"|\bargument_default\b|\bparse_args\((?=[^)\s])"
)
_TYPES = ("str", "int", "float")
_SWITCHES = ("store_true", "store_false")
#: Arguments of `add_argument` that leave the value of an option what the line says.
_PLAIN = frozenset(("type", "default", "help", "required", "dest", "action", "choices", "metavar"))


def options(
    calls: Iterable[ast.Call], text: str, assigned: Collection[str], fold: Callable[[ast.expr], Value]
) -> dict[str, ProgramOption]:
    """The options by the attribute that holds their value; without a kind where the line alone does not tell it.

    Args:
        calls: those of `add_argument`.
        text: of the script.
        assigned: the attributes that the script assigns.
        fold: gives the value of an expression.
    """
    changed = _CHANGES.search(text) is not None
    found: dict[str, ProgramOption] = {}
    for call in calls:
        written = (item.value for item in call.args if isinstance(item, ast.Constant))
        names = tuple(name for name in written if isinstance(name, str) and name.startswith("-"))
        if not any(name.startswith("--") for name in names):
            continue
        given = {keyword.arg or "": keyword.value for keyword in call.keywords}
        long = next(name for name in names if name.startswith("--"))
        holder = _constant(given.get("dest")) or long.lstrip("-").replace("-", "_")
        default = fold(given["default"]) if "default" in given else None
        known = default is None or isinstance(default, Known)
        kind = "" if changed or holder in assigned or holder in found else _kind(given)
        found[holder] = ProgramOption(
            names,
            kind,
            default.value if isinstance(default, Known) else kind == "store_false" if kind in _SWITCHES else None,
            known and "required" not in given,
        )
    return found


def _constant(expression: ast.expr | None) -> str:
    return expression.value if isinstance(expression, ast.Constant) and isinstance(expression.value, str) else ""


def _kind(given: dict[str, ast.expr]) -> str:
    if not given.keys() <= _PLAIN:
        return ""
    action = given.get("action")
    if action is not None:
        return _constant(action) if _constant(action) in (*_SWITCHES, "store") else ""
    kind = given.get("type")
    if kind is None:
        return "str"
    return kind.id if isinstance(kind, ast.Name) and kind.id in _TYPES else ""


def made_of(pieces: Sequence[Value]) -> OfOptions | None:
    """A text that consists of known parts and the values of options; None if all is known, or a part is neither."""
    parts: list[str | ProgramOption] = []
    why = ""
    for piece in pieces:
        if isinstance(piece, Known):
            parts.append(str(piece.value))
        elif isinstance(piece, OfOptions):
            why = why or piece.why
            parts.extend(piece.made_of)
        else:
            return None
    return OfOptions(why, made_of=tuple(parts)) if why else None


def converted(value: Value, kind: str) -> OfOptions | None:
    """The value of a single option as `str` or `int` makes it; None for anything else."""
    if not isinstance(value, OfOptions) or len(value.made_of) != 1:
        return None
    (option,) = value.made_of
    if isinstance(option, str) or option.kind not in _TYPES:
        return None
    return OfOptions(value.why, made_of=(option._replace(kind=kind),))
