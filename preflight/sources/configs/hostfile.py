"""Reads hostfiles: `worker-1 slots=8` (DeepSpeed, Open MPI), `host:8` (MPICH), and bare lists of names.

DeepSpeed uses every host of the file, each with all its slots, unless `--num_nodes`, `--num_gpus`,
`--include` or `--exclude` select fewer. So the file sets the number of nodes and the world size, and is an upper bound
on the nodes.
"""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from preflight._util.hostnames import is_hostname
from preflight._util.spans import MAX_SNIPPET_LENGTH
from preflight.model.job import (
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
    Unresolved,
    span_of,
)
from preflight.sources.base import Reading, SourceFile, Tree
from preflight.sources.formats.comments import suppressions

#: A file with more bad lines than this is not a hostfile; the rest is not read.
MAX_NOTES = 20
#: Twice the nodes of the largest clusters.
MAX_LINES = 32_768
#: DeepSpeed's own expression is `^(\S+)\s+slots=(\d+)`, searched in the stripped line; source:
#: deepspeed/launcher/runner.py, `_parse_hostfile`.
_SLOTS = re.compile(r"(\S+)[ \t]+slots=(\d{1,9})(?![0-9])")
_COLON = re.compile(r"([^\s:]+):(\d{1,9})(?:[ \t]*#.*|[ \t]*)", re.ASCII)
_BARE = re.compile(r"(\S+)(?:[ \t]+#.*|[ \t]*)")
_MAX_SLOTS = re.compile(r"(\S+)[ \t]+max[-_]slots=\d{1,9}(?:[ \t]*#.*|[ \t]*)")
_NAMED = re.compile(r"(?:.*[._-])?(?:host_?files?|machine_?files?|hosts|machines|nodefile)(?:[._-].*)?", re.IGNORECASE)
#: Names of other files that look like a list of hosts.
_OTHER_SUFFIXES = (".py", ".sh", ".json", ".yaml", ".yml", ".md", ".rst", ".toml", ".ini", ".tf", ".j2", ".tpl")


class _Line(NamedTuple):
    """One host line; `slots` is None if the line gives none."""

    host: str
    slots: int | None
    span: Span
    spelling: str


class HostfileSource:
    """Reads one hostfile."""

    name = "hostfile"
    roles = ("hostfile",)

    def recognises(self, file: SourceFile) -> bool:
        """Whether it has the name of a hostfile and most of its first lines are hosts."""
        name = posixpath.basename(file.path)
        if name.lower().endswith(_OTHER_SUFFIXES) or not _NAMED.fullmatch(name):
            return False
        head = [
            line for line in file.text[:4096].splitlines()[:50] if line.strip() and not line.strip().startswith("#")
        ]
        hosts = sum(1 for line in head if isinstance(_match(line.strip()), tuple))
        return bool(head) and 2 * hosts > len(head) and any(_looks_like_a_list(line) for line in head)

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """State the hosts, their slots, and the totals; a bad line gives a note, and no total is known."""
        # Checked before a line is read: claims about only the first hosts would be wrong for the job.
        if file.text.count("\n") > MAX_LINES:
            message = f"{file.path} has more than {MAX_LINES} lines, too many for a hostfile; it was not read"
            note = Note(NoteKind.TOO_LARGE, message, span_of(file.path, file.text, 0, 0), required=True)
            return Reading(notes=(note,))
        lines, notes = _lines(file)
        if not lines:
            if not notes:
                message = (
                    f"{file.path} names no host; DeepSpeed stops with 'Hostfile is empty or not formatted"
                    " correctly': write one `host slots=N` per line"
                )
                notes = (Note(NoteKind.MALFORMED, message, span_of(file.path, file.text, 0, 0)),)
            return Reading(notes=notes)
        mixed = itertools.islice(_mixed_line_notes(lines), MAX_NOTES)
        return Reading(
            claims=tuple(_claims(lines, scope, is_whole=not notes)),
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
        snippet = raw.rstrip("\r")[:MAX_SNIPPET_LENGTH]
        span = Span(file.path, number, column, number, column + len(line), snippet)
        found = _match(line)
        if isinstance(found, str):
            if len(notes) == MAX_NOTES:
                break
            notes.append(Note(NoteKind.MALFORMED, f"{file.path} line {span.line}: {found}", span))
        else:
            lines.append(_Line(found[0], found[1], span, line))
    return lines, tuple(notes)


def _match(line: str) -> tuple[str, int | None] | str:
    """The host and slots of a stripped line, or what is wrong with it."""
    slots: int | None = None
    if (match := _SLOTS.match(line)) or (match := _COLON.fullmatch(line)):
        host, slots = match.group(1), int(match.group(2))
    elif match := _MAX_SLOTS.fullmatch(line) or _BARE.fullmatch(line):
        host = match.group(1)
    else:
        return (
            f"`{_short(line)}` is not a line of a hostfile; expected `host slots=N`; DeepSpeed stops with"
            " 'Hostfile contains a bad entry'"
        )
    if is_hostname(host):
        return host, slots
    if "@" in host:
        return f"`{_short(host)}` contains a user name; set the user in the ssh configuration instead"
    return f"`{_short(host)}` is not a host name: expected letters, digits, dots, `-` and `_`, and no leading `-`"


def _claims(lines: list[_Line], scope: Scope, *, is_whole: bool) -> Iterator[Claim]:
    """The hosts, their slots, and the totals, which are unknown if a line could not be read."""
    hosts = tuple(line.host for line in lines)
    distinct = tuple(dict.fromkeys(hosts))
    first, last = lines[0].span, lines[-1].span
    whole = replace(first, end_line=last.end_line, end_column=last.end_column)

    def claim(quantity: str, value: Plain, relation: Relation = Relation.SETS) -> Claim:
        spelling = lines[0].spelling if len(lines) == 1 else f"{lines[0].spelling} … {lines[-1].spelling}"
        return Claim(
            quantity=quantity,
            value=Known(value)
            if is_whole or quantity == "hosts"
            else Unresolved(f"a line of {first.path} cannot be read"),
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


def _mixed_line_notes(lines: list[_Line]) -> Iterator[Note]:
    """Lines without slots among lines with them: Open MPI accepts them, DeepSpeed stops."""
    if not any("slots=" in line.spelling for line in lines):
        return
    for line in lines:
        if line.slots is None or "slots=" not in line.spelling:
            message = (
                f"{line.span.path} line {line.span.line}: `{_short(line.spelling)}` has no `slots=N`, but other"
                " lines have; DeepSpeed stops with 'Hostfile contains a bad entry'"
            )
            yield Note(NoteKind.MALFORMED, message, line.span)


def _looks_like_a_list(line: str) -> bool:
    """Whether the line is more than a single word of prose."""
    return any(sign in line for sign in ("slots=", ":", ".")) or any(character.isdecimal() for character in line)


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:79] + "…"
