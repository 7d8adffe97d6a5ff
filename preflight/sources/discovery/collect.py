"""Collects one job, breadth first: the named files, and the files they refer to."""

from __future__ import annotations

import itertools
import posixpath
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from preflight._util.budget import BudgetExceeded, current, free_memory_after
from preflight._util.usage_error import similar_names
from preflight.model.job import (
    WHOLE_JOB,
    Claim,
    InputFile,
    Job,
    Known,
    Launch,
    Note,
    NoteDetail,
    NoteKind,
    Reference,
    Scope,
    Span,
    Strength,
    Suppression,
    Unresolved,
)
from preflight.model.job.derive import with_derived
from preflight.model.job.value import texts
from preflight.sources.base import (
    OWN_SETTINGS,
    REACHED,
    SETTINGS,
    Reading,
    Source,
    SourceFile,
    Tree,
    WrittenFile,
    suppressions,
)
from preflight.sources.configs.packages import CONDA_NAME, without_installed
from preflight.sources.containers import is_container_file
from preflight.sources.discovery.readings import RecognisedFiles, read_source
from preflight.sources.formats.tree import OverlayTree, note_at
from preflight.sources.python.simulation import launch_runs, ranks, resolution

#: References are followed to this depth: sbatch -> run.sh -> train.py -> module -> submodule, with some margin.
MAX_DEPTH = 8
MAX_FILES = 300
#: Files in these roles are not part of what is judged or, as imported modules, a small part of it.
_ASIDE = frozenset(("data", "module", "submodule"))
#: Kinds of files whose commands are evaluated, with the scripts that they start.
_EVALUATING = frozenset(("shell", "makefile", "recipes", "python", "kubernetes", "document"))
#: The similarity, from 0 to 1, from which a name is taken for a misspelt one.
_SLIP = 0.85
#: The list of packages that a program's own folder, or one above it, has by convention.
REQUIREMENTS = "requirements.txt"
#: The default name of standard input.
STDIN = "stdin"
#: Sources whose claims about the whole job come from the header of a batch script.
_SCHEDULERS = frozenset(("slurm", "pbs", "lsf", "sge", "cobalt", "flux"))
#: Words before a script that becomes a job of its own; after `--wrap` is the job itself.
_SUBMITS = re.compile(r"\bsbatch\b(?!.*\s--wrap\b)")


#: A folder that the user has to name: `PATH_TO_REPO/`, `your_folder/`.
_PLACEHOLDER = re.compile(r"(?:^|/)(?:(?:PATH_TO|YOUR|MY|REPLACE|INSERT)[A-Z0-9_-]*|path/to|your[_-][\w-]+)/")


@dataclass(frozen=True, slots=True)
class _Step:
    """One file to read: how it was referred to, by what, and its distance from the entry."""

    path: str
    role: str = ""
    scope: Scope = WHOLE_JOB
    reference: Reference | None = None
    depth: int = 0


#: Why nothing is known of a file of settings, by its role.
_UNREAD_SETTINGS = {
    SETTINGS: "no source reads a file of this type",
    OWN_SETTINGS: "only the script defines their meaning, so they were not checked",
}


@dataclass(slots=True)
class JobCollector:
    """Collects one job, breadth first."""

    recognised: RecognisedFiles
    explicit: bool
    entries: list[str] = field(default_factory=list)
    files: dict[str, InputFile] = field(default_factory=dict)
    claims: dict[str, list[Claim]] = field(default_factory=dict)
    launches: list[Launch] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    references: list[Reference] = field(default_factory=list)
    suppressions: list[Suppression] = field(default_factory=list)
    #: The texts that the scripts give a file, in order, by its path, each with the launches before it.
    written: dict[str, list[tuple[WrittenFile, frozenset[str]]]] = field(default_factory=dict)
    submitted: list[str] = field(default_factory=list)
    _seen: set[tuple[str, Scope]] = field(default_factory=set)
    _left_out: dict[str, Note] = field(default_factory=dict)

    def run(self, entries: Sequence[str]) -> None:
        """Read the entries and all files they reach; an entry that another file refers to is read in that role."""
        self.entries = list(entries)
        for path in sorted(entries, key=self.recognised.rank):
            if path not in self.files:
                self._follow(_Step(path))
        self._add_requirements()

    def _add_requirements(self) -> None:
        """Read the nearest list of packages above each started program, or the packages of the nearest image.

        Rules about releases need the list, which contains the releases that the program expects. Packages that the job
        itself installs are closer to the launch and take precedence over the list.
        """
        claims = list(self._claims())
        before = {path: len(found) for path, found in self.claims.items()}
        started = [launch.program for launch in self.launches if launch.program in self.files]
        started += [text for claim in claims if claim.quantity == "plain_program" for text in texts(claim.value)]
        # A program that starts its ranks itself is a job without a launch line; one that is not in the tree has its
        # list beside the script that starts it.
        for program in started or [path for path in self.entries if path.endswith((".py", ".sh"))]:
            folders = list(Path(program).parents)
            found = next(filter(None, map(self._package_list, folders)), "")
            found = found or next(filter(None, map(self._image, folders)), "")
            if found:
                self._follow(_Step(found, "requirements"))
        for path, stated in self.claims.items():
            stated[before.get(path, 0) :] = without_installed(stated[before.get(path, 0) :], claims)

    def _package_list(self, folder: Path) -> str:
        """Return the list of packages in a folder; empty if it has none."""
        names = sorted(name for name in self.recognised.tree.names(folder.as_posix()) if CONDA_NAME.fullmatch(name))
        paths = ((folder / name).as_posix() for name in (REQUIREMENTS, *names))
        return next((path for path in paths if isinstance(self.recognised.tree.read(path), SourceFile)), "")

    def _image(self, folder: Path) -> str:
        """Return the only Dockerfile in a folder, if its image starts no ranks itself; empty if it has none."""
        names = [name for name in self.recognised.tree.names(folder.as_posix()) if is_container_file(name)]
        file = self.recognised.tree.read((folder / names[0]).as_posix()) if len(names) == 1 else None
        source = self.recognised.source_of(file, "") if isinstance(file, SourceFile) else None
        if not isinstance(file, SourceFile) or source is None:
            return ""
        return "" if self.recognised.reading(source, file, REACHED, WHOLE_JOB).launches else file.path

    def _follow(self, first: _Step) -> None:
        queue = deque([first])
        while queue:
            step = queue.popleft()
            if (step.path, step.scope) in self._seen:
                continue
            # Requirements are few, and are asked for last.
            if len(self._seen) >= MAX_FILES and step.role != "requirements":
                self._leave_out(step, f"{first.path} refers to more than {MAX_FILES} files")
                continue
            self._seen.add((step.path, step.scope))
            for reference in self._read(step):
                if self._is_followed(reference, step):
                    queue.append(_Step(reference.target, reference.role, reference.scope, reference, step.depth + 1))

    def _is_followed(self, reference: Reference, step: _Step) -> bool:
        if reference.role in (SETTINGS, OWN_SETTINGS, "data"):
            return False
        if step.depth >= MAX_DEPTH:
            further = _Step(reference.target, reference.role, reference.scope, reference, step.depth + 1)
            self._leave_out(further, f"it is more than {MAX_DEPTH} references away from the named files")
            return False
        before = reference.span.snippet[: reference.span.column - 1]
        if reference.role == "script" and reference.target != step.path and _SUBMITS.search(before):
            self.submitted.append(reference.target)
            return False
        return True

    def _read(self, step: _Step) -> tuple[Reference, ...]:
        tree = self._tree(step)
        file = tree.read(step.path)
        if isinstance(file, Note):
            self._unread(file, step)
            return ()
        source = self.recognised.source_of(file, step.role)
        if step.path in self.recognised.crash_notes:
            self.notes.append(self.recognised.crash_notes[step.path])
        if source is None:
            if step.reference is None and self.explicit:
                # Standard input has no name that would show its kind.
                message = (
                    "the type of the file on standard input is unknown; add its name, as in --stdin-name train.sh "
                    "or --stdin-name ds_config.json"
                    if step.path == STDIN
                    else f"{step.path} is not a readable script, configuration or hostfile; name a file of one of "
                    "these types"
                )
                self.notes.append(note_at(step.path, NoteKind.UNSUPPORTED, message))
            return ()
        self.files.setdefault(step.path, InputFile(step.path, source.name, file.sha256, file.size_bytes))
        if self._is_inside_its_caller(step, source):
            self.suppressions.extend(suppressions(file))
            return ()
        if self.explicit and step.reference is None and source.name == "python":
            # A training script that is named is meant to be started: it is read completely whatever it contains.
            step = replace(step, role="script")
        # The overlay may change what a file refers to, so only readings of the bare tree are shared; a training script
        # refers to its own modules only.
        bare = tree is self.recognised.tree or (
            source.name == "python" and not any(path.endswith(".py") for path in self.written)
        )
        if bare:
            reading = self.recognised.reading(source, file, step.role, step.scope)
        else:
            reading = read_source(source, file, tree, scope=step.scope, role=step.role)
        reading = _renumber(reading, {launch.id for launch in self.launches if launch not in reading.launches})
        origin = self._written_for(step.path, step)
        is_written = origin is not None and origin.text is not None
        claims = [_relocate(claim, origin) for claim in reading.claims] if origin and is_written else reading.claims
        self.claims.setdefault(step.path, []).extend(claims)
        self.launches.extend(reading.launches)
        is_needed = step.role == "script" or (self.explicit and step.reference is None)
        unread = is_needed and not (reading.claims or reading.launches)
        self.notes.extend(_require(note, step.path) if unread else note for note in reading.notes)
        self.references.extend(reading.references)
        self.suppressions.extend(reading.suppressions)
        further = tuple(self._configs_of_options(reading.claims))
        self.references.extend(further)
        for item in reading.written:
            earlier = frozenset(launch for launch, number in reading.numbers.items() if number < item.number)
            self.written.setdefault(item.path, []).append((item, earlier))
        return (*reading.references, *further)

    def _configs_of_options(self, claims: Iterable[Claim]) -> Iterator[Reference]:
        """Yield the configuration files that options of a launch name."""
        launches = {launch.id: launch for launch in self.launches}
        found = [claim for claim in claims if claim.quantity == "config_of_option" and claim.scope.launch in launches]
        if not found:
            return
        started = tuple(launches[claim.scope.launch] for claim in found)
        job = Job(name="", launches=tuple(dict.fromkeys(started)), claims=(*found, *self._claims()))
        for claim in resolution.resolved(found, launches, launch_runs.runs_of(job, job.launches, self._files_of)):
            for path in texts(claim.value):
                file = self._read_by(path, launches[claim.scope.launch])
                if isinstance(file, SourceFile):
                    yield Reference(file.path, "config", claim.origin or claim.span, claim.scope)

    def _claims(self) -> Iterator[Claim]:
        return (claim for found in self.claims.values() for claim in found)

    def _leave_out(self, step: _Step, why: str) -> None:
        """Record that a file of the job is not read, if it exists; a file that is also reached in another way is read
        there.
        """
        if step.role in _ASIDE or step.path in self._left_out or step.path in self.files:
            return
        if isinstance(self._tree().read(step.path), SourceFile):
            span = step.reference.span if step.reference is not None else Span(step.path, 1, 1, 1, 1)
            message = f"`{step.path}` ({step.role}) was not read: {why}; pass it as a separate argument"
            self._left_out[step.path] = Note(NoteKind.TOO_LARGE, message, span, required=True)

    def _is_inside_its_caller(self, step: _Step, source: Source) -> bool:
        """Return whether the script was already evaluated, with its variables, inside the script that runs or sources
        it.
        """
        if step.reference is not None and step.role == "composed":
            return True
        if step.reference is None or step.role not in ("script", "source"):
            return False
        caller = self.files.get(step.reference.span.path)
        return source.name == "shell" and caller is not None and caller.kind in _EVALUATING

    def _tree(self, step: _Step | None = None) -> Tree:
        """Return the files as the scripts of the job leave them before the launch of the step."""
        found = {path: self._written_for(path, step) for path in self.written}
        written = {path: item.text for path, item in found.items() if item is not None}
        return OverlayTree(self.recognised.tree, written) if written else self.recognised.tree

    def _read_by(self, path: str, launch: Launch) -> SourceFile | Note:
        """Return the file that the program of a launch finds at a path."""
        base = self._base_of(launch)
        if base is None:
            return Note(NoteKind.MISSING, f"where {launch.program} runs is unknown", launch.span)
        tree = self._tree(_Step(path, scope=launch.scope))
        target = tree.resolve(path, relative_to=base)
        return (
            Note(NoteKind.MISSING, f"{path} is not in the tree", launch.span) if target is None else tree.read(target)
        )

    def _base_of(self, launch: Launch) -> str | None:
        """Return a path in the working directory of a launch; None if that is unknown."""
        claims = (claim for found in self.claims.values() for claim in found if claim.scope == launch.scope)
        folders = [claim.value for claim in claims if claim.quantity == "working_directory"]
        if any(not isinstance(folder, Known) for folder in folders) or len(folders) > 1:
            return None
        return f"{texts(folders[0])[0]}/_" if folders else launch.span.path

    def _written_for(self, path: str, step: _Step | None) -> WrittenFile | None:
        """Return what the job's scripts last wrote to a file before the launch of the step, or None.

        The text is unknown if it was written in a branch that may not be taken and the file has another text otherwise.
        """
        launch = next((each for each in self.launches if step is not None and each.id == step.scope.launch), None)
        before = [item for item, earlier in self.written.get(path, ()) if launch is None or launch.id not in earlier]
        if not before:
            return None
        last = before[-1]
        branches = launch.condition.split("; ") if launch is not None else []
        is_certain = not last.condition or set(last.condition.split("; ")) <= set(branches)
        is_only = all(item.condition == last.condition for item in before) and isinstance(
            self.recognised.tree.read(path), Note
        )
        return last if is_certain or is_only else replace(last, text=None)

    def _unread(self, note: Note, step: _Step) -> None:
        reference = step.reference
        if reference is None:
            self.notes.append(replace(note, required=self.explicit or note.required))
        elif (
            (origin := self._written_for(step.path, step)) is not None
            and origin.text is None
            and note.kind is NoteKind.MISSING
        ):
            message = (
                f"`{step.path}` ({step.role}) is written by the script ({origin.span.path}:{origin.span.line}) with "
                "values that are known only when it runs; it cannot be checked"
            )
            self.notes.append(Note(NoteKind.MISSING, message, reference.span, detail=NoteDetail.OVERWRITTEN))
        elif (
            note.kind is NoteKind.MISSING
            and not _is_found_by_path(reference)
            and _PLACEHOLDER.search(step.path) is None
            and (meant := self._similar_file(step))
        ):
            message = f"`{step.path}` ({step.role}) does not exist, but `{meant}` does"
            self.notes.append(Note(NoteKind.MISSING, message, reference.span, detail=NoteDetail.MISNAMED))
        elif note.kind is NoteKind.MISSING:
            message = (
                f"`{step.path}` ({step.role}) is named here but is not in the tree; a file that is written at run "
                "time, or exists only on the cluster, cannot be checked"
            )
            self.notes.append(Note(NoteKind.MISSING, message, reference.span))
        else:
            # An existing file of the job that is not read might hold its faults. A folder or a device is not a file of
            # a job, whatever its role.
            cut_off = note.kind is NoteKind.TOO_LARGE and step.role not in _ASIDE
            self.notes.append(replace(note, span=reference.span, required=note.required or cut_off))

    def _similar_file(self, step: _Step) -> str:
        """Return the file that a missing path probably means: one of a similar name, or the only one in other
        folders.
        """
        # Lists of packages are copied into images under paths of their own.
        if step.role in (*_ASIDE, "requirements") or step.reference is None or step.reference.is_elsewhere:
            return ""
        tree, (folder, name) = self._tree(), posixpath.split(step.path)
        beside = [n for n in tree.names(folder) if posixpath.splitext(n)[1] == posixpath.splitext(name)[1]]
        # `config_8.yaml` beside `config_16.yaml` is another file, not a slip.
        near = [n for n in similar_names(name, beside, cutoff=_SLIP) if _without_digits(n) != _without_digits(name)]
        if near:
            return posixpath.join(folder, near[0])
        if step.role == "script" and step.reference.span.path.endswith((".yaml", ".yml", ".json")):
            # The image of a pod may have the script in another folder than the tree.
            return ""
        above = [posixpath.dirname(folder), "", posixpath.dirname(step.reference.span.path)]
        folders = [*above, *(n.rstrip("/") for n in tree.names("") if n.endswith("/"))]
        found = {posixpath.join(each, name) for each in folders if name in tree.names(each)}
        return found.pop() if len(found) == 1 else ""

    def job(self) -> Job:
        """Return the collected job, in the order in which files were found."""
        headers = [found for found in self.claims.values() if any(map(_is_header, found))]
        stated = map(_rescope_headers, self.claims.values()) if len(headers) > 1 else self.claims.values()
        claims = _drop_answered([claim for found in stated for claim in found])
        left_out = [note for path, note in self._left_out.items() if path not in self.files]
        left_out += [
            Note(
                NoteKind.UNSUPPORTED,
                f"`{reference.target}` contains the settings of this launch, and {_UNREAD_SETTINGS[reference.role]}",
                reference.span,
                required=reference.role == SETTINGS,
            )
            for reference in self.references
            if reference.role in _UNREAD_SETTINGS and reference.target not in self.files
        ]
        names = [Path(path).name for path in self.entries[1:4]]
        more = ["..."] if len(self.entries) > 4 else []
        return Job(
            name=" + ".join([*self.entries[:1], *names, *more]),
            files=tuple(self.files.values()),
            launches=tuple(dict.fromkeys(self.launches)),
            claims=tuple(dict.fromkeys(claims)),
            notes=tuple(dict.fromkeys((*self.notes, *left_out))),
            references=tuple(dict.fromkeys(self.references)),
            suppressions=tuple(dict.fromkeys(self.suppressions)),
        )

    def simulated(self, job: Job) -> Job:
        """Return the job with what its programs certainly do on a few of their ranks."""
        try:
            size = sum(file.size_bytes for file in job.files)
            return current().attempt(lambda: ranks.simulated(job, with_derived(job), self._files_of), size)
        except BudgetExceeded as exceeded:
            free_memory_after(exceeded)
            claims = tuple(resolution.resolved(job.claims, {}, {}))
            message = f"following the programs of {job.name} was stopped, because it needs {exceeded.excess}"
            note = note_at(job.name, NoteKind.TOO_LARGE, message, required=True)
            return replace(job, claims=claims, notes=(*job.notes, note))

    def _files_of(self, launch: Launch) -> launch_runs.Files:
        def text_of(path: str) -> str | None:
            found = self._read_by(path, launch)
            return found.text if isinstance(found, SourceFile) else None

        def entries(path: str) -> Sequence[str]:
            base = self._base_of(launch)
            folder = tree.resolve(path, relative_to=base) if base is not None else None
            return tree.names(folder) if folder is not None else ()

        def reading(file: SourceFile) -> Reading:
            source = self.recognised.source_of(file, "script")
            return self.recognised.reading(source, file, REACHED, WHOLE_JOB) if source is not None else Reading()

        tree = self._tree(_Step(launch.program, scope=launch.scope))
        return launch_runs.Files(tree, text_of, entries, reading)


def collect_job(recognised: RecognisedFiles, entries: Sequence[str], *, explicit: bool) -> JobCollector:
    """Collect the entries, `explicit` if the user named them, and all files they reach."""
    gathering = JobCollector(recognised, explicit)
    gathering.run(entries)
    return gathering


def _renumber(reading: Reading, taken: Collection[str]) -> Reading:
    """Return the reading with new ids for launches whose id is taken: two scripts may start the same script."""
    ids: dict[str, str] = {}
    used = {*taken, *(launch.id for launch in reading.launches if launch.id not in taken)}
    for launch in reading.launches:
        if launch.id in taken:
            line, _, number = launch.id.partition("#")
            free = next(n for n in itertools.count(int(number or 1) + 1) if f"{line}#{n}" not in used)
            ids[launch.id] = f"{line}#{free}"
            used.add(ids[launch.id])
    if not ids:
        return reading

    def scope(before: Scope) -> Scope:
        return replace(before, launch=ids[before.launch]) if before.launch in ids else before

    return replace(
        reading,
        launches=tuple(replace(launch, id=ids.get(launch.id, launch.id)) for launch in reading.launches),
        claims=tuple(replace(claim, scope=scope(claim.scope)) for claim in reading.claims),
        references=tuple(replace(reference, scope=scope(reference.scope)) for reference in reading.references),
        numbers={ids.get(launch, launch): number for launch, number in reading.numbers.items()},
    )


def _rescope_headers(claims: Sequence[Claim]) -> list[Claim]:
    """Return the claims, with those of a batch header limited to its own submission's launches, if there are any."""
    scopes = list(dict.fromkeys(claim.scope for claim in claims if claim.scope.launch))
    moved: list[Claim] = []
    for claim in claims:
        moved.extend(replace(claim, scope=scope) for scope in scopes) if _is_header(claim) else moved.append(claim)
    return moved


def _drop_answered(claims: Sequence[Claim]) -> list[Claim]:
    """Return the claims without those that are unresolved in a program but resolved by the arguments of the same
    launch: `tcp://h:{port}`.
    """
    answered = {
        (claim.scope, claim.quantity)
        for claim in claims
        if claim.source == "arguments" and claim.scope != WHOLE_JOB and not isinstance(claim.value, Unresolved)
    }
    open_claims = [claim for claim in claims if claim.source == "python" and isinstance(claim.value, Unresolved)]
    dropped = {claim for claim in open_claims if (claim.scope, claim.quantity) in answered}
    return [claim for claim in claims if claim not in dropped]


def _is_header(claim: Claim) -> bool:
    return claim.source in _SCHEDULERS and claim.scope == WHOLE_JOB and claim.strength is Strength.SCHEDULER


def _require(note: Note, path: str) -> Note:
    """Return the note about a named file or a started script that cannot be parsed: without it the job is not
    judged.
    """
    return replace(note, required=True) if note.kind is NoteKind.MALFORMED and note.span.path == path else note


def _relocate(claim: Claim, origin: WrittenFile) -> Claim:
    """Return a claim of a file that a script writes, at its location in the script."""

    def place(span: Span) -> Span:
        if span.path != origin.path:
            return span
        down = origin.span.line - 1
        return replace(span, path=origin.span.path, line=span.line + down, end_line=span.end_line + down)

    return replace(
        claim,
        span=place(claim.span),
        because=tuple(_relocate(reason, origin) for reason in claim.because),
        origin=None if claim.origin is None else place(claim.origin),
    )


def _without_digits(name: str) -> str:
    return re.sub(r"\d+", "", name)


#: What may stand before a command on its line.
_BEFORE_COMMAND = re.compile(r"(?:.*(?:&&|\|\|?|;|\(|\b(?:then|do|else|time|nohup|exec)\s))?\s*")


def _is_found_by_path(reference: Reference) -> bool:
    """Return whether a script is called as a command without a folder, which the shell looks for only in PATH."""
    span = reference.span
    written = span.snippet[span.column - 1 : span.end_column - 1]
    before = span.snippet[: span.column - 1]
    return reference.role == "script" and "/" not in written and _BEFORE_COMMAND.fullmatch(before) is not None
