"""Files with one entry per line: host files, and files of environment variables.

One `NAME=value` per line, with or without `export` and quotes; a value that refers to another variable is unknown. From
its own file (NCCL_CONF_FILE, `/etc/nccl.conf`), NCCL sets the variables that the environment does not set, and uses the
values literally (src/misc/param.cc, NCCL 2.27). So does Open MPI with the parameters of a file that `mpirun -am` names
(mca_base_parse_paramfile.c, 4.1).

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

from preflight._util.budget import note_skipped
from preflight._util.hostnames import is_hostname
from preflight._util.redaction import HIDDEN
from preflight._util.secret_names import is_secret
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
    Value,
    span_of,
)
from preflight.sources.base import Reading, SourceFile, Tree, Variable, suppressions

#: The role of a file with parameters of Open MPI.
MPI_PARAMETERS = "mpi parameters"
_FILE_NAMES = re.compile(r"(?:.*\.)?env(?:\.[\w-]+)?|\.deepspeed_env|env\.list", re.IGNORECASE)
_NCCL = re.compile(r"(?:.*[-_.])?nccl(?:[-_.][\w-]+)?\.conf", re.IGNORECASE)
_LINE = re.compile(r"\s*(?:export\s+)?(?P<name>[A-Za-z_]\w*)\s*=\s*(?P<value>.*)$")
_REFERENCE = re.compile(r"\$\{?([A-Za-z_]\w{0,99})")
#: Variables that identify the file of a distributed job; any other `.env` belongs to a web application.
_RANK_VARIABLES = re.compile(
    r"^[ \t]*(?:export[ \t]+)?(?:(?:NCCL|GLOO|UCX|FI|RCCL|TORCH_NCCL|OMPI_MCA|HOROVOD|PET|PADDLE|SLURM)_\w+"
    r"|MASTER_ADDR|MASTER_PORT|WORLD_SIZE|NODE_RANK|NNODES|NPROC_PER_NODE)\s*=",
    re.MULTILINE,
)
_NO_VARIABLES = (".py", ".sh", ".md", ".json", ".yaml", ".yml", ".ts", ".js", ".example", ".sample", ".template")
_MAX_VARIABLES = 500
#: Longer lines could make reading slow; real files have shorter ones.
_MAX_LINE_LENGTH = 8192


class DotenvSource:
    """Reads one file of variables."""

    name = "dotenv"
    roles = ("environment", MPI_PARAMETERS)

    def recognises(self, file: SourceFile) -> bool:
        """Return whether the file has the name of a file of variables, and sets a variable that ranks read."""
        name = posixpath.basename(file.path).lower()
        if not _NCCL.fullmatch(name) and (name.endswith(_NO_VARIABLES) or not _FILE_NAMES.fullmatch(name)):
            return False
        return _RANK_VARIABLES.search(file.text[:20000]) is not None

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """Read every variable, in the scope of the launch that uses the file."""
        notes: list[Note] = []
        claims: dict[str, Claim] = {}
        for claim in _variable_claims(file, scope, notes, prefix="OMPI_MCA_" if role == MPI_PARAMETERS else ""):
            claims[claim.quantity] = claim
            if len(claims) >= _MAX_VARIABLES:
                note_skipped(f"only the first {_MAX_VARIABLES} variables were read")
                break
        return Reading(claims=tuple(claims.values()), notes=tuple(notes[:20]), suppressions=suppressions(file))


def variables_in(file: SourceFile) -> tuple[Variable, ...]:
    """Return the variables that a file sets, the last value of each; a secret has no value."""
    found = {
        claim.quantity: Variable(claim.quantity.removeprefix("env."), claim.value, claim.span, claim.spelling)
        for claim in _variable_claims(file, WHOLE_JOB, [])
    }
    return tuple(found.values())[:_MAX_VARIABLES]


def _variable_claims(file: SourceFile, scope: Scope, notes: list[Note], prefix: str = "") -> Iterator[Claim]:
    literal = bool(prefix) or _NCCL.fullmatch(posixpath.basename(file.path)) is not None
    strength = Strength.CONFIG if literal else Strength.ENVIRONMENT
    for number, raw in enumerate(file.text.split("\n"), start=1):
        line = raw.rstrip("\r")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if len(line) > _MAX_LINE_LENGTH:
            note_skipped(f"line {number} is longer than {_MAX_LINE_LENGTH} characters and was not read")
            continue
        line = line.rstrip()
        match = _LINE.fullmatch(line)
        snippet = line[:MAX_SNIPPET_LENGTH]
        if match is None:
            if "=" not in line and re.fullmatch(r"\s*[A-Za-z_]\w*\s*", line):
                # Docker takes a bare name from the caller's environment.
                continue
            span = Span(file.path, number, 1, number, len(line) + 1, snippet)
            notes.append(Note(NoteKind.UNSUPPORTED, f"{file.path} line {number}: not of the form `NAME=value`", span))
            continue
        span = Span(file.path, number, match.start("name") + 1, number, match.end("value") + 1, snippet)
        name = match["name"]
        value: Value = Known(match["value"]) if literal else _value(match["value"])
        spelling = f"{name}={match['value']}"
        if is_secret(name):
            value, spelling = Unresolved("redacted"), f"{name}={HIDDEN}"
            span = Span(file.path, number, span.column, number, span.end_column, spelling)
        yield Claim(f"env.{prefix}{name}", value, span, spelling, "environment", scope, strength)


def _value(written: str) -> Value:
    quoted = re.fullmatch(r"(['\"])(.*)\1(?:\s+#.*)?", written)
    text = quoted[2] if quoted is not None else re.sub(r"\s+#.*$", "", written)
    if "$" in text and not (quoted is not None and quoted[1] == "'"):
        return Unresolved(f"{text} refers to a variable of the caller", tuple(_REFERENCE.findall(text)))
    if "{{" in text or re.fullmatch(r"<.*>", text):
        return Unresolved(f"`{text}`, which must be replaced")
    return Known(text)


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
    """One host line; `slots` is None if the line does not set it."""

    host: str
    slots: int | None
    span: Span
    spelling: str


class HostfileSource:
    """Reads one hostfile."""

    name = "hostfile"
    roles = ("hostfile",)

    def recognises(self, file: SourceFile) -> bool:
        """Return whether the file has the name of a hostfile and most of its first lines are hosts."""
        name = posixpath.basename(file.path)
        if name.lower().endswith(_OTHER_SUFFIXES) or not _NAMED.fullmatch(name):
            return False
        head = [
            line for line in file.text[:4096].splitlines()[:50] if line.strip() and not line.strip().startswith("#")
        ]
        hosts = sum(1 for line in head if isinstance(_match(line.strip()), tuple))
        return (
            bool(head)
            and 2 * hosts > len(head)
            and any(
                (any(sign in line for sign in ("slots=", ":", ".")) or any(character.isdecimal() for character in line))
                for line in head
            )
        )

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """Read the hosts, their slots, and the totals; after a bad line, which becomes a note, totals are unknown."""
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
        claims = tuple(_claims(lines, scope, is_whole=not notes))
        mixed = itertools.islice(_mixed_line_notes(lines), MAX_NOTES)
        return Reading(claims, notes=(*notes, *mixed), suppressions=suppressions(file))


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
    """Return the host and slots of a stripped line, or the reason why it is invalid."""
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
    """Yield the hosts, their slots, and the totals, which are unknown if a line could not be read."""
    hosts = tuple(line.host for line in lines)
    distinct = tuple(dict.fromkeys(hosts))
    first, last = lines[0].span, lines[-1].span
    whole = replace(first, end_line=last.end_line, end_column=last.end_column)

    spelling = lines[0].spelling if len(lines) == 1 else f"{lines[0].spelling} … {lines[-1].spelling}"

    def claim(quantity: str, stated: Plain, relation: Relation = Relation.SETS) -> Claim:
        known = is_whole or quantity == "hosts"
        value = Known(stated) if known else Unresolved(f"a line of {first.path} cannot be read")
        shown = _short(spelling)
        return Claim(quantity, value, whole, shown, "hostfile", scope, Strength.CONFIG, relation, because=each)

    each = tuple(
        replace(
            Claim("host_slots", Known(line.slots), line.span, _short(line.spelling), "hostfile"),
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
    """Yield notes about lines without slots if other lines have slots: Open MPI accepts them, DeepSpeed stops."""
    if not any("slots=" in line.spelling for line in lines):
        return
    for line in lines:
        if line.slots is None or "slots=" not in line.spelling:
            message = (
                f"{line.span.path} line {line.span.line}: `{_short(line.spelling)}` has no `slots=N`, but other "
                "lines do; DeepSpeed stops with 'Hostfile contains a bad entry'"
            )
            yield Note(NoteKind.MALFORMED, message, line.span)


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:79] + "…"
