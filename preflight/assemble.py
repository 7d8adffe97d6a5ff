"""From files to jobs: read what was named, follow what it refers to, and put together what belongs together."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import field, replace
from pathlib import Path

from preflight.asking import asked, asked_ahead
from preflight.companions import companions
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
from preflight.job.derive import with_derived
from preflight.lazy.dataclasses import dataclass
from preflight.lazy.patterns import lazy_pattern
from preflight.looking import Look, below
from preflight.progress import Progress, Step, ignore
from preflight.siblings import siblings
from preflight.sources.base import Reading, Source, SourceFile, Tree, WrittenFile
from preflight.sources.comments import suppressions
from preflight.sources.shell_source import startable
from preflight.sources.tree import OverlayTree
from preflight.walk import Walked

#: References are followed this far: sbatch -> run.sh -> train.py -> module -> submodule, and some room.
DEEPEST = 8
MOST_FILES = 300
#: What standard input is called where nobody says.
STDIN = "stdin"
#: What a script says that is no reason to call it a job of its own.
_IDLE = frozenset(
    (
        *("script", "argument_default", "strict_arguments", "local_rank_argument", "loop_over_epochs", "entry_point"),
        *("training_framework", "package", "wheel_cuda", "paddle_version", "installing_line"),
        "declared_options",
    )
)
_BATCH = lazy_pattern(r"^#(?:SBATCH|PBS|BSUB|COBALT)\s", re.MULTILINE)
#: Unit tests start pieces of jobs of their own; in a folder nobody means them, by name they can still be given.
_TEST_NAME = lazy_pattern(r"(?:^|/)(?:test_[^/]*|[^/]*_test|conftest)\.py$")
_TEST_FOLDER = lazy_pattern(
    r"(?:^|/)(?:tests?|testing|(?:unit|functional|integration|e2e|system)[-_]?tests?|e2e)/", re.I
)
_TEST_WORDS = lazy_pattern(r"^[ \t]*(?:async )?def test_|^(?:import|from) (?:pytest|unittest)\b", re.MULTILINE)
#: Sources whose claims about the whole job come from the header of a batch script.
_SCHEDULERS = frozenset(("slurm", "pbs", "lsf", "sge", "cobalt", "flux"))
#: What stands before a script that becomes a job of its own; behind `--wrap` stands the job itself.
_SUBMITS = lazy_pattern(r"\bsbatch\b(?!.*\s--wrap\b)")


def assemble(
    root: Path,
    paths: Sequence[str | Path],
    *,
    sources: Sequence[Source],
    exclude: Sequence[str] = (),
    look: Look | None = None,
    jobs: int = 1,
    progress: Progress = ignore,
) -> tuple[Job, ...]:
    """The jobs that `paths` (files or directories inside `root`) describe, by name.

    Files named together form one job, except that each of several batch scripts is a submission of its own. In a
    directory every recognised file that no other refers to starts a job, unit tests and what the patterns of `exclude`
    fit excepted; sibling scripts for the nodes of one job (node0.sh, node1.sh) form one that is marked probable. What
    cannot be read becomes a note, never an exception. `look` writes down what was looked at for it. The files of
    large directories are read by at most `jobs` processes. `progress` hears of every file of a directory.
    """
    look = look or Look(root, exclude)
    assembly = _Assembly(look.files, tuple(sources), jobs, progress)
    progress(Step("files"))
    found = [below(root, path) for path in paths]
    named = list(dict.fromkeys(path for path in found if not look.is_folder(path)))
    found_jobs = _named_jobs(assembly, named) if named else []
    done = {file.path for job in found_jobs for file in job.files}
    for path in found:
        if look.is_folder(path):
            walked = look.walk(path)
            fresh = replace(walked, files=tuple(file for file in walked.files if file not in done))
            found_jobs.extend(_directory_jobs(assembly, fresh))
            done.update(file.path for job in found_jobs for file in job.files)
    return tuple(sorted((with_derived(job) for job in found_jobs), key=lambda job: job.name))


def _named_jobs(assembly: _Assembly, named: Sequence[str]) -> list[Job]:
    batches = [path for path in named if assembly.is_batch_script(path)]
    if len(batches) < 2:
        return assembly.jobs(named, explicit=True)
    jobs = [job for path in batches for job in assembly.jobs([path], explicit=True)]
    reached = {file.path for job in jobs for file in job.files}
    rest = [path for path in named if path not in reached]
    return [*jobs, *(assembly.jobs(rest, explicit=True) if rest else [])]


def _directory_jobs(assembly: _Assembly, walked: Walked) -> list[Job]:
    assembly.progress(Step("files", 0, len(walked.files)))
    candidates = assembly.candidates(walked.files, walked.below)
    assembly.read_ahead(candidates)
    referred: set[str] = set()
    built: dict[str, list[Job]] = {}
    # Shell scripts first: what they reach is no job of its own.
    for number, path in enumerate(sorted(candidates, key=lambda p: (assembly.rank(p), p))):
        assembly.progress(Step("jobs", number, len(candidates)))
        if path in referred:
            continue
        built[path] = assembly.jobs([path], explicit=False)
        referred.update(file.path for job in built[path] for file in job.files if file.path != path)
    entries = [path for path in built if path not in referred]
    joined = siblings(entries, built)
    joined |= companions([path for path in entries if path not in joined], built)
    jobs: list[Job] = []
    for path in entries:
        members = joined.get(path, ())
        if not members:
            jobs.extend(built[path])
        elif path == members[0]:
            jobs.extend(replace(job, probable=True) for job in assembly.jobs(members, explicit=False))
    kept = [job for job in jobs if _is_job(job)]
    if walked.notes and kept:
        kept[0] = replace(kept[0], notes=(*kept[0].notes, *walked.notes))
    return kept


def _is_job(job: Job) -> bool:
    if job.launches or any(note.required or note.kind is not NoteKind.MISSING for note in job.notes):
        return True
    return any(
        claim.quantity not in _IDLE and (claim.source == "environment" or not claim.quantity.startswith("env."))
        for claim in job.claims
    )


@dataclass(slots=True)
class _Assembly:
    """One run over one tree: files are read and recognised once."""

    tree: Tree
    sources: tuple[Source, ...]
    processes: int = 1
    progress: Progress = ignore
    _kinds: dict[str, Source | None] = field(default_factory=dict)
    _readings: dict[tuple[str, str, str, Scope], Reading] = field(default_factory=dict)

    def jobs(self, entries: Sequence[str], *, explicit: bool) -> list[Job]:
        """The job of `entries`, and those of the batch scripts that it submits."""
        gathering = _Gathering(self, explicit=explicit)
        gathering.run(entries)
        jobs = [gathering.job()]
        known = {file.path for file in jobs[0].files}
        for path in gathering.submitted:
            if path not in known and isinstance(self.tree.read(path), SourceFile):
                jobs.append(self._one(path))
                known.add(path)
        return jobs

    def _one(self, path: str) -> Job:
        gathering = _Gathering(self, explicit=False)
        gathering.run([path])
        return gathering.job()

    def candidates(self, paths: Sequence[str], below: str) -> list[str]:
        """Those files of the folder `below` that may start a job: of a kind that is read, no tests, no idle scripts."""
        files = {path: file for path in paths if isinstance(file := self.tree.read(path), SourceFile)}
        kinds = {path: source for path, file in files.items() if (source := self.source_of(file, "")) is not None}
        scripts = startable(files[path] for path, source in kinds.items() if source.name == "shell")
        # Folders of tests hold configuration that is wrong on purpose, and scripts that start pieces of jobs.
        return [
            path
            for path, source in kinds.items()
            if (path in scripts if source.name == "shell" else not _TEST_FOLDER.search(path[len(below) :]))
            and not self.is_unit_test(path)
        ]

    def read_ahead(self, paths: Sequence[str]) -> None:
        """Have several processes make the readings of entries, where that is quicker."""
        if self.processes < 2:
            return
        files = [file for path in paths if isinstance(file := self.tree.read(path), SourceFile)]
        wanted = [(source, file) for file in files if (source := self.source_of(file, "")) is not None]
        brought = asked_ahead(
            wanted, self.tree, self.processes, tell=lambda number: self.progress(Step("files", number, len(wanted)))
        )
        for source, file, reading in brought:
            self._readings.setdefault((source.name, file.path, "", WHOLE_JOB), reading)

    def rank(self, path: str) -> int:
        """Where the kind of a file stands among the sources: entry scripts come first."""
        file = self.tree.read(path)
        source = self.source_of(file, "") if isinstance(file, SourceFile) else None
        return self.sources.index(source) if source is not None else len(self.sources)

    def reading(self, source: Source, file: SourceFile, step: _Step) -> Reading:
        """What `source` says about a file of the tree itself, read once however many jobs reach it."""
        key = (source.name, file.path, step.role, step.scope)
        if key not in self._readings:
            self._readings[key] = asked(source, file, self.tree, scope=step.scope, role=step.role)
        return self._readings[key]

    def is_batch_script(self, path: str) -> bool:
        """Whether this file has an `#SBATCH` header."""
        file = self.tree.read(path)
        return isinstance(file, SourceFile) and bool(_BATCH.search(file.text[:8192])) and self.rank(path) == 0

    def is_unit_test(self, path: str) -> bool:
        """Whether this is a Python file of tests, by its name and by what it holds."""
        if not _TEST_NAME.search(path):
            return False
        file = self.tree.read(path)
        return isinstance(file, SourceFile) and _TEST_WORDS.search(file.text) is not None

    def source_of(self, file: SourceFile, role: str) -> Source | None:
        """Who reads `file`: whoever recognises it, else whoever reads files of that role."""
        if file.path not in self._kinds:
            self._kinds[file.path] = next((s for s in self.sources if _recognises(s, file)), None)
        by_role = next((s for s in self.sources if role and role in getattr(s, "roles", ())), None)
        return self._kinds[file.path] or by_role


def _recognises(source: Source, file: SourceFile) -> bool:
    try:
        return source.recognises(file)
    except Exception:
        # A reader that cannot even look is not asked; a built-in one is covered by its own tests.
        return False


@dataclass(frozen=True, slots=True)
class _Step:
    """One file to read: how it was referred to, by what, and how far from the entry."""

    path: str
    role: str = ""
    scope: Scope = WHOLE_JOB
    reference: Reference | None = None
    depth: int = 0


@dataclass(slots=True)
class _Gathering:
    """Collects one job, breadth first."""

    assembly: _Assembly
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
        for path in sorted(entries, key=self.assembly.rank):
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
        source = self.assembly.source_of(file, step.role)
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
        bare = tree is self.assembly.tree or (
            source.name == "python" and not any(path.endswith(".py") for path in self.written)
        )
        if bare:
            reading = self.assembly.reading(source, file, step)
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
            return self.assembly.tree
        return OverlayTree(self.assembly.tree, {path: item.text for path, item in self.written.items()})

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
