"""Syntax within words: `$NAME` and `${...}`, patterns, and placeholders that the user must still replace.

A pattern is matched by tracking the set of reachable positions, not by regular expressions, so that a hostile
`*a*a*a*b` costs at most the product of its length and the subject's.

A shell reads `<` and `>` as redirections and stops with a syntax error, and so does the parser, which would lose the
rest of the script. Each placeholder is an unknown piece of text instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from preflight.sources.shell.shell_document import Document, FileText, Hole, Lit, Place, Text
from preflight.sources.shell.words import replace_spans

if TYPE_CHECKING:
    from tree_sitter import Node


_HEAD = re.compile(r"([#!]?)([A-Za-z_]\w*|\d+|[@*#?$!0-])(\[)?")
_OPERATOR = re.compile(r":[-=?+]|[-=?+]|##?|%%?|//|/#|/%|/|\^\^?|,,?|@[A-Za-z]|:")


@dataclass(frozen=True, slots=True)
class Use:
    """One parameter expansion as written.

    Args:
        document: the text it is in.
        node: its syntax node.
        place: its location.
        spelling: its text.
        name: the parameter.
        prefix: `#` for a length, `!` for an indirection, else empty.
        index: the text between `[` and `]`.
        index_start: where the index starts in the document.
        operator: `:-`, `%%`, `//`, ... or empty.
        argument: where the operand starts in the document.
        end: where the operand ends.
        quoted: whether it is in double quotes.
    """

    document: Document
    node: Node
    place: Place
    spelling: str
    name: str
    prefix: str
    index: str
    index_start: int
    operator: str
    argument: int
    end: int
    quoted: bool


def parse_parameter(document: Document, node: Node, *, quoted: bool) -> Use | None:
    """Parse an expansion; None when it is not understood."""
    source = document.text
    start = document.start_of(node)
    end = node.end_byte
    place = document.place(start, end)
    spelling = source[start:end]
    if not spelling.startswith("${"):
        name = spelling[1:]
        return Use(document, node, place, spelling, name, "", "", 0, "", end, end, quoted) if name else None
    end = end - 1 if spelling.endswith("}") else end
    at = start + 2
    if source[at:end] in ("#", "@", "*", "?", "!", "-", "$"):
        return Use(document, node, place, spelling, source[at:end], "", "", 0, "", end, end, quoted)
    head = _HEAD.match(source, at, end)
    if head is None:
        return None
    at = head.end()
    index, index_start = "", 0
    if head.group(3):
        close = _closing_bracket(source, at, end)
        index, index_start, at = source[at:close], at, min(close + 1, end)
    operator = _OPERATOR.match(source, at, end)
    operator_text = operator.group() if operator else ""
    argument = operator.end() if operator else at
    return Use(
        document,
        node,
        place,
        spelling,
        head.group(2),
        head.group(1),
        index,
        index_start,
        operator_text,
        argument,
        end,
        quoted,
    )


def _closing_bracket(source: str, at: int, end: int) -> int:
    depth = 1
    while at < end:
        if source[at] == "[":
            depth += 1
        elif source[at] == "]":
            depth -= 1
            if depth == 0:
                return at
        at += 1
    return end


MAX_PATTERN_LENGTH = 200
MAX_SUBJECT_LENGTH = 4_000
#: Largest pattern length times subject length that is matched; paths and flags need far less.
MAX_WORK = 10_000
#: Replacing a pattern with a star tries every start and end, which is quadratic: only in shorter subjects.
MAX_REPLACED_LENGTH = 120
_MAX_REPLACEMENTS = 1_000


def matches(pattern: str, subject: str) -> bool:
    """Return whether the whole of `subject` matches a `case` or `[[ == ]]` pattern.

    Raises:
        ValueError: the pattern or the subject is too long.
    """
    return len(subject) in _ends(_steps(pattern), subject, 0)


def substring(value: str, offset: int, length: int | None) -> str:
    """Return `${value:offset:length}`."""
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
    """Return every position where a match that begins at `start` can end."""
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
            steps.append(lambda _: True)
        elif operator == "[" and (close := pattern.find("]", at + 2)) > 0:
            steps.append(_character_class(pattern[at + 1 : close]))
            at = close
        else:
            if operator == "\\" and at + 1 < len(pattern):
                at += 1
            steps.append(pattern[at].__eq__)
        at += 1
    return steps


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


_PLACEHOLDER = re.compile(r"(?<![<>\w&$(])<([A-Za-z](?:[\w .,:/|'()-]*[\w.')])?)>(?=[\s\"';,:./)\\]|$)")
#: Characters that a redirection cannot follow: `NAME=<value>`, `host:<port>`.
_INSIDE_A_WORD = frozenset("=:/@,+-")
#: Text that only a placeholder contains: several words, or a name in capitals or with hyphens.
_NOT_A_FILE = re.compile(r"[ A-Z_|']|\w-\w")
#: Placeholders in one text that are read as such.
_MAX_PLACEHOLDERS = 200


def document_of(path: str, text: str) -> Document:
    """Return the document of a script, with a hole for each placeholder."""
    whole = Place(FileText(path, text), 0, len(text))
    code = Lit(text, whole)
    return Document(without_placeholders((code,)) or (code,), whole)


def without_placeholders(text: Text) -> Text:
    """Return code that was assembled from variables (`eval $CMD`), with a hole for each placeholder in a value."""
    return replace_spans(
        text,
        lambda literal: islice(_spans(literal), _MAX_PLACEHOLDERS),
        lambda found: [Hole(f"`{found.text}`, which must be replaced", found.place, found.spelling)],
    )


def _spans(text: str) -> Iterator[tuple[int, int]]:
    for match in _PLACEHOLDER.finditer(text):
        start, stop = match.span()
        before = text[text.rfind("\n", 0, start) + 1 : start]
        if before.lstrip().startswith("#") or before.count('"') % 2 or before.count("'") % 2:
            continue
        inside_word = before[-1:] in _INSIDE_A_WORD
        at_line_end = text[stop : stop + 2].strip(" \\") in ("", "\n") or text[stop : stop + 1] == "\n"
        if inside_word or at_line_end or ("." not in match[1] and _NOT_A_FILE.search(match[1])):
            yield start, stop
