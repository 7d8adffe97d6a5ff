"""Jobs built from claims, and what one rule says of jobs."""

from __future__ import annotations

from collections.abc import Sequence

from preflight.engine.evaluate import outcomes_of
from preflight.model.findings import Outcome
from preflight.model.job import (
    Claim,
    Job,
    Known,
    Launch,
    OneOf,
    Plain,
    Span,
    Unresolved,
    Value,
)
from preflight.model.recording import Configuration, Recording
from preflight.plugins.authoring import Rule

RUN_TIME = Unresolved("something only run time knows")


def at(place: str, snippet: str = "") -> Span:
    """The span of `path:line` or `path:line:column`."""
    path, line, column = (*place.split(":"), "1")[:3]
    return Span(path, int(line), int(column), int(line), int(column) + max(1, len(snippet)), snippet)


def value_of(value: Value | Plain) -> Value:
    """A plain value as known."""
    return value if isinstance(value, (Known, OneOf, Unresolved)) else Known(value)


def launch(place: str, *, condition: str = "") -> Launch:
    """A launch by torchrun whose id is its location."""
    return Launch(place, "torchrun", at(place, "torchrun"), program="train.py", condition=condition)


def claim(quantity: str, value: Value | Plain, place: str, spelling: str = "", *, condition: str = "") -> Claim:
    """A claim of the whole job at `place`; its spelling is `quantity=value` unless given."""
    spelled = spelling or f"{quantity}={value}"
    return Claim(quantity, value_of(value), at(place, spelled), spelled, "torchrun", condition=condition)


def job(*claims: Claim, launches: tuple[Launch, ...] = ()) -> Job:
    """A job of these claims."""
    return Job("job", launches=launches, claims=claims)


def judged(rule: Rule, jobs: Sequence[Job]) -> list[Outcome]:
    """The outcomes of one rule as the engine makes them: severities are lowered if a job is only probable."""
    recording = Recording(
        jobs=tuple(jobs),
        created="2026-01-01T00:00:00+00:00",
        tool_version="0",
        configuration=Configuration(profile="pedantic"),
    )
    return list(outcomes_of(recording, (rule,), ()))
