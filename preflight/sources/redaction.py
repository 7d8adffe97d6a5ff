"""Takes secrets out of what a source states, wherever the file's own text is quoted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from preflight.job import (
    Claim,
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
from preflight.lazy.dataclasses import dataclass
from preflight.redact import HIDDEN, is_secret, redact, scrub
from preflight.sources.base import Command, Reading

#: Shorter values are words such as `on` or `none` that stand everywhere.
_SHORTEST = 6
#: Each one is looked for in every text.
_MOST_SECRETS = 40


def secrets_of(commands: Iterable[Command]) -> frozenset[str]:
    """The values that variables with secret-looking names have anywhere in a script."""
    found: set[str] = set()
    seen: set[int] = set()
    for command in commands:
        for variables in (command.environment, command.variables):
            if id(variables) in seen:
                continue
            seen.add(id(variables))
            for variable in variables.values():
                if is_secret(variable.name):
                    found.update(str(item) for item in alternatives(variable.value) if len(str(item)) >= _SHORTEST)
    return frozenset(sorted(found)[:_MOST_SECRETS])


def without_secrets(reading: Reading, secrets: frozenset[str] = frozenset()) -> Reading:
    """The same reading with what looks like a secret, and every one of `secrets`, replaced."""
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

    def text(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret, HIDDEN)
        return scrub(text)

    def span(self, span: Span) -> Span:
        clean = self.text(span.snippet)
        return span if clean == span.snippet else replace(span, snippet=clean)

    def value(self, value: Value) -> Value:
        if isinstance(value, Unresolved):
            clean = self.text(value.why)
            return value if clean == value.why else Unresolved(clean)
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
        # Nearly every claim is clean, and a copy of each would cost more than looking did.
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
