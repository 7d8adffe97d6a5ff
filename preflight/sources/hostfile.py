"""Reads hostfiles: `worker-1 slots=8` (DeepSpeed, Open MPI), `host:8` (MPICH), and bare lists of names.

DeepSpeed takes every host of the file, each with all its slots, unless `--num_nodes`, `--num_gpus`,
`--include` or `--exclude` say less: so the file *sets* nodes and world size, and bounds the nodes.
"""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Iterator
from dataclasses import replace

from preflight.job import (
    WHOLE_JOB,
    Claim,
    Known,
    Note,
    NoteKind,
    Plain,
    Relation,
    Scope,
    Span,
    Strength,
    span_of,
)
from preflight.job.hostname import is_hostname
from preflight.job.span import LONGEST_SNIPPET
from preflight.lazy.dataclasses import dataclass
from preflight.lazy.patterns import lazy_pattern
from preflight.sources.base import Reading, SourceFile, Tree
from preflight.sources.comments import suppressions

#: After so many bad lines this is no hostfile; the rest is not read.
MOST_NOTES = 20
#: DeepSpeed's own expression is `^(\S+)\s+slots=(\d+)`, searched in the stripped line; source:
#: deepspeed/launcher/runner.py, `_parse_hostfile`.
_SLOTS = lazy_pattern(r"(\S+)[ \t]+slots=(\d{1,9})(?![0-9])")
_COLON = lazy_pattern(r"([^\s:]+):(\d{1,9})(?:[ \t]*#.*|[ \t]*)", re.ASCII)
_BARE = lazy_pattern(r"(\S+)(?:[ \t]+#.*|[ \t]*)")
_MAX_SLOTS = lazy_pattern(r"(\S+)[ \t]+max[-_]slots=\d{1,9}(?:[ \t]*#.*|[ \t]*)")
_NAMED = lazy_pattern(
    r"(?:.*[._-])?(?:host_?files?|machine_?files?|hosts|machines|nodefile)(?:[._-].*)?", re.IGNORECASE
)
#: Names that are something else although they look like a list of hosts.
_OTHER_SUFFIXES = (
    ".py",
    ".sh",
    ".json",
    ".yaml",
    ".yml",
    ".md",
    ".rst",
    ".toml",
    ".ini",
    ".tf",
    ".j2",
    ".tpl",
)


@dataclass(frozen=True, slots=True)
class _Line:
    """One host line; `slots` is None where the line gives none."""

    host: str
    slots: int | None
    span: Span
    spelling: str


class HostfileSource:
    """Reads one hostfile."""

    name = "hostfile"
    roles = ("hostfile",)

    def recognises(self, file: SourceFile) -> bool:
        """Whether the name is that of a hostfile and most of its first lines are hosts."""
        name = posixpath.basename(file.path)
        if name.lower().endswith(_OTHER_SUFFIXES) or not _NAMED.fullmatch(name):
            return False
        head = [
            line for line in file.text[:4096].splitlines()[:50] if line.strip() and not line.strip().startswith("#")
        ]
        hosts = sum(1 for line in head if isinstance(_match(line.strip()), tuple))
        return bool(head) and 2 * hosts > len(head) and any(_looks_like_a_list(line) for line in head)

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """State the hosts, their slots, and what these come to; a bad line gives a note and no claim."""
        lines, notes = _lines(file)
        if not lines:
            if not notes:
                message = (
                    f"{file.path} names no host; DeepSpeed stops with 'Hostfile is empty or not formatted"
                    " correctly': give one `host slots=N` a line"
                )
                notes = (Note(NoteKind.MALFORMED, message, span_of(file.path, file.text, 0, 0)),)
            return Reading(notes=notes)
        mixed = itertools.islice(_mixed(lines), MOST_NOTES)
        return Reading(
            claims=tuple(_claims(lines, scope)),
            notes=(*notes, *mixed),
            suppressions=suppressions(file),
        )


def _lines(file: SourceFile) -> tuple[list[_Line], tuple[Note, ...]]:
    lines: list[_Line] = []
    notes: list[Note] = []
    for number, raw in enumerate(file.text.split("\n"), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        column = raw.index(line) + 1
        snippet = raw.rstrip("\r")[:LONGEST_SNIPPET]
        span = Span(file.path, number, column, number, column + len(line), snippet)
        found = _match(line)
        if isinstance(found, str):
            if len(notes) == MOST_NOTES:
                break
            notes.append(Note(NoteKind.MALFORMED, f"{file.path} line {span.line}: {found}", span))
        else:
            lines.append(_Line(found[0], found[1], span, line))
    return lines, tuple(notes)


def _match(line: str) -> tuple[str, int | None] | str:
    """Host and slots of a stripped line, or what is wrong with it."""
    slots: int | None = None
    if (match := _SLOTS.match(line)) or (match := _COLON.fullmatch(line)):
        host, slots = match.group(1), int(match.group(2))
    elif match := _MAX_SLOTS.fullmatch(line) or _BARE.fullmatch(line):
        host = match.group(1)
    else:
        return (
            f"`{_short(line)}` is no line of a hostfile, expected `host slots=N`; DeepSpeed stops with"
            " 'Hostfile contains a bad entry'"
        )
    if is_hostname(host):
        return host, slots
    if "@" in host:
        return f"`{_short(host)}` holds a user name; put the user into the ssh configuration instead"
    return f"`{_short(host)}` is no host name: expected letters, digits, dots, `-` and `_`, and no `-` first"


def _claims(lines: list[_Line], scope: Scope) -> Iterator[Claim]:
    hosts = tuple(line.host for line in lines)
    distinct = tuple(dict.fromkeys(hosts))
    first, last = lines[0].span, lines[-1].span
    whole = replace(first, end_line=last.end_line, end_column=last.end_column)

    def claim(quantity: str, value: Plain, relation: Relation = Relation.SETS) -> Claim:
        spelling = lines[0].spelling if len(lines) == 1 else f"{lines[0].spelling} … {lines[-1].spelling}"
        return Claim(
            quantity=quantity,
            value=Known(value),
            span=whole,
            spelling=_short(spelling),
            source="hostfile",
            scope=scope,
            strength=Strength.CONFIG,
            relation=relation,
            because=each,
        )

    each = tuple(
        Claim(
            quantity="host_slots",
            value=Known(line.slots),
            span=line.span,
            spelling=_short(line.spelling),
            source="hostfile",
            scope=replace(scope, node=line.host),
            strength=Strength.CONFIG,
        )
        for line in lines
        if line.slots is not None
    )
    yield from each
    yield claim("hosts", hosts)
    yield claim("nodes", len(distinct))
    yield claim("nodes", len(distinct), Relation.AT_MOST)
    counts = [line.slots for line in lines if line.slots is not None]
    if len(counts) == len(lines):
        yield claim("world_size", sum(counts))
        if len(set(counts)) == 1 and len(distinct) == len(lines):
            yield claim("processes_per_node", counts[0])


def _mixed(lines: list[_Line]) -> Iterator[Note]:
    """Lines without slots among lines with them: Open MPI takes them, DeepSpeed stops."""
    if not any("slots=" in line.spelling for line in lines):
        return
    for line in lines:
        if line.slots is None or "slots=" not in line.spelling:
            message = (
                f"{line.span.path} line {line.span.line}: `{_short(line.spelling)}` has no `slots=N`, others"
                " have one; DeepSpeed stops with 'Hostfile contains a bad entry'"
            )
            yield Note(NoteKind.MALFORMED, message, line.span)


def _looks_like_a_list(line: str) -> bool:
    """Whether the line is more than one plain word of prose."""
    return any(sign in line for sign in ("slots=", ":", ".")) or any(character.isdigit() for character in line)


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:79] + "…"
