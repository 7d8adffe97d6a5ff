"""What `${X%suffix}`, `${X/old/new}` and `case` patterns do to a known string.

Patterns are matched by walking the set of positions that can be reached, not by regular expressions: a hostile
`*a*a*a*b` then costs its length times the subject's, and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

LONGEST_PATTERN = 200
LONGEST_SUBJECT = 4_000
#: Pattern length times subject length that is still matched; paths and flags stay far below.
MOST_WORK = 10_000
#: With a star in it, replacing looks at every start and every end: quadratic, so only in shorter subjects.
LONGEST_REPLACED = 120
_MOST_REPLACED = 1_000


def matches(pattern: str, subject: str) -> bool:
    """Whether the whole of `subject` matches a `case` or `[[ == ]]` pattern.

    Raises:
        ValueError: the pattern or the subject is too long.
    """
    return len(subject) in _ends(_steps(pattern), subject, 0)


def substring(value: str, offset: int, length: int | None) -> str:
    """`${value:offset:length}`."""
    start = offset if offset >= 0 else max(len(value) + offset, 0)
    if length is None:
        return value[start:]
    return value[start : start + length] if length >= 0 else value[start:length]


def apply(sign: str, value: str, operand: str) -> str:
    """The result of one of the pattern operators.

    Raises:
        ValueError: the pattern or the value is too long to match.
    """
    if sign in ("^^", ",,"):
        return value.upper() if sign == "^^" else value.lower()
    if sign in ("^", ","):
        return (value[:1].upper() if sign == "^" else value[:1].lower()) + value[1:]
    if sign in ("#", "##"):
        ends = _ends(_steps(operand), value, 0)
        if not ends:
            return value
        return value[min(ends) if sign == "#" else max(ends) :]
    if sign in ("%", "%%"):
        ends = _ends(_steps(operand)[::-1], value[::-1], 0)
        if not ends:
            return value
        return value[: len(value) - (min(ends) if sign == "%" else max(ends))]
    return _replaced(sign, value, operand)


def _replaced(sign: str, value: str, operand: str) -> str:
    old, new = _halves(operand)
    if not old:
        return value
    steps = _steps(old)
    if len(value) > LONGEST_REPLACED and None in steps:
        raise ValueError("too long to replace in")
    new = new.replace("\\", "") if "\\" in new else new
    if sign == "/#":
        ends = _ends(steps, value, 0)
        return new + value[max(ends) :] if ends else value
    out: list[str] = []
    at = done = 0
    while at <= len(value) and done < _MOST_REPLACED:
        ends = _ends(steps, value, at)
        if sign == "/%":
            ends = ends & {len(value)}
        end = max(ends, default=-1)
        if end > at or (end == at == len(value) and sign == "/%"):
            out.append(new)
            done += 1
            at = end
            if sign != "//":
                break
        elif at < len(value):
            out.append(value[at])
            at += 1
        else:
            break
    return "".join(out) + value[at:]


def _ends(steps: Sequence[Callable[[str], bool] | None], subject: str, start: int) -> set[int]:
    """Every position at which a match that begins at `start` can end."""
    if len(subject) > LONGEST_SUBJECT or len(subject) * len(steps) > MOST_WORK:
        raise ValueError("too long to match")
    positions = {start}
    for step in steps:
        if step is None:
            positions = set(range(min(positions), len(subject) + 1))
        else:
            positions = {at + 1 for at in positions if at < len(subject) and step(subject[at])}
        if not positions:
            break
    return positions


def _steps(pattern: str) -> list[Callable[[str], bool] | None]:
    if len(pattern) > LONGEST_PATTERN:
        raise ValueError("the pattern is too long to match")
    steps: list[Callable[[str], bool] | None] = []
    at = 0
    while at < len(pattern):
        sign = pattern[at]
        if sign == "*":
            if not steps or steps[-1] is not None:
                steps.append(None)
        elif sign == "?":
            steps.append(_any)
        elif sign == "[" and (close := pattern.find("]", at + 2)) > 0:
            steps.append(_class(pattern[at + 1 : close]))
            at = close
        else:
            if sign == "\\" and at + 1 < len(pattern):
                at += 1
            steps.append(pattern[at].__eq__)
        at += 1
    return steps


def _any(_: str) -> bool:
    return True


def _class(body: str) -> Callable[[str], bool]:
    negated = body[:1] in ("!", "^")
    body = body[1:] if negated else body
    singles: set[str] = set()
    ranges: list[tuple[str, str]] = []
    at = 0
    while at < len(body):
        if at + 2 < len(body) and body[at + 1] == "-":
            ranges.append((body[at], body[at + 2]))
            at += 3
        else:
            singles.add(body[at])
            at += 1

    def inside(sign: str) -> bool:
        return (sign in singles or any(low <= sign <= high for low, high in ranges)) != negated

    return inside


def _halves(operand: str) -> tuple[str, str]:
    at = 0
    while at < len(operand):
        if operand[at] == "\\":
            at += 1
        elif operand[at] == "/":
            return operand[:at], operand[at + 1 :]
        at += 1
    return operand, ""
