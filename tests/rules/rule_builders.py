"""Jobs built from claims, for rules whose cases are easier to write as claims than as files."""

from __future__ import annotations

from collections.abc import Sequence

from preflight.engine.evaluate import outcomes_of
from preflight.model.findings import Outcome, Status
from preflight.model.job import (
    WHOLE_JOB,
    Claim,
    InputFile,
    Job,
    Known,
    Launch,
    Note,
    OneOf,
    Plain,
    Reference,
    Relation,
    Scope,
    Span,
    Strength,
    Unresolved,
    Value,
)
from preflight.model.recording import Configuration, Recording
from preflight.plugins.authoring import Rule, Verdict

RUN_TIME = Unresolved("something only run time knows")


def at(place: str, snippet: str = "") -> Span:
    """The span of `path:line` or `path:line:column`."""
    path, line, column = (*place.split(":"), "1")[:3]
    return Span(path, int(line), int(column), int(line), int(column) + max(1, len(snippet)), snippet)


def value_of(value: Value | Plain) -> Value:
    """A plain value as known."""
    return value if isinstance(value, (Known, OneOf, Unresolved)) else Known(value)


def launch(
    place: str,
    launcher: str = "torchrun",
    *,
    wrappers: tuple[str, ...] = (),
    program: str = "train.py",
    arguments: tuple[str | None, ...] = (),
    condition: str = "",
) -> Launch:
    """A launch whose id is its location."""
    return Launch(place, launcher, at(place, launcher), wrappers, program, arguments, condition)


def claim(
    quantity: str,
    value: Value | Plain,
    place: str,
    spelling: str = "",
    *,
    source: str = "torchrun",
    scope: Scope | Launch = WHOLE_JOB,
    strength: Strength = Strength.FLAG,
    relation: Relation = Relation.SETS,
    condition: str = "",
    because: tuple[Claim, ...] = (),
) -> Claim:
    """A claim at `place`; its spelling is `quantity=value` unless given."""
    spelled = spelling or f"{quantity}={value}"
    return Claim(
        quantity,
        value_of(value),
        at(place, spelled),
        spelled,
        source,
        scope.scope if isinstance(scope, Launch) else scope,
        strength,
        relation,
        condition,
        because,
    )


def needs(quantity: str, value: Value | Plain, place: str, spelling: str = "", **more: object) -> Claim:
    """A claim that requires another place to set its value."""
    return claim(quantity, value, place, spelling, relation=Relation.REQUIRES, **more)  # type: ignore[arg-type]


def granted(quantity: str, value: Value | Plain, place: str, spelling: str = "") -> Claim:
    """A claim of the whole job that Slurm grants."""
    return claim(quantity, value, place, spelling, source="slurm", strength=Strength.SCHEDULER)


def exported(name: str, value: Value | Plain, place: str, *, scope: Scope | Launch = WHOLE_JOB) -> Claim:
    """An exported variable of the ranks."""
    spelled = f"export {name}={value}"
    return claim(f"env.{name}", value, place, spelled, source="shell", scope=scope, strength=Strength.ENVIRONMENT)


def job(
    *claims: Claim,
    launches: tuple[Launch, ...] = (),
    notes: tuple[Note, ...] = (),
    references: tuple[Reference, ...] = (),
    files: tuple[tuple[str, str], ...] = (),
) -> Job:
    """A job of these claims; `files` are pairs of path and kind."""
    inputs = tuple(InputFile(path, kind, "0" * 64, 1) for path, kind in files)
    return Job("job", files=inputs, launches=launches, claims=claims, notes=notes, references=references)


def verdicts(rule: Rule, subject: Job, status: Status) -> list[Verdict]:
    """The verdicts of the rule with this status."""
    return [verdict for verdict in rule.judge(subject) if verdict.status is status]


def places(rule: Rule, subject: Job) -> list[str]:
    """`path:line` of the primary location of every finding."""
    return [f"{v.locations[0].path}:{v.locations[0].line}" for v in verdicts(rule, subject, Status.FAIL)]


def judged(rule: Rule, jobs: Sequence[Job]) -> list[Outcome]:
    """The outcomes of one rule as the engine makes them: severities are lowered if a job is only probable."""
    recording = Recording(
        jobs=tuple(jobs),
        created="2026-01-01T00:00:00+00:00",
        tool_version="0",
        configuration=Configuration(profile="pedantic"),
    )
    return list(outcomes_of(recording, (rule,), ()))
