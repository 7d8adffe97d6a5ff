"""Removes secrets from the claims of a source, wherever they quote the file's own text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from preflight._util.redaction import MIN_LENGTH, hide_secrets, redact, secret_pieces
from preflight._util.secret_names import is_plain, is_secret
from preflight.model.job import (
    Claim,
    Job,
    Launch,
    Note,
    OneOf,
    Reference,
    Span,
    Suppression,
    Unresolved,
    Value,
    alternatives,
)
from preflight.sources.base import Command, Reading

#: Secrets that are hidden; each one is searched for in every text.
_MAX_SECRETS = 40


def secrets_of(commands: Iterable[Command]) -> frozenset[str]:
    """The values of variables with secret-looking names anywhere in a script."""
    found: set[str] = set()
    seen: set[int] = set()
    for command in commands:
        for variables in (command.environment, command.variables):
            if id(variables) in seen:
                continue
            seen.add(id(variables))
            for variable in variables.values():
                if is_secret(variable.name):
                    values = [str(item) for item in alternatives(variable.value) if len(str(item)) >= MIN_LENGTH]
                    found.update(piece for value in values for piece in _hidden(variable.name, value))
    return frozenset(sorted(found)[:_MAX_SECRETS])


def _hidden(name: str, value: str) -> Iterable[str]:
    return () if is_plain(name, value) else secret_pieces(value)


def job_without_secrets(job: Job, secrets: frozenset[str], unsearched: frozenset[str] = frozenset()) -> Job:
    """The same job with all `secrets` hidden, whichever of its files is quoted.

    No line of an `unsearched` file is quoted: not all of its secrets are known.
    """
    cleaner = _Cleaner(tuple(sorted(secrets, key=len, reverse=True)), unsearched)
    return replace(
        job,
        claims=tuple(cleaner.claim(claim) for claim in job.claims),
        launches=tuple(cleaner.launch(launch) for launch in job.launches),
        # References are not followed any more.
        references=tuple(
            replace(cleaner.reference(reference), target=cleaner.text(reference.target)) for reference in job.references
        ),
        notes=tuple(cleaner.note(note) for note in job.notes),
        suppressions=tuple(cleaner.suppression(item) for item in job.suppressions),
    )


def without_secrets(reading: Reading, secrets: frozenset[str] = frozenset()) -> Reading:
    """The same reading with apparent secrets, and all `secrets`, replaced."""
    cleaner = _Cleaner(tuple(sorted(secrets, key=len, reverse=True)))
    return replace(
        reading,
        claims=tuple(cleaner.claim(claim) for claim in reading.claims),
        launches=tuple(cleaner.launch(launch) for launch in reading.launches),
        references=tuple(cleaner.reference(reference) for reference in reading.references),
        notes=tuple(cleaner.note(note) for note in reading.notes),
        suppressions=tuple(cleaner.suppression(item) for item in reading.suppressions),
    )


@dataclass(frozen=True, slots=True)
class _Cleaner:
    secrets: tuple[str, ...]
    unsearched: frozenset[str] = frozenset()

    def text(self, text: str) -> str:
        return hide_secrets(text, self.secrets)

    def span(self, span: Span) -> Span:
        clean = "" if span.path in self.unsearched else self.text(span.snippet)
        return span if clean == span.snippet else replace(span, snippet=clean)

    def value(self, value: Value) -> Value:
        if isinstance(value, Unresolved):
            clean = self.text(value.why)
            return value if clean == value.why else replace(value, why=clean)
        for item in value.values if isinstance(value, OneOf) else (value.value,):
            texts = item if isinstance(item, tuple) else (item,)
            if any(isinstance(text, str) and self.text(text) != text for text in texts):
                return Unresolved("redacted")
        return value

    def claim(self, claim: Claim) -> Claim:
        value, span, spelling = self.value(claim.value), self.span(claim.span), self.text(claim.spelling)
        condition = self.text(claim.condition) if claim.condition else ""
        because = tuple(self.claim(reason) for reason in claim.because) if claim.because else ()
        origin = None if claim.origin is None else self.span(claim.origin)
        clean = (value, span, spelling, condition, because, origin)
        # Nearly every claim is clean, and copying each would cost more than searching.
        if clean == (claim.value, claim.span, claim.spelling, claim.condition, claim.because, claim.origin):
            return claim
        return replace(
            claim, value=value, span=span, spelling=spelling, condition=condition, because=because, origin=origin
        )

    def launch(self, launch: Launch) -> Launch:
        arguments: list[str | None] = []
        option = ""
        for argument in launch.arguments:
            shown = argument
            if argument is not None:
                shown = self.text(redact(option, argument) if option else argument)
            arguments.append(shown)
            is_option = argument is not None and argument.startswith("-") and "=" not in argument
            option = (argument or "") if is_option else ""
        return replace(
            launch,
            span=self.span(launch.span),
            arguments=tuple(arguments),
            program=self.text(launch.program),
            condition=self.text(launch.condition),
        )

    def reference(self, reference: Reference) -> Reference:
        return replace(reference, span=self.span(reference.span))

    def note(self, note: Note) -> Note:
        return replace(note, message=self.text(note.message), span=self.span(note.span))

    def suppression(self, item: Suppression) -> Suppression:
        return replace(item, span=self.span(item.span))
