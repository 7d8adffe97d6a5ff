"""Files that could not be read as what they are."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Job, Note, NoteKind
from preflight.judgement import Verdict, command, failed, not_applicable, passed, rule, unknown
from preflight.outcome import Severity
from preflight_rules.sizes.batch_sizes import uses_hugging_face

_UNREADABLE = frozenset({NoteKind.UNREADABLE, NoteKind.TOO_LARGE, NoteKind.MISSING, NoteKind.OUTSIDE, NoteKind.CRASHED})


@rule(
    "FIL001",
    "input-unreadable",
    severity=Severity.WARNING,
    profile="gate",
    evidence=("https://docs.python.org/3/library/io.html#text-i-o", "deepspeedai/DeepSpeed#1481"),
)
def input_unreadable(job: Job) -> Iterator[Verdict]:
    """A file of the job could not be read.

    What it checks:
        Every file that was named on the command line or that a file of the job refers to could be read: it is
        there, lies inside the root, is a regular file, is below the size limit, and its reader did not crash.

    Why it matters:
        What cannot be read cannot be judged. If you named the file yourself, silence about it would look like
        a pass, so the verdict is then incomplete.

    Example:
        `preflight lint train.sbatch` where `train.sbatch` is a broken symbolic link.

    Fix:
        Correct the path, make the file readable, or leave it out of the selection.

    Known limits:
        A file that a job's file refers to and that is not there may be made at run time: it is listed as
        coverage and changes nothing. One that is there and cannot be read is a warning; one that was selected
        and cannot be read is unknown and makes the verdict incomplete.

    Evidence:
        deepspeedai/DeepSpeed#1481: the launcher could not read the hostfile and silently ran locally.
    """
    met = False
    for note in job.notes:
        if note.kind is NoteKind.UNREADABLE and not note.required:
            met = True
            yield failed(
                note.span.path,
                note.message,
                at=note,
                remedy="Correct the path or make the file readable; nothing that stands in it was judged.",
            )
        elif note.kind in _UNREADABLE:
            met = True
            yield unknown(note.span.path, note.message, required=note.required, at=note)
    broken = {note.span.path for note in job.notes if note.kind in _UNREADABLE}
    for file in job.files:
        if file.path not in broken:
            met = True
            yield passed(file.path)
    if not met:
        yield not_applicable(job.name, "the job has no files")


#: What Python's parser says of indentation that no version of the language takes.
_OF_EVERY_VERSION = ("unexpected indent", "expected an indented block")


@rule(
    "FIL002",
    "input-malformed",
    severity=Severity.ERROR,
    profile="gate",
    evidence=("https://www.deepspeed.ai/docs/config-json/", "hiyouga/LlamaFactory#1116", "NeuSpeech/EEG-To-Text#2"),
)
def input_malformed(job: Job) -> Iterator[Verdict]:
    """A file of the job breaks the grammar that its reader expects.

    What it checks:
        Every JSON configuration and hostfile that a launch uses, and every script, parses as what it is. No line
        that starts ranks ends in a carriage return, as in a shell script saved with Windows line ends.

    Why it matters:
        DeepSpeed and the launchers read these files when the job has already been queued and started, and stop
        at the first character they cannot read. A shell keeps the carriage return as part of the last word, so that
        the program's name or its last argument is wrong, and a backslash before it continues no line.

    Example:
        A `ds_config.json` with a missing comma, or a hostfile line `worker-1 slots=eight`.

    Fix:
        Correct the file at the place the finding points at; line ends with `dos2unix` or `sed -i 's/\\r$//'`.

    Known limits:
        DeepSpeed's own reader forgives a missing comma at the end of a line, comments and single quotes; that is an
        error only where Hugging Face's trainer reads the file. A template (Jinja, Helm, `${VAR}`) is filled in
        before use: it is unknown, not faulty. A shell or Python file that could be read only in part is unknown,
        because preflight's own grammar may be the one that is behind; a script that a launch starts gets a warning
        where its indentation is wrong in every version of Python. Windows line ends are only reported where a
        launch line has one and no comment behind it; a checkout that git converted is reported as it lies there.

    Evidence:
        NeuSpeech/EEG-To-Text#2 (carriage returns break the launch line);
        DeepSpeed configuration reference; hiyouga/LlamaFactory#1116 (a value of the wrong type stops the run).
    """
    broken: set[str] = set()
    for note in job.notes:
        if note.kind in (NoteKind.TEMPLATE, NoteKind.UNSUPPORTED):
            broken.add(note.span.path)
            yield unknown(note.span.path, note.message, at=note)
        elif note.kind is NoteKind.MALFORMED:
            broken.add(note.span.path)
            yield _malformed(job, note)
        elif note.kind is NoteKind.LINE_ENDING:
            broken.add(note.span.path)
            yield failed(
                note.span.path,
                f"{note.span.path}:{note.span.line}: {note.message}.",
                at=note.span,
                remedy=f"Save it with Unix line ends: `dos2unix {note.span.path}` or"
                f" `sed -i 's/\\r$//' {note.span.path}`.",
                run=(command("sed", "-i", r"s/\r$//", note.span.path),),
            )
    for file in job.files:
        if file.path not in broken:
            yield passed(file.path)


def _malformed(job: Job, note: Note) -> Verdict:
    kind = next((file.kind for file in job.files if file.path == note.span.path), "")
    roles = {reference.role for reference in job.references if reference.target == note.span.path}
    if kind == "python" and "script" in roles and any(fault in note.message for fault in _OF_EVERY_VERSION):
        return failed(
            note.span.path,
            f"{note.message}.",
            at=note.span,
            remedy=f"Correct the indentation in {note.span.path} at this place; Python stops there in every rank.",
            severity=Severity.WARNING,
        )
    if kind not in ("deepspeed", "hostfile"):
        return unknown(note.span.path, note.message, required=note.required, at=note)
    # What DeepSpeed's own reader (hjson) takes, json.load in Hugging Face's trainer does not.
    strict = any(uses_hugging_face(job, launch, launch.scope) for launch in job.launches)
    certain = bool(roles & {"config", "hostfile"}) and (strict or "accepts it" not in note.message)
    return failed(
        note.span.path,
        note.message,
        at=note,
        remedy=f"Correct {note.span.path} at this place; nothing that follows from it was judged.",
        severity=None if certain else Severity.WARNING,
    )
