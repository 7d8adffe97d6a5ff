"""One job, put together breadth first: what was named, and what that refers to."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import field, replace
from pathlib import Path

from preflight.asking import asked
from preflight.job import (
    WHOLE_JOB,
    Claim,
    InputFile,
    Job,
    Launch,
    Note,
    NoteKind,
    Reference,
    Scope,
    Span,
    Strength,
    Suppression,
)
from preflight.lazy.dataclasses import dataclass
from preflight.lazy.patterns import lazy_pattern
from preflight.recognised import Recognised
from preflight.sources.base import Source, Tree, WrittenFile
from preflight.sources.comments import suppressions
from preflight.sources.tree import OverlayTree

#: References are followed this far: sbatch -> run.sh -> train.py -> module -> submodule, and some room.
DEEPEST = 8
MOST_FILES = 300
#: What standard input is called where nobody says.
STDIN = "stdin"
#: Sources whose claims about the whole job come from the header of a batch script.
_SCHEDULERS = frozenset(("slurm", "pbs", "lsf", "sge", "cobalt", "flux"))
#: What stands before a script that becomes a job of its own; behind `--wrap` stands the job itself.
_SUBMITS = lazy_pattern(r"\bsbatch\b(?!.*\s--wrap\b)")


@dataclass(frozen=True, slots=True)
class _Step:
    """One file to read: how it was referred to, by what, and how far from the entry."""

    path: str
    role: str = ""
    scope: Scope = WHOLE_JOB
    reference: Reference | None = None
    depth: int = 0


@dataclass(slots=True)
class Gathering:
    """Collects one job, breadth first."""

    recognised: Recognised
    explicit: bool
    entries: list[str] = field(default_factory=list)
    files: dict[str, InputFile] = field(default_factory=dict)
    claims: dict[str, list[Claim]] = field(default_factory=dict)
    launches: list[Launch] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    references: list[Reference] = field(default_factory=list)
    suppressions: list[Suppression] = field(default_factory=list)
    written: dict[str, WrittenFile] = field(default_factory=dict)
    submitted: list[str] = field(default_factory=list)
    _seen: set[tuple[str, Scope]] = field(default_factory=set)

    def run(self, entries: Sequence[str]) -> None:
        """Read the entries and all they reach; entries that others refer to are read as referred to."""
        self.entries = list(entries)
        for path in sorted(entries, key=self.recognised.rank):
            if path not in self.files:
                self._follow(_Step(path))

    def _follow(self, first: _Step) -> None:
        queue = deque([first])
        while queue:
            step = queue.popleft()
            if (step.path, step.scope) in self._seen or len(self._seen) >= MOST_FILES:
                continue
            self._seen.add((step.path, step.scope))
            for reference in self._read(step):
                if self._is_followed(reference, step):
                    queue.append(_Step(reference.target, reference.role, reference.scope, reference, step.depth + 1))

    def _is_followed(self, reference: Reference, step: _Step) -> bool:
        if reference.role == "data" or step.depth >= DEEPEST:
            return False
        before = reference.span.snippet[: reference.span.column - 1]
        if reference.role == "script" and reference.target != step.path and _SUBMITS.search(before):
            self.submitted.append(reference.target)
            return False
        return True

    def _read(self, step: _Step) -> tuple[Reference, ...]:
        tree = self._tree()
        file = tree.read(step.path)
        if isinstance(file, Note):
            self._unread(file, step)
            return ()
        source = self.recognised.source_of(file, step.role)
        if source is None:
            if step.reference is None and self.explicit:
                # Standard input has no name of its own that would tell what it holds.
                named = "say with --stdin-name what it is" if step.path == STDIN else "name a job's"
                message = f"{step.path} is of no kind that is read; {named} script, configuration or hostfile"
                self.notes.append(Note(NoteKind.UNSUPPORTED, message, Span(step.path, 1, 1, 1, 1)))
            return ()
        self.files.setdefault(step.path, InputFile(step.path, source.name, file.sha256, file.size_bytes))
        if self._is_inside_its_caller(step, source):
            self.suppressions.extend(suppressions(file))
            return ()
        if self.explicit and step.reference is None and source.name == "python":
            # Who names a training script means to start it: it is read to the end whatever it says.
            step = replace(step, role="script")
        # What lies over the tree may change what a file refers to, so only readings of the bare tree are shared; a
        # training script refers to its own modules only.
        bare = tree is self.recognised.tree or (
            source.name == "python" and not any(path.endswith(".py") for path in self.written)
        )
        if bare:
            reading = self.recognised.reading(source, file, step.role, step.scope)
        else:
            reading = asked(source, file, tree, scope=step.scope, role=step.role)
        origin = self.written.get(step.path)
        claims = [_moved(claim, origin) for claim in reading.claims] if origin is not None else reading.claims
        self.claims.setdefault(step.path, []).extend(claims)
        self.launches.extend(reading.launches)
        self.notes.extend(reading.notes)
        self.references.extend(reading.references)
        self.suppressions.extend(reading.suppressions)
        self.written.update({item.path: item for item in reading.written})
        return reading.references

    def _is_inside_its_caller(self, step: _Step, source: Source) -> bool:
        """A script that a script runs or sources was evaluated with it, variables and all."""
        if step.reference is None or step.role not in ("script", "source"):
            return False
        caller = self.files.get(step.reference.span.path)
        return source.name == "shell" and caller is not None and caller.kind == "shell"

    def _tree(self) -> Tree:
        if not self.written:
            return self.recognised.tree
        return OverlayTree(self.recognised.tree, {path: item.text for path, item in self.written.items()})

    def _unread(self, note: Note, step: _Step) -> None:
        reference = step.reference
        if reference is None:
            self.notes.append(replace(note, required=self.explicit or note.required))
        elif note.kind is NoteKind.MISSING:
            message = (
                f"`{step.path}` ({step.role}) is named here and is not in the tree;"
                " if it is written at run time or lies on the cluster, nothing in it could be judged"
            )
            self.notes.append(Note(NoteKind.MISSING, message, reference.span))
        else:
            self.notes.append(replace(note, span=reference.span))

    def job(self) -> Job:
        """What was gathered, in the order in which it was met."""
        headers = [path for path, found in self.claims.items() if any(map(_is_header, found))]
        several = headers if len(headers) > 1 else []
        claims = [
            claim
            for path, found in self.claims.items()
            for claim in (_of_own_launches(found) if path in several else found)
        ]
        names = [Path(path).name for path in self.entries[1:4]]
        more = ["..."] if len(self.entries) > 4 else []
        return Job(
            name=" + ".join([*self.entries[:1], *names, *more]),
            files=tuple(self.files.values()),
            launches=tuple(dict.fromkeys(self.launches)),
            claims=tuple(dict.fromkeys(claims)),
            notes=tuple(dict.fromkeys(self.notes)),
            references=tuple(dict.fromkeys(self.references)),
            suppressions=tuple(dict.fromkeys(self.suppressions)),
        )


def gathered(recognised: Recognised, entries: Sequence[str], *, explicit: bool) -> Gathering:
    """The entries, `explicit` where the user named them, and all they reach."""
    gathering = Gathering(recognised, explicit)
    gathering.run(entries)
    return gathering


def _of_own_launches(claims: Sequence[Claim]) -> list[Claim]:
    """A batch header speaks of its own submission: with several in one job, of its own launches only."""
    scopes = list(dict.fromkeys(claim.scope for claim in claims if claim.scope.launch))
    moved: list[Claim] = []
    for claim in claims:
        moved.extend(replace(claim, scope=scope) for scope in scopes) if _is_header(claim) else moved.append(claim)
    return moved


def _is_header(claim: Claim) -> bool:
    return claim.source in _SCHEDULERS and claim.scope == WHOLE_JOB and claim.strength is Strength.SCHEDULER


def _moved(claim: Claim, origin: WrittenFile) -> Claim:
    """A claim of a file that a script writes, at its place in the script."""

    def place(span: Span) -> Span:
        if span.path != origin.path:
            return span
        down = origin.span.line - 1
        return Span(
            origin.span.path,
            span.line + down,
            span.column,
            span.end_line + down,
            span.end_column,
            span.snippet,
        )

    return replace(
        claim,
        span=place(claim.span),
        because=tuple(_moved(reason, origin) for reason in claim.because),
        origin=None if claim.origin is None else place(claim.origin),
    )
