"""Shell and sbatch scripts: evaluated abstractly, then read launch by launch. Nothing is executed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from preflight.job import WHOLE_JOB, Launch, Note, NoteKind, Scope, Span
from preflight.lazy.patterns import lazy_pattern
from preflight.sources.base import Reading, SourceFile, Tree
from preflight.sources.comments import suppressions
from preflight.sources.redaction import secrets_of, without_secrets

_SUFFIXES = (
    *(".sh", ".bash", ".ksh", ".zsh", ".sbatch", ".slurm", ".slrm", ".job", ".sub"),
    *(".pbs", ".qsub", ".lsf", ".bsub", ".sge", ".cobalt"),
)
_SHEBANG = lazy_pattern(r"#!\s*\S*(/|\s)(env\s+(-S\s+)?)?(ba|da|z|k)?sh\b")
_HETEROGENEOUS = lazy_pattern(r"^#SBATCH[ \t]+(hetjob|packjob)\b", re.MULTILINE)
_HEAD = 4096
#: Without one of these words nothing is launched: programs that start ranks or containers, batch headers, and
#: settings of how ranks talk to each other, for others to source.
_LAUNCHING = lazy_pattern(
    r"python|torch|deepspeed|ds_ssh|paddle|fleet|accelerate|srun|sbatch|mpi|horovod|\bray\b|composer|lightning|tensorflow"
    r"|llamafactory|axolotl|\b(?:lmf|trl|tune|swift|megatron)[ \t]"
    r"|docker|podman|singularity|apptainer|kubectl|jsrun|aprun|pdsh|^#(?:SBATCH|PBS|BSUB)\s"
    r"|\b(?:NCCL|RCCL|GLOO|UCX|FI|TP_SOCKET|PADDLE|FLAGS|PET)_|TRAINING_ROLE",
    re.MULTILINE,
)
_SCRIPT_NAMES = lazy_pattern(r"[\w.+-]+")


class ShellSource:
    """Reads one shell script with everything it sources, calls and starts."""

    name = "shell"
    roles = ()

    def recognises(self, file: SourceFile) -> bool:
        """Whether this is a shell script, by its name, its first line or its batch header."""
        head = file.text[:_HEAD]
        if file.path.lower().endswith(_SUFFIXES):
            return True
        return bool(_SHEBANG.match(head)) or bool(re.search(r"^#(?:SBATCH|PBS|BSUB|COBALT)\s+-", head, re.MULTILINE))

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """State what the script's header and its launches claim."""
        from preflight.sources.launchers import slurm, slurm_header
        from preflight.sources.launchers.batch_headers import batch_header
        from preflight.sources.launchers.context import exported
        from preflight.sources.launchers.reading import read_commands
        from preflight.sources.launchers.stating import Stating
        from preflight.sources.launchers.steps import state_steps
        from preflight.sources.shell import evaluate, reads, refused

        script = evaluate(file, tree)
        # The parts of a heterogeneous job have counts of their own, which no claim about the whole could state.
        header = {} if _HETEROGENEOUS.search(file.text) else slurm.from_directives(script.directives)
        other = batch_header(file) if not script.directives else None
        scheduler = other.scheduler if other is not None else "slurm"
        if other is not None:
            header = other.asked
        stating = Stating(scheduler, scope)
        slurm.state(stating, header)
        slurm_header.state_header(stating, header, script.directives if header and other is None else ())
        if other is None and (header or (not script.directives and slurm_header.has_directive_like(file.text))):
            slurm_header.state_unread(stating, file)
        batch = bool(script.directives) or other is not None
        launches = read_commands(script.commands, header, tree, batch=batch, scheduler=scheduler)
        steps = state_steps(script.commands, header, file.text) if header and other is None else ()
        exports = () if launches.launches else exported(script.final, scope)
        read = tuple(reads.claims(file, scope)) if header or launches.launches else ()
        reading = Reading(
            claims=(*stating.claims, *launches.claims, *steps, *exports, *read, *refused.claims(file, scope)),
            launches=launches.launches,
            references=(*script.references, *launches.references),
            notes=(*script.notes, *launches.notes, *_carriage_returns(file, launches.launches)),
            suppressions=suppressions(file),
            written=script.written,
        )
        return without_secrets(reading, secrets_of(script.commands))


def startable(files: Iterable[SourceFile]) -> frozenset[str]:
    """The paths of those shell scripts that may come to a launch: by a word of their own, or through another script.

    Evaluating a script costs a hundred times what looking for words does, and most of a repository's scripts build,
    install and clean up.
    """
    texts = {file.path: file.text for file in files}
    found = {path for path, text in texts.items() if _LAUNCHING.search(text)}
    mentions = {path: set(_SCRIPT_NAMES.findall(text)) for path, text in texts.items() if path not in found}
    wanted = {path.rpartition("/")[2] for path in found}
    while wanted:
        more = {path for path, names in mentions.items() if path not in found and names & wanted}
        found |= more
        wanted = {path.rpartition("/")[2] for path in more}
    return frozenset(found)


def _carriage_returns(file: SourceFile, launches: Iterable[Launch]) -> Iterator[Note]:
    """The launch lines of a file saved with Windows line ends; the first says it for all.

    A line with a comment behind the launch is left out: there the carriage return belongs to the comment.
    """
    if "\r" not in file.text:
        return
    lines = file.text.split("\n")
    for span in sorted(launch.span for launch in launches if launch.span.path == file.path):
        line = lines[span.line - 1]
        if not line.endswith("\r") or "#" in line[span.column - 1 :]:
            continue
        yield Note(
            NoteKind.LINE_ENDING,
            "this line ends in a carriage return (Windows line ends), which the shell makes part of its last word",
            Span(file.path, span.line, span.column, span.line, len(line), span.snippet),
        )
        return
