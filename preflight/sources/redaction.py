"""Takes secrets out of what a source states, wherever the file's own text is quoted."""

from __future__ import annotations

from dataclasses import replace

from preflight.job import Claim, Launch, Note, Reference, Span, Suppression, Unresolved
from preflight.redact import redact, scrub
from preflight.sources.base import Reading


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
