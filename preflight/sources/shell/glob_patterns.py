"""Shell patterns on known strings: `${X%suffix}`, `${X/old/new}` and `case` patterns.

A pattern is matched by tracking the set of reachable positions, not by regular expressions, so that a hostile
`*a*a*a*b` costs at most the product of its length and the subject's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

MAX_PATTERN_LENGTH = 200
MAX_SUBJECT_LENGTH = 4_000
#: Largest pattern length times subject length that is matched; paths and flags need far less.
MAX_WORK = 10_000
#: Replacing a pattern with a star tries every start and end, which is quadratic: only in shorter subjects.
MAX_REPLACED_LENGTH = 120
_MAX_REPLACEMENTS = 1_000


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


def apply(operator: str, value: str, operand: str) -> str:
    """Apply a pattern or case operator (`#`, `%%`, `//`, `^^`, ...) to a value.

    Raises:
        ValueError: the pattern or the value is too long to match.
    """
    if operator in ("^^", ",,"):
        return value.upper() if operator == "^^" else value.lower()
    if operator in ("^", ","):
        return (value[:1].upper() if operator == "^" else value[:1].lower()) + value[1:]
    if operator in ("#", "##"):
        ends = _ends(_steps(operand), value, 0)
        if not ends:
            return value
        return value[min(ends) if operator == "#" else max(ends) :]
    if operator in ("%", "%%"):
        ends = _ends(_steps(operand)[::-1], value[::-1], 0)
        if not ends:
            return value
        return value[: len(value) - (min(ends) if operator == "%" else max(ends))]
    return _replace(operator, value, operand)


def _replace(operator: str, value: str, operand: str) -> str:
    old, new = _split_operand(operand)
    if not old:
        return value
    steps = _steps(old)
    if len(value) > MAX_REPLACED_LENGTH and None in steps:
        raise ValueError("too long for a replacement")
    new = new.replace("\\", "") if "\\" in new else new
    if operator == "/#":
        ends = _ends(steps, value, 0)
        return new + value[max(ends) :] if ends else value
    out: list[str] = []
    at = count = 0
    while at <= len(value) and count < _MAX_REPLACEMENTS:
        ends = _ends(steps, value, at)
        if operator == "/%":
            ends = ends & {len(value)}
        end = max(ends, default=-1)
        if end > at or (end == at == len(value) and operator == "/%"):
            out.append(new)
            count += 1
            at = end
            if operator != "//":
                break
        elif at < len(value):
            out.append(value[at])
            at += 1
        else:
            break
    return "".join(out) + value[at:]


def _ends(steps: Sequence[Callable[[str], bool] | None], subject: str, start: int) -> set[int]:
    """Every position where a match that begins at `start` can end."""
    if len(subject) > MAX_SUBJECT_LENGTH or len(subject) * len(steps) > MAX_WORK:
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
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise ValueError("too long to match")
    steps: list[Callable[[str], bool] | None] = []
    at = 0
    while at < len(pattern):
        operator = pattern[at]
        if operator == "*":
            if not steps or steps[-1] is not None:
                steps.append(None)
        elif operator == "?":
            steps.append(_any_character)
        elif operator == "[" and (close := pattern.find("]", at + 2)) > 0:
            steps.append(_character_class(pattern[at + 1 : close]))
            at = close
        else:
            if operator == "\\" and at + 1 < len(pattern):
                at += 1
            steps.append(pattern[at].__eq__)
        at += 1
    return steps


def _any_character(_: str) -> bool:
    return True


def _character_class(body: str) -> Callable[[str], bool]:
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

    def is_member(operator: str) -> bool:
        return (operator in singles or any(low <= operator <= high for low, high in ranges)) != negated

    return is_member


def _split_operand(operand: str) -> tuple[str, str]:
    at = 0
    while at < len(operand):
        if operand[at] == "\\":
            at += 1
        elif operand[at] == "/":
            return operand[:at], operand[at + 1 :]
        at += 1
    return operand, ""
