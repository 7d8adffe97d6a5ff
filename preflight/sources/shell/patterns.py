"""What `${X%suffix}`, `${X/old/new}` and `case` patterns do to a known string."""

from __future__ import annotations

import re

#: A pattern longer than this, or with more stars, is not matched: the match could take too long.
LONGEST_PATTERN = 300
MOST_STARS = 6
_LONGEST_SUBJECT = 4_000


def to_regex(pattern: str, *, shortest: bool = False) -> re.Pattern[str]:
    """A shell pattern as a regular expression.

    Raises:
        ValueError: the pattern is too long or has too many stars.
    """
    if len(pattern) > LONGEST_PATTERN or pattern.count("*") > MOST_STARS:
        raise ValueError("the pattern is too involved to match")
    out: list[str] = []
    at = 0
    while at < len(pattern):
        sign = pattern[at]
        if sign == "*":
            out.append(".*?" if shortest else ".*")
            while at + 1 < len(pattern) and pattern[at + 1] == "*":
                at += 1
        elif sign == "?":
            out.append(".")
        elif sign == "[" and (close := pattern.find("]", at + 2)) > 0:
            body = pattern[at + 1 : close].replace("\\", "\\\\").replace("[", "\\[")
            if body[0] in "!^":
                body = "^" + body[1:]
            out.append(f"[{body}]")
            at = close
        elif sign == "\\" and at + 1 < len(pattern):
            at += 1
            out.append(re.escape(pattern[at]))
        else:
            out.append(re.escape(sign))
        at += 1
    try:
        return re.compile("".join(out), re.DOTALL)
    except re.error as error:
        raise ValueError(f"not a pattern: {error}") from None


def matches(pattern: str, subject: str) -> bool:
    """Whether the whole of `subject` matches a `case` or `[[ == ]]` pattern."""
    return to_regex(pattern).fullmatch(subject[:_LONGEST_SUBJECT]) is not None


def substring(value: str, offset: int, length: int | None) -> str:
    """`${value:offset:length}`."""
    start = offset if offset >= 0 else max(len(value) + offset, 0)
    if length is None:
        return value[start:]
    return value[start : start + length] if length >= 0 else value[start:length]


def apply(sign: str, value: str, operand: str) -> str:
    """The result of one of the pattern operators; the value itself where the pattern cannot be matched."""
    try:
        return _apply(sign, value, operand)
    except ValueError:
        return value


def _apply(sign: str, value: str, operand: str) -> str:
    if sign in ("^^", ",,"):
        return value.upper() if sign == "^^" else value.lower()
    if sign in ("^", ","):
        return (value[:1].upper() if sign == "^" else value[:1].lower()) + value[1:]
    if len(value) > _LONGEST_SUBJECT:
        raise ValueError("too long to match")
    if sign in ("#", "##"):
        found = to_regex(operand, shortest=sign == "#").match(value)
        return value[found.end() :] if found else value
    if sign in ("%", "%%"):
        pattern = to_regex(operand)
        starts = range(len(value), -1, -1) if sign == "%" else range(len(value) + 1)
        return next((value[:start] for start in starts if pattern.fullmatch(value, start)), value)
    old, new = _halves(operand)
    if not old:
        return value
    pattern = to_regex(old)
    if sign == "/#":
        found = pattern.match(value)
        return new + value[found.end() :] if found else value
    if sign == "/%":
        place = next((s for s in range(len(value) + 1) if pattern.fullmatch(value, s)), None)
        return value if place is None else value[:place] + new
    return pattern.sub(lambda _: new, value, count=0 if sign == "//" else 1)


def _halves(operand: str) -> tuple[str, str]:
    at = 0
    while at < len(operand):
        if operand[at] == "\\":
            at += 1
        elif operand[at] == "/":
            return operand[:at], operand[at + 1 :]
        at += 1
    return operand, ""
