"""Shell and sbatch scripts: evaluated abstractly, then read launch by launch. Nothing is executed."""

from __future__ import annotations

import re
from dataclasses import replace

from preflight.job import WHOLE_JOB, Claim, Launch, Note, Reference, Scope, Span, Suppression, Unresolved
from preflight.redact import redact, scrub
from preflight.sources.base import Reading, SourceFile, Tree
from preflight.sources.suppressions import suppressions_in

_SUFFIXES = (".sh", ".bash", ".sbatch", ".slurm", ".job", ".slrm", ".sub", ".ksh", ".zsh")
_SHEBANG = re.compile(r"#!\s*\S*(/|\s)(env\s+(-S\s+)?)?(ba|da|z|k)?sh\b")
_HEAD = 4096


class ShellSource:
    """Reads one shell script with everything it sources, calls and starts."""

    name = "shell"
    roles = ()

    def recognises(self, file: SourceFile) -> bool:
        """Whether this is a shell script, by its name, its first line or its `#SBATCH` header."""
        head = file.text[:_HEAD]
        if file.path.lower().endswith(_SUFFIXES):
            return True
        return bool(_SHEBANG.match(head)) or bool(re.search(r"^#SBATCH\s+-", head, re.MULTILINE))

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """State what the script's header and its launches claim."""
        from preflight.sources.launchers import slurm
        from preflight.sources.launchers.reading import read_commands
        from preflight.sources.launchers.stating import Stating
        from preflight.sources.shell import evaluate

        script = evaluate(file, tree)
        header = slurm.from_directives(script.directives)
        stating = Stating("slurm", scope)
        slurm.state(stating, header)
        launches = read_commands(script.commands, header, tree, batch=bool(script.directives))
        reading = Reading(
            claims=(*stating.claims, *launches.claims),
            launches=launches.launches,
            references=(*script.references, *launches.references),
            notes=(*script.notes, *launches.notes),
            suppressions=suppressions_in(file.path, file.text, sign="#"),
        )
        return without_secrets(reading)


def without_secrets(reading: Reading) -> Reading:
    """The same reading with secrets replaced wherever the file's own text is quoted."""
    return replace(
        reading,
        claims=tuple(_claim(claim) for claim in reading.claims),
        launches=tuple(_launch(launch) for launch in reading.launches),
        references=tuple(_reference(reference) for reference in reading.references),
        notes=tuple(_note(note) for note in reading.notes),
        suppressions=tuple(_suppression(item) for item in reading.suppressions),
    )


def _span(span: Span) -> Span:
    clean = scrub(span.snippet)
    return span if clean == span.snippet else replace(span, snippet=clean)


def _claim(claim: Claim) -> Claim:
    value = claim.value
    if isinstance(value, Unresolved) and (clean := scrub(value.why)) != value.why:
        value = Unresolved(clean)
    return replace(
        claim,
        value=value,
        span=_span(claim.span),
        spelling=scrub(claim.spelling),
        because=tuple(_claim(reason) for reason in claim.because),
    )


def _launch(launch: Launch) -> Launch:
    arguments: list[str | None] = []
    option = ""
    for argument in launch.arguments:
        if argument is not None and option:
            arguments.append(redact(option, argument))
        else:
            arguments.append(scrub(argument) if argument is not None else None)
        option = (
            argument if argument is not None and argument.startswith("--") and "=" not in argument else ""
        )
    return replace(launch, span=_span(launch.span), arguments=tuple(arguments))


def _reference(reference: Reference) -> Reference:
    return replace(reference, span=_span(reference.span))


def _note(note: Note) -> Note:
    return replace(note, message=scrub(note.message), span=_span(note.span))


def _suppression(item: Suppression) -> Suppression:
    return replace(item, span=_span(item.span))
