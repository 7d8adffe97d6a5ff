"""Builders of jobs, rules, checks and recordings, and reports that are validated against the committed schema."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from preflight.engine.report import Report, report_on, to_json
from preflight.executors.base import Executor
from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import (
    WHOLE_JOB,
    Claim,
    InputFile,
    Job,
    Known,
    Launch,
    Plain,
    Relation,
    Scope,
    Span,
    Strength,
    Value,
)
from preflight.model.recording import (
    Configuration,
    EventRecord,
    FactRecord,
    Facts,
    Fleet,
    Node,
    NodeRecord,
    Recording,
    StageRecord,
)
from preflight.model.requests import Request
from preflight.plugins import registry
from preflight.plugins.authoring import Check, Rule, Verdict, check, rule
from preflight.plugins.registry import Broken

DOCS = Path(__file__).parent.parent / "docs"


def span(path: str = "run.sh", line: int = 3, column: int = 5, width: int = 9, snippet: str = "srun --nodes=2") -> Span:
    """A span on one line."""
    return Span(path, line, column, line, column + width, snippet)


def claim(
    quantity: str,
    value: Plain | Value,
    *,
    source: str = "torchrun",
    scope: Scope = WHOLE_JOB,
    strength: Strength = Strength.FLAG,
    relation: Relation = Relation.SETS,
    at: Span | None = None,
) -> Claim:
    """A claim; a plain value becomes `Known`."""
    stated = Known(value) if isinstance(value, str | int | float | bool | tuple | None) else value
    return Claim(quantity, stated, at or span(), f"--{quantity}={value}", source, scope, strength, relation)


def job(*claims: Claim, name: str = "run.sh", **more: Any) -> Job:
    """A job of one file, with a launch of eight ranks."""
    launches = more.pop("launches", (Launch("run.sh:1", "torchrun", span()),))
    world = () if any(one.quantity == "world_size" for one in claims) else (claim("world_size", 8),)
    file = InputFile(name, "shell", "0" * 64, 120)
    return Job(name, files=(file,), launches=launches, claims=(*claims, *world), **more)


def make_rule(
    judge: Callable[[Job], Iterable[Verdict]],
    id: str = "TST001",
    name: str = "",
    *,
    severity: Severity = Severity.ERROR,
    confidence: Confidence = Confidence.HIGH,
    profile: str = "default",
) -> Rule:
    """A rule with this `judge`."""
    decorate = rule(
        id,
        name or f"fault-{id.lower()}",
        severity=severity,
        confidence=confidence,
        profile=profile,
        evidence=("https://example.org/",),
    )
    return decorate(judge)


def make_check(
    judge: Callable[[Job, Fleet, Facts], Iterable[Verdict]],
    id: str = "TST501",
    name: str = "",
    *,
    when: str = "node",
    severity: Severity = Severity.ERROR,
) -> Check:
    """`judge` as a check that requests no facts."""
    decorate = check(
        id,
        name or f"fault-{id.lower()}",
        plan=plan_nothing,
        probes=(),
        cost="nothing",
        when=when,
        severity=severity,
        evidence=("https://example.org/",),
    )
    return decorate(judge)


def plan_nothing(job: Job, fleet: Fleet, facts: Facts) -> Iterable[Request]:
    """The plan of a check that needs no facts."""
    return ()


def seen(node: str, observed: str = "refused") -> Evidence:
    """An observed value of a node."""
    return Evidence("probes.ports:reachable", observed, "connected", node=node)


def reached(*names: str, silent: Sequence[str] = ()) -> tuple[NodeRecord, ...]:
    """Records of nodes that answered, and of `silent` ones that did not."""
    return tuple(
        NodeRecord(Node(name, index), problem="it did not answer within 15 s" if name in silent else "")
        for index, name in enumerate((*names, *silent))
    )


def make_recording(
    *jobs: Job,
    verb: str = "lint",
    configuration: Configuration | None = None,
    nodes: tuple[NodeRecord, ...] = (),
    stages: Sequence[str] = (),
    skipped: Sequence[tuple[str, str]] = (),
    facts: tuple[FactRecord, ...] = (),
    events: tuple[EventRecord, ...] = (),
    interrupted: int = 0,
) -> Recording:
    """A recording of `jobs`; `stages` ran, `skipped` names the others with the reason."""
    return Recording(
        jobs=jobs,
        created="2026-01-02T03:04:05+00:00",
        tool_version="0.1.0",
        configuration=configuration or Configuration(),
        verb=verb,
        executor="ssh" if nodes else "",
        nodes=nodes,
        stages=(
            *(StageRecord(name, 0.0, 1.0) for name in stages),
            *(StageRecord(name, 1.0, 1.0, reason) for name, reason in skipped),
        ),
        facts=facts,
        events=events,
        interrupted=interrupted,
    )


def judged(
    recording: Recording,
    rules: Sequence[Rule] = (),
    checks: Sequence[Check] = (),
    *,
    broken: tuple[Broken, ...] = (),
) -> Report:
    """The report on `recording`, validated against the committed schema."""
    report = report_on(recording, rules, checks, broken=broken)
    assert_follows_schema(to_json(report))
    return report


def assert_follows_schema(document: bytes, name: str = "report") -> dict[str, Any]:
    """Validate a document against its committed schema, and return it."""
    loaded = json.loads(document)
    _validator(name).validate(loaded)
    assert isinstance(loaded, dict)
    return loaded


@functools.cache
def _validator(name: str) -> Any:
    schema = json.loads((DOCS / f"{name}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def add_executor(monkeypatch: pytest.MonkeyPatch, executor: Executor) -> None:
    """Register this executor before all others."""
    loaded = registry.load(registry.EXECUTORS)
    more = loaded._replace(items=(executor, *loaded.items))
    real = registry.load
    monkeypatch.setattr(
        registry, "load", lambda group, *rest: more if group == registry.EXECUTORS else real(group, *rest)
    )
