"""Reads files of assignments: gin (`train.steps = 100`, `Dataset:` with indented lines) and INI (`[train]`, `lr = 1`).

Every assignment is one member of a flat object, with the dotted name under which it is known: `Dataset.batch_size`. A
macro of gin (`%BATCH_SIZE`) is replaced by the value that the same file gives it, and is a placeholder otherwise. Of a
value that continues on further lines only the first line is read.
"""

from __future__ import annotations

import ast
import re

from preflight._util.budget import truncate
from preflight.model.job import Plain
from preflight.sources.formats.structured import Document, Kind, Member, Node

#: Suffixes of such files.
SUFFIXES = (".gin", ".ini", ".cfg", ".conf")
_MAX_LINES = 20_000
_MAX_VALUE_LENGTH = 2_000
_SECTION = re.compile(r"\[([\w ./:-]+)\][ \t]*(?:[#;].*)?$")
_BLOCK = re.compile(r"([A-Za-z_][\w./]*)[ \t]*:[ \t]*(?:#.*)?$")
_ASSIGNMENT = re.compile(r"([ \t]*)([A-Za-z_][\w./ -]*?)[ \t]*[=:][ \t]*(.*?)[ \t\r]*$")
_COMMENT = re.compile(r"[ \t]+[#;].*$")
_MACRO = re.compile(r"%([A-Za-z_][\w./]*)$")


def parse(text: str) -> Document:
    """The assignments of a file. Lines that are none are skipped: these formats have no errors that matter here."""
    members: list[Member] = []
    macros: dict[str, Node] = {}
    section, indented, start = "", False, 0
    for line in truncate(text.split("\n"), _MAX_LINES, "lines"):
        before, start = start, start + len(line) + 1
        heading = _SECTION.match(line) or _BLOCK.match(line)
        if heading is not None:
            section, indented = heading[1], not line.startswith("[")
            continue
        match = _ASSIGNMENT.match(line)
        if match is None or len(match[3]) > _MAX_VALUE_LENGTH:
            continue
        if indented and not match[1]:
            section, indented = "", False
        at = before + match.start(3)
        node = _value(match[3], at, macros)
        name = f"{section}.{match[2]}" if section else match[2]
        if not section:
            macros[match[2]] = node
        members.append(Member(name.replace("/", "."), before + match.start(2), before + match.end(2), node))
    return Document(Node(Kind.OBJECT, 0, len(text), members=tuple(members)), ())


def _value(written: str, start: int, macros: dict[str, Node]) -> Node:
    shown = _COMMENT.sub("", written)
    end = start + len(shown)
    macro = _MACRO.match(shown)
    if macro is not None:
        known = macros.get(macro[1])
        return known if known is not None else Node(Kind.TEMPLATE, start, end, shown)
    value: Plain = shown
    try:
        read = ast.literal_eval(shown)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        read = shown
    if isinstance(read, (str, int, float, bool)) or read is None:
        value = read
    return Node(Kind.SCALAR, start, end, value)
