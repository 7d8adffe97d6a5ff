"""Files that cannot be read or have syntax errors, and configurations that Hydra fails to compose."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Job, Note, NoteDetail, NoteKind, Unresolved
from preflight.model.job.claim import distinct
from preflight.model.job.value import texts
from preflight.plugins.authoring import Verdict, command, failed, passed, rule, unknown
from preflight_rules.sizes.deepspeed import uses_hugging_face

_UNREADABLE = frozenset({NoteKind.UNREADABLE, NoteKind.TOO_LARGE, NoteKind.MISSING, NoteKind.OUTSIDE, NoteKind.CRASHED})


@rule("FIL001", "input-unreadable", severity=Severity.WARNING, profile="gate", otherwise="the job has no files")
def input_unreadable(job: Job) -> Iterator[Verdict]:
    """A file of the job cannot be read.

    What it checks: Every file that is named on the command line, or that a file of the job refers to, can be read: it
    exists inside the root, is a regular file below the size limit, and its reader does not crash.

    Why it matters: A file that cannot be read cannot be checked. If you named the file yourself, silence would look
    like a pass, so the verdict is incomplete.

    Example: `preflight lint train.sbatch` where `train.sbatch` is a broken symbolic link.

    Fix: Correct the path, make the file readable, or do not pass it.

    Known limits: A missing file that another file refers to may be created at run time: it is listed under coverage and
    does not change the verdict. It is a warning if a file with a similar name, or with this name in another folder,
    exists. An existing file that cannot be read is a warning; if it was passed, the result is unknown and the verdict
    is incomplete.
    """
    for note in job.notes:
        if note.kind is NoteKind.UNREADABLE and not note.required:
            yield failed(
                note.span.path,
                note.message,
                at=note,
                remedy="Correct the path or make the file readable; its content was not checked.",
            )
        elif note.detail is NoteDetail.MISNAMED:
            yield failed(
                note.span.path,
                f"{note.message}.",
                at=note,
                remedy="Correct the path, or add the file before the job is submitted.",
                confidence=Confidence.MEDIUM,
            )
        elif note.kind in _UNREADABLE:
            yield unknown(note.span.path, note.message, required=note.required, at=note)
    faulty_paths = {note.span.path for note in job.notes if note.kind in _UNREADABLE}
    for file in job.files:
        if file.path not in faulty_paths:
            yield passed(file.path)


@rule("FIL002", "input-malformed", severity=Severity.ERROR)
def input_malformed(job: Job) -> Iterator[Verdict]:
    """A file of the job has a syntax error.

    What it checks: Every JSON configuration and hostfile that a launch uses, and every script, parses in its own
    format. No line that starts ranks ends in a carriage return, as in a shell script that was saved with Windows line
    endings.

    Why it matters: DeepSpeed and the launchers read these files after the job has been queued and started, and stop at
    the first character that they cannot read. A shell keeps the carriage return as part of the last word, so the
    program's name or its last argument is wrong, and a backslash before the carriage return does not continue the line.

    Example: A `ds_config.json` with a missing comma, or a hostfile line `worker-1 slots=eight`.

    Fix: Correct the file at the location that the finding names; convert line endings with `dos2unix` or `sed -i
    's/\\r$//'`.

    Known limits: DeepSpeed's own reader accepts a missing comma at the end of a line, comments and single quotes; these
    are errors if Hugging Face's trainer reads the file, otherwise information. A template (Jinja, Helm, `${VAR}`) is
    filled in before use: it is unknown, not faulty. A shell or Python file that was read only in part is unknown,
    because preflight's own grammar may be out of date; a script that a launch starts gets a warning if its indentation
    is wrong in every version of Python. Windows line endings are reported only if a launch line has one and no comment
    after it; a checkout that git converted is checked as it is on disk.
    """
    faulty_paths: set[str] = set()
    for note in job.notes:
        if note.kind in (NoteKind.TEMPLATE, NoteKind.UNSUPPORTED):
            faulty_paths.add(note.span.path)
            yield unknown(note.span.path, note.message, at=note)
        elif note.kind is NoteKind.MALFORMED:
            faulty_paths.add(note.span.path)
            yield _malformed(job, note)
        elif note.kind is NoteKind.LINE_ENDING:
            faulty_paths.add(note.span.path)
            yield failed(
                note.span.path,
                f"{note.span.path}:{note.span.line}: {note.message}.",
                at=note.span,
                remedy=f"Save it with Unix line endings: `dos2unix {note.span.path}` or `sed -i 's/\\r$//' "
                f"{note.span.path}`.",
                run=(command("sed", "-i", r"s/\r$//", note.span.path),),
                severity=Severity.WARNING if note.detail is NoteDetail.OPTION_VALUE else None,
            )
    for file in job.files:
        if file.path not in faulty_paths:
            yield passed(file.path)


def _malformed(job: Job, note: Note) -> Verdict:
    kind = next((file.kind for file in job.files if file.path == note.span.path), "")
    roles = {reference.role for reference in job.references if reference.target == note.span.path}
    if kind == "python" and "script" in roles and note.detail is NoteDetail.INDENTATION:
        return failed(
            note.span.path,
            f"{note.message}.",
            at=note.span,
            remedy=f"Correct the indentation in {note.span.path} at this location; Python stops there on every rank.",
            severity=Severity.WARNING,
        )
    if kind not in ("deepspeed", "hostfile"):
        return unknown(note.span.path, note.message, required=note.required, at=note)
    # DeepSpeed's own reader (hjson) accepts more than json.load in Hugging Face's trainer.
    uses_strict_reader = any(uses_hugging_face(job, launch, launch.scope) for launch in job.launches)
    is_valid_hjson = note.detail is NoteDetail.HJSON
    is_certain = bool(roles & {"config", "hostfile"}) and (uses_strict_reader or not is_valid_hjson)
    milder_severity = Severity.INFO if is_valid_hjson and not uses_strict_reader else Severity.WARNING
    return failed(
        note.span.path,
        note.message,
        at=note,
        remedy=f"Correct {note.span.path} at this location; nothing that depends on it was checked.",
        severity=None if is_certain else milder_severity,
    )


@rule(
    "HYD001",
    "hydra-configuration-refused",
    severity=Severity.ERROR,
    otherwise="no launch uses a Hydra configuration from the job's files",
)
def hydra_configuration_refused(job: Job) -> Iterator[Verdict]:
    """Hydra stops before the program starts: an override or a defaults list does not fit the configuration.

    What it checks: Every override on the command line names a key or group of the composed configuration, or begins
    with `+`; every configuration in a defaults list exists; no mandatory value is left at `???`; no mapping is merged
    with a list.

    Why it matters: Hydra composes the configuration first. "Could not override 'trainer.n_gpu_per_node'" comes after
    the job was queued and its nodes were set up.

    Example: `trainer.n_gpu_per_node=8`, where the configuration has `n_gpus_per_node`.

    Fix: Correct the key, or write `+key=value` to add it.

    Known limits: Judged only if all files of the configuration are in the tree and the program registers none in its
    code.
    """
    refusals = distinct(job.about("config_refused"))
    for claim in refusals:
        if isinstance(claim.value, Unresolved):
            subject = claim.scope.launch or claim.span.path
            yield unknown(subject, f"its configuration depends on {claim.value.why}", at=claim)
            continue
        message = next(iter(texts(claim.value)), "")
        yield failed(
            claim.scope.launch or claim.span.path,
            f"`{' '.join(claim.spelling.split())}`: {message}, so Hydra stops before the program starts.",
            at=claim,
            remedy="Correct the name, or write `+` in front of an override that adds a key.",
        )
    if not refusals and any(reference.role == "composed" for reference in job.references):
        yield passed(job.name)


@rule(
    "HYD002",
    "hydra-interpolation-leads-nowhere",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no launch uses a Hydra configuration from the job's files",
)
def hydra_interpolation_leads_nowhere(job: Job) -> Iterator[Verdict]:
    """A value in a Hydra configuration refers to a key that the composed configuration does not have.

    What it checks: Every `${key}` of the composed configuration resolves to a value: the key exists, or the program
    sets it, and the reference is not circular.

    Why it matters: Hydra composes such a configuration without an error. The program stops with
    InterpolationKeyError when it first reads the value, on every rank, after the model was built.

    Example: `lr: ${trainer.learning_rate}` where `trainer` has no `learning_rate`.

    Fix: Correct the key, or set it.

    Known limits: A program that never reads the value, or sets the key before it does, is not affected. Judged only if
    all files of the configuration are in the tree.
    """
    unresolvable = distinct(job.about("config_unresolvable"))
    for claim in unresolvable:
        detail = next(iter(claim.alternatives), ())
        name, why = detail if isinstance(detail, tuple) and len(detail) == 2 else ("the value", "it cannot be resolved")
        yield failed(
            claim.scope.launch or claim.span.path,
            f"{why}: the program stops when it reads `{name}`.",
            at=claim,
            remedy="Correct the key, or set it in the configuration.",
        )
    if unresolvable:
        return
    for claim in distinct(job.about("config_refused")):
        if isinstance(claim.value, Unresolved):
            yield unknown(
                claim.scope.launch or claim.span.path, f"its configuration depends on {claim.value.why}", at=claim
            )
            return
    if any(reference.role == "composed" for reference in job.references):
        yield passed(job.name)
