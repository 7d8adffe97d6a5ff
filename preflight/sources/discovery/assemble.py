"""From files to jobs: reads the named files, follows their references, and joins files that belong together."""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from preflight._util import toml
from preflight._util.budget import BudgetExceeded, current, free_memory_after, running
from preflight._util.hostnames import is_loopback
from preflight._util.sequences import grouped
from preflight.model.job import WHOLE_JOB, Job, Known, NoteDetail, NoteKind, Scope, Unresolved
from preflight.model.job.derive import with_derived
from preflight.model.job.value import items
from preflight.model.progress import Progress, Step, ignore
from preflight.sources.base import (
    Source,
    SourceFile,
    defaults_assumed,
    differs_between_nodes,
    given_secrets,
    is_assuming,
)
from preflight.sources.discovery.collect import STDIN, collect_job
from preflight.sources.discovery.readings import RecognisedFiles, TreeSnapshot, below
from preflight.sources.discovery.walk import Walked
from preflight.sources.formats.tree import decode, note_at
from preflight.sources.secrets import is_searched, job_without_secrets, secrets_of_files
from preflight.sources.shell.shell_source import startable

#: Claims of a script that do not make it a job of its own.
_IDLE_QUANTITIES = frozenset(
    [
        *("script", "argument_default", "strict_arguments", "local_rank_argument", "loop_over_epochs", "entry_point"),
        *("training_framework", "package", "wheel_cuda", "paddle_version", "installing_line", "declared_options"),
        *("imported_framework", "script_feature", "rank_setter", "program_followed", "program_outcome"),
        *("config_of_option", "needed_variable", "imported_name"),
    ]
)

#: Sources that describe something which a job may use: alone they start nothing.
_DESCRIPTIVE_SOURCES = frozenset(("model", "lock"))


def assemble(
    root: Path,
    paths: Sequence[str | Path],
    *,
    sources: Sequence[Source],
    snapshot: TreeSnapshot | None = None,
    jobs: int = 1,
    progress: Progress = ignore,
) -> tuple[Job, ...]:
    """Return the jobs that `paths` (files or directories inside `root`) describe, by name.

    Files named together form one job, except that each of several batch scripts is a submission of its own. In a
    directory every recognised file that no other refers to starts a job, except unit tests and files that the
    snapshot excludes; sibling scripts for the nodes of one job (node0.sh, node1.sh) form one that is marked as
    probable. A file that cannot be read becomes a note, never an exception. `snapshot` records the examined files. The
    files of large directories are read by at most `jobs` processes. `progress` is called for every file of a directory.
    """
    with running():
        return _assemble(root, paths, tuple(sources), snapshot or TreeSnapshot(root), jobs, progress)


def _assemble(
    root: Path,
    paths: Sequence[str | Path],
    sources: tuple[Source, ...],
    snapshot: TreeSnapshot,
    jobs: int,
    progress: Progress,
) -> tuple[Job, ...]:
    recognised = RecognisedFiles(snapshot.files, sources, jobs, progress)
    progress(Step("files"))
    found = [below(root, path) for path in paths]
    named = list(dict.fromkeys(path for path in found if not snapshot.is_folder(path)))
    found_jobs = _named_jobs(recognised, named) if named else []
    done = {file.path for job in found_jobs for file in job.files}
    for path in found:
        if snapshot.is_folder(path):
            walked = snapshot.walk(path)
            fresh = replace(walked, files=tuple(file for file in walked.files if file not in done))
            found_jobs.extend(_directory_jobs(recognised, fresh))
            done.update(file.path for job in found_jobs for file in job.files)
    snapshot.note_skipped({path: reason for path, reason in recognised.skipped.items() if path not in done})
    jobs_found = (_with_defaults(_complete(job, recognised), named, recognised) for job in found_jobs)
    return tuple(sorted(jobs_found, key=lambda job: job.name))


def _without_secrets(job: Job, recognised: RecognisedFiles) -> Job:
    """Hide a secret found in one file of a job wherever any of its files is quoted."""
    found = (recognised.tree.read(file.path) for file in job.files)
    files = [file for file in found if isinstance(file, SourceFile)]
    secrets = secrets_of_files(files) | given_secrets()
    unsearched = frozenset(file.path for file in files if not is_searched(file))
    return job_without_secrets(job, secrets, unsearched) if secrets or unsearched else job


def _complete(job: Job, recognised: RecognisedFiles) -> Job:
    """Return the job with derived claims, and without secrets."""
    try:
        return current().attempt(
            lambda: _without_secrets(with_derived(job), recognised), sum(file.size_bytes for file in job.files)
        )
    except BudgetExceeded as exceeded:
        free_memory_after(exceeded)
        message = f"deriving more claims for {job.name} was stopped, because it needs {exceeded.excess}"
        # A quote of one file may contain a secret of another one.
        notes = (note for note in job.notes if not note.span.snippet)
        stopped = note_at(job.name, NoteKind.TOO_LARGE, message, required=True)
        return Job(job.name, files=job.files, notes=(*notes, stopped))


#: A variable with a default, `${NNODES:-2}`, and one that a script asks for.
_DEFAULT = re.compile(r"\$\{\w+:?[-=]|-[zn] *\"?\$")
#: A variable that a program asks for with a default.
_ASKED = re.compile(r"""(?:environ\.get|getenv)\(\s*["'](\w+)["']\s*,""")


def _with_defaults(job: Job, named: Sequence[str], recognised: RecognisedFiles) -> Job:
    """Return the job with `by_default`: the job if the caller sets none of the variables that its scripts have defaults
    for.
    """
    if job.probable or is_assuming():
        return job
    entries = [file.path for file in job.files if file.path in named] or [job.name]
    files = (recognised.tree.read(file.path) for file in job.files)
    texts = [file.text for file in files if isinstance(file, SourceFile)]
    is_open = any(isinstance(claim.value, Unresolved) and claim.value.set_by_caller for claim in job.claims)
    has_default = is_open and any(map(_DEFAULT.search, texts))
    asked = (name for text in texts for name in _ASKED.findall(text)) if job.launches else ()
    has_more = any(launch.arguments[-1:] == (None,) for launch in job.launches)
    if not (has_default or has_more or any(not differs_between_nodes(name) for name in asked)):
        return job
    again = RecognisedFiles(recognised.tree, recognised.sources)

    def read() -> Job:
        with defaults_assumed(of_all=False, without=_set_for_launches(job)) as assumed:
            found = [each for each in _collect_jobs(again, entries, explicit=bool(named)) if each.name == job.name]
            whole = _complete(found[0], again) if found else job
        return replace(job, by_default=replace(whole, assumed=tuple(assumed.items()))) if assumed and found else job

    try:
        return current().attempt(read, sum(file.size_bytes for file in job.files))
    except BudgetExceeded as exceeded:
        # The job itself has been read.
        free_memory_after(exceeded)
        return job


def _set_for_launches(job: Job) -> frozenset[str]:
    """Return the variables that scripts set for every launch, whatever the caller sets."""
    names = (
        frozenset(
            claim.quantity.removeprefix("env.")
            for claim in job.environment(launch.scope)
            if claim.source == "environment"
            and not claim.condition
            and not (isinstance(claim.value, Unresolved) and claim.value.set_by_caller)
        )
        for launch in job.launches
    )
    return functools.reduce(frozenset.intersection, names) if job.launches else frozenset()


def _named_jobs(recognised: RecognisedFiles, named: Sequence[str]) -> list[Job]:
    batches = [path for path in named if recognised.is_batch_script(path)]
    if len(batches) < 2:
        return _collect_jobs(recognised, named, explicit=True)
    jobs = [job for path in batches for job in _collect_jobs(recognised, [path], explicit=True)]
    reached = {file.path for job in jobs for file in job.files}
    rest = [path for path in named if path not in reached]
    return [*jobs, *(_collect_jobs(recognised, rest, explicit=True) if rest else [])]


def _directory_jobs(recognised: RecognisedFiles, walked: Walked) -> list[Job]:
    recognised.progress(Step("files", 0, len(walked.files)))
    candidates = recognised.candidates(walked.files, walked.below)
    unread = recognised.unread(walked.files, walked.below)
    recognised.read_ahead(candidates)
    referred: set[str] = set()
    built: dict[str, list[Job]] = {}
    # Shell scripts first: the files they reach are not jobs of their own. Documents last: they only add launches.
    order = sorted(candidates, key=lambda path: (recognised.is_document(path), recognised.rank(path), path))
    for number, path in enumerate(order):
        recognised.progress(Step("jobs", number, len(candidates)))
        if path in referred:
            continue
        is_document = recognised.is_document(path)
        if is_document and not _launches_others(collect_job(recognised, [path], explicit=False).job(), built.values()):
            continue
        found = _collect_jobs(recognised, [path], explicit=False)
        reached = {file.path for job in found for file in job.files if file.path != path}
        if is_document:
            reached = {other for other in reached if not any(job.launches for job in built.get(other, ()))}
        built[path] = found
        referred.update(reached)
        referred.update(target for job in built[path] for target in _overwritten(job))
    entries = [path for path in built if path not in referred]
    notes = list(walked.notes)
    joined: dict[str, tuple[str, ...]] = {}
    try:
        joined = current().attempt(lambda: _find_siblings(entries, built), 1024 * len(entries))
    except BudgetExceeded as exceeded:
        where = walked.below or "."
        message = (
            f"determining which scripts in {where} belong together was stopped, because it needs {exceeded.excess}"
        )
        notes.append(note_at(where, NoteKind.TOO_LARGE, message, required=True))
    jobs: list[Job] = []
    for path in entries:
        members = joined.get(path, ())
        if not members:
            jobs.extend(built[path])
        elif path == members[0]:
            jobs.extend(replace(job, probable=True) for job in _collect_jobs(recognised, members, explicit=False))
    kept: list[Job] = []
    for job in jobs:
        if job.launches or job.claims or not all(note.kind is NoteKind.TOO_LARGE for note in job.notes):
            kept.extend([job] if _is_job(job) else [])
        else:
            # Nothing of the job was read. Such jobs can be thousands, so only their notes are kept.
            notes.extend(job.notes)
    # A file that is read as part of a job has its note there.
    known = {note.span.path for job in kept for note in job.notes}
    notes.extend(note for note in unread if note.span.path not in known)
    if notes and kept:
        kept[0] = replace(kept[0], notes=(*kept[0].notes, *notes))
    elif notes:
        kept.append(Job(walked.below or ".", notes=tuple(notes)))
    return kept


def _launches_others(document: Job, others: Iterable[Sequence[Job]]) -> bool:
    """Return whether a document launches a program that no script or manifest launches."""
    launched = {launch.program for group in others for job in group for launch in job.launches}
    return any(launch.program not in launched for launch in document.launches)


def _overwritten(job: Job) -> set[str]:
    """Return the files that a script of the job overwrites before it uses them: in their present form, they belong to
    no job.
    """
    places = {note.span for note in job.notes if note.detail is NoteDetail.OVERWRITTEN}
    return {reference.target for reference in job.references if reference.span in places}


def _find_siblings(entries: Sequence[str], built: Mapping[str, Sequence[Job]]) -> dict[str, tuple[str, ...]]:
    joined = siblings(entries, built)
    return joined | companions([path for path in entries if path not in joined], built)


def _is_job(job: Job) -> bool:
    if job.launches or any(note.required or note.kind is not NoteKind.MISSING for note in job.notes):
        return True
    return any(
        claim.quantity not in _IDLE_QUANTITIES
        and claim.source not in _DESCRIPTIVE_SOURCES
        and (claim.source == "environment" or not claim.quantity.startswith("env."))
        for claim in job.claims
    )


def _collect_jobs(recognised: RecognisedFiles, entries: Sequence[str], *, explicit: bool) -> list[Job]:
    """Return the job of `entries`, and those of the batch scripts that it submits."""
    gathering = collect_job(recognised, entries, explicit=explicit)
    jobs = [gathering.simulated(gathering.job())]
    known = {file.path for file in jobs[0].files}
    for path in gathering.submitted:
        if path not in known and isinstance(recognised.tree.read(path), SourceFile):
            submitted = collect_job(recognised, [path], explicit=False)
            jobs.append(submitted.simulated(submitted.job()))
            known.add(path)
    return jobs


#: A name that numbers the nodes of a job: node0.sh, n1.sh, worker-2.yaml, start_machine3.sh.
_NODE_BY_NUMBER = re.compile(r"(?:^|.*[-_.])(?:node|n|worker|trainer|machine|host|server|rank|sv)[-_]?\d+\.[a-z]+")


#: The parts in which the names of sibling scripts may differ.
_PART_OF_NAME = re.compile(r"\d+|server|pserver|worker|trainer|master|slave|head|main|node|rank|machine|host|ps|[-_. ]")


def siblings(entries: Sequence[str], built: Mapping[str, Sequence[Job]]) -> dict[str, tuple[str, ...]]:
    """Return all parts of a job, in order, for each entry that is one of several parts.

    This is a guess. The files start the same training script and have names that differ in numbers and roles, or use
    the same known endpoint, and each launch (or each configuration of a node) has another node rank, rank, role or
    index. Or one of two files starts parameter servers, and the other one trainers. Files that are numbered as the
    nodes of a job, as many as it has nodes, belong together even if two have the same rank: that is then the fault.
    """
    joined: dict[str, tuple[str, ...]] = {}
    for key_of in (_same_script, _same_endpoint, _same_servers):
        groups: dict[tuple[str, ...], list[str]] = {}
        for path in entries:
            key = key_of(path, built[path]) if path not in joined else None
            if key is not None:
                groups.setdefault(key, []).append(path)
        for group in groups.values():
            alike = (_are_parts_of_one_job, _are_numbered_nodes, _list_the_same_nodes, _are_servers_and_trainers)
            if any(are_one_job(group, built) for are_one_job in alike):
                joined.update(dict.fromkeys(group, tuple(group)))
    return joined


def _same_script(path: str, jobs: Sequence[Job]) -> tuple[str, ...] | None:
    """Return folder, training script and a name that differs only in numbers and roles: node0.sh, node1.sh."""
    if len(jobs) != 1 or not jobs[0].launches:
        return None
    folder, _, name = path.rpartition("/")
    return (
        folder,
        jobs[0].launches[0].program,
        jobs[0].launches[0].launcher,
        _PART_OF_NAME.sub("", name.lower()),
    )


def _same_endpoint(path: str, jobs: Sequence[Job]) -> tuple[str, ...] | None:
    """Return the folder and the known endpoint of the ranks."""
    if len(jobs) != 1:
        return None
    job, scope = jobs[0], _scopes(jobs[0])[0]
    servers = job.value("ps_server_endpoints", scope)
    where = (
        (servers,) if isinstance(servers, Known) else tuple(job.value(n, scope) for n in ("master_addr", "master_port"))
    )
    known = [value.value for value in where if isinstance(value, Known)]
    if len(known) < len(where) or any(isinstance(value, str) and is_loopback(value) for value in known):
        return None
    # A script and a configuration with the same endpoint are not two parts of one kind.
    kind = "launch" if job.launches else job.files[0].kind if job.files else ""
    return (path.rpartition("/")[0], kind, *(str(value) for value in where))


def _same_servers(path: str, jobs: Sequence[Job]) -> tuple[str, ...] | None:
    """Return folder and name of a script for parameter servers or their trainers: start_pserver.sh,
    start_trainer.sh.
    """
    folder, _, name = path.rpartition("/")
    if len(jobs) != 1 or _roles([path], {path: jobs}) not in ({"PSERVER"}, {"TRAINER"}):
        return None
    return folder, _PART_OF_NAME.sub("", name.lower())


def _roles(group: Sequence[str], built: Mapping[str, Sequence[Job]]) -> set[str]:
    """Return the roles of the launches for parameter servers; an empty one for any other."""
    values = [job.value("ps_role", launch.scope) for path in group for job in built[path] for launch in job.launches]
    return {str(value.value) if isinstance(value, Known) else "" for value in values}


def _are_servers_and_trainers(group: Sequence[str], built: Mapping[str, Sequence[Job]]) -> bool:
    """Return whether one script starts the servers of a job, and the other its trainers."""
    return (
        len(group) == 2
        and _roles(group, built) == {"PSERVER", "TRAINER"}
        and all(len(_roles([path], built)) == 1 for path in group)
    )


def _scopes(job: Job) -> tuple[Scope, ...]:
    """Return the scope of each launch; that of the whole job for a configuration without a launch."""
    return tuple(launch.scope for launch in job.launches) or (WHOLE_JOB,)


def _part(job: Job, scope: Scope) -> tuple[str, ...] | None:
    """Return the part of a job that a launch represents: its node, rank, or role and index; None if it is not given."""
    found = []
    for name in ("node_rank", "rank", "ps_role", "ps_index", "ps_current_endpoint", "ray_role"):
        value = job.value(name, scope)
        if isinstance(value, Known):
            found.append(f"{name}={value.value}")
    return tuple(found) or None


def _parts(group: Sequence[str], built: Mapping[str, Sequence[Job]]) -> list[tuple[str, ...] | None]:
    return [_part(job, scope) for path in group for job in built[path] for scope in _scopes(job)]


def _are_parts_of_one_job(group: Sequence[str], built: Mapping[str, Sequence[Job]]) -> bool:
    """Return whether several scripts each state their part of the job, and all parts differ."""
    parts = _parts(group, built)
    return len(group) > 1 and None not in parts and len(set(parts)) == len(parts)


def _are_numbered_nodes(group: Sequence[str], built: Mapping[str, Sequence[Job]]) -> bool:
    """Return whether the files are numbered like nodes, are as many as the job has, and each gives its number."""
    if len(group) < 2 or not all(_NODE_BY_NUMBER.fullmatch(path.rpartition("/")[2].lower()) for path in group):
        return False
    parts = _parts(group, built)
    return None not in parts and any(
        {job.value(name, scope) for path in group for job in built[path] for scope in _scopes(job)}
        == {Known(len(group))}
        for name in ("nodes", "ps_workers")
    )


def _list_the_same_nodes(group: Sequence[str], built: Mapping[str, Sequence[Job]]) -> bool:
    """Return whether the files are as many as the nodes that each of them lists, each in an order of its own."""
    lists = {items(job.value("hosts", scope)) for path in group for job in built[path] for scope in _scopes(job)}
    nodes = {tuple(sorted(each)) for each in lists}
    # Two runs of one program differ in what it is given.
    given = {launch.arguments for path in group for job in built[path] for launch in job.launches}
    one_run = len(nodes) == len(given) == 1
    return len(lists) == len(group) > 1 and one_run and all(len(each) == len(group) for each in nodes)


#: Kinds of configuration, and the launchers (or words of a launch) that need one of them.
_LAUNCHER_SIGNS = {"deepspeed": ("deepspeed",), "accelerate": ("accelerate",)}


#: The role in which a file refers to a configuration of such a kind.
_ROLES = {"deepspeed": "config", "accelerate": "accelerate"}


def companions(entries: Sequence[str], built: Mapping[str, Sequence[Job]]) -> dict[str, tuple[str, ...]]:
    """Return launch and configuration, in this order, for each entry that is one of them.

    This is a guess, kept narrow: the folder holds one script with launches that need such a configuration but name
    none, and one configuration of that kind that no file names.
    """
    joined: dict[str, tuple[str, ...]] = {}
    for kind, signs in _LAUNCHER_SIGNS.items():
        folders = grouped((path.rpartition("/")[0], path) for path in entries if path not in joined)
        for here in folders.values():
            configurations = [path for path in here if _is_configuration(built[path], kind)]
            launching = [path for path in here if any(job.launches for job in built[path])]
            if (
                len(configurations) == 1
                and len(launching) == 1
                and _needs_configuration(built[launching[0]], kind, signs)
            ):
                pair = (launching[0], configurations[0])
                joined.update(dict.fromkeys(pair, pair))
    return joined


def _is_configuration(jobs: Sequence[Job], kind: str) -> bool:
    return len(jobs) == 1 and not jobs[0].launches and [file.kind for file in jobs[0].files] == [kind]


def _needs_configuration(jobs: Sequence[Job], kind: str, signs: Sequence[str]) -> bool:
    """Return whether `jobs` is a single job whose launches all need a configuration of this kind and name none,
    wherever it may be.
    """
    if len(jobs) != 1 or any(file.kind == kind for file in jobs[0].files):
        return False
    named = any(reference.role == _ROLES[kind] for reference in jobs[0].references)
    return not named and all(launch.launcher in signs and None not in launch.arguments for launch in jobs[0].launches)


#: The first instruction of a container file, behind comments and arguments.
_FROM = re.compile(r"(?:[ \t]*(?:#[^\n]*|ARG[^\n]*)?\n)*FROM[ \t]+\S")


def name_by_content(content: bytes, sources: Sequence[Source]) -> str:
    """Return a name for the content of standard input, with the suffix of its kind.

    The name has no suffix if a source recognises the content without one (manifests, and scripts whose first line names
    their shell), or if no suffix makes a source recognise it.
    """
    found = decode(STDIN, content)
    if not isinstance(found, SourceFile):
        return STDIN
    with running():
        for suffix, may_be in _KINDS:
            name = STDIN + suffix
            file = SourceFile(name, found.text, found.sha256, found.size_bytes)
            try:
                if current().attempt(functools.partial(_is_kind, file, may_be, sources), len(content)):
                    return name
            except BudgetExceeded:
                continue
    return STDIN


def _is_kind(file: SourceFile, may_be: Callable[[SourceFile], bool], sources: Sequence[Source]) -> bool:
    return may_be(file) and any(source.recognises(file) for source in sources)


def _is_json(file: SourceFile) -> bool:
    if not file.text.lstrip().startswith(("{", "[")):
        return False
    try:
        json.loads(file.text)
    except (ValueError, RecursionError):
        return False
    return True


def _is_toml(file: SourceFile) -> bool:
    try:
        return bool(toml.loads(file.text))
    except (ValueError, RecursionError):
        return False


def _is_python(file: SourceFile) -> bool:
    """Return whether the file is Python that imports something; a command line of one word is valid Python, too."""
    try:
        tree = ast.parse(file.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(isinstance(node, ast.Import | ast.ImportFrom) for node in tree.body)


#: Suffixes in the order in which they are tried: what has a strict grammar first.
_KINDS: tuple[tuple[str, Callable[[SourceFile], bool]], ...] = (
    ("", lambda file: True),
    (".json", _is_json),
    (".toml", _is_toml),
    (".yaml", lambda file: ":" in file.text),
    (".dockerfile", lambda file: _FROM.match(file.text) is not None),
    (".py", _is_python),
    (".sh", lambda file: bool(startable([file]))),
)
