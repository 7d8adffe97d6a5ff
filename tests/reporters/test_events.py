"""Events during a run: the events of each step, and that they follow the published schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from preflight._util.json_output import to_bytes
from preflight.engine.report import Report
from preflight.model.progress import Step
from preflight.reporters import events
from preflight.reporters.events import Event, EventBuilder
from tests.builders import DOCS, assert_follows_schema
from tests.reporters.full_report import everything
from tests.reporters.generated import reports


def lines(told: Sequence[Event]) -> list[dict[str, Any]]:
    """The events as readers get them, each validated against the committed schema, without common fields."""
    found = []
    for event in told:
        data = to_bytes(event, indent=None)
        assert data.count(b"\n") == 1 and data.endswith(b"\n")
        document = assert_follows_schema(data, "events")
        assert document.pop("schema_version") == 1
        assert document.pop("time").startswith("2026-01-02T03:04:05") and document.pop("elapsed_s") >= 0
        found.append(document)
    return found


def event_builder(clock: Callable[[], float] = lambda: 0.0) -> EventBuilder:
    """A builder with a fixed time."""
    return EventBuilder(wall=lambda: 1767323045.0, clock=clock)


def of_steps(*steps: Step, clock: Callable[[], float] = lambda: 0.0) -> list[tuple[object, ...]]:
    """The events of these steps, in short form."""
    known = event_builder(clock)
    short = []
    for document in lines([event for step in steps for event in known.of_step(step)]):
        names = ("type", "stage", "state", "node", "problem", "text", "party", "phase", "reason")
        short.append(tuple(document[name] for name in names if document.get(name)))
    return short


def test_a_stage_is_planned_begins_and_ends() -> None:
    assert of_steps(
        Step("gather", planned=("gather", "open", "node")),
        Step("open", 0, 2, ("a", "b"), 8.0),
        Step("open", 1, 2, ("b",), 7.0),
        Step("open", 2, 2, (), 6.0, "b: no route to host"),
        Step("open", ended=True),
        Step("node", ended=True, skipped="no node could be reached"),
    ) == [
        ("stage", "gather", "planned"),
        ("stage", "open", "planned"),
        ("stage", "node", "planned"),
        ("stage", "open", "began"),
        ("node", "a"),
        ("node", "b", "no route to host"),
        ("stage", "open", "ended"),
        ("stage", "node", "skipped", "no node could be reached"),
    ]


def test_notes_and_phases_are_sent_immediately() -> None:
    assert of_steps(
        Step("gather", note="waiting for Slurm; TOKEN=hf_abcdefghijklmnopqrstuv"),
        Step("smoke", party="rank 3", node="n2"),
        Step("smoke", party="rank 3", node="n2", phase="first step"),
        Step("smoke", party="rank 3", node="n2", phase="first step"),
        Step("smoke", party="rank 3"),
    ) == [
        ("stage", "gather", "began"),
        ("note", "gather", "waiting for Slurm; TOKEN=****"),
        ("stage", "smoke", "began"),
        ("phase", "n2", "rank 3"),
        ("phase", "n2", "rank 3", "first step"),
        ("phase", "rank 3"),
    ]


def test_progress_is_sent_periodically_with_few_names() -> None:
    now = iter(n / 100 for n in range(100_000))
    names = tuple(f"n{number}" for number in range(100))
    told = event_builder(lambda: next(now))
    found = lines([event for done in range(500) for event in told.of_step(Step("node", done, 500, names, 3.14159))])
    assert found[0]["state"] == "began" and {event["state"] for event in found[1:]} == {"going-on"}
    assert 3 < len(found) < 100
    assert (found[1]["waiting"], len(found[1]["waiting_for"]), found[1]["deadline_s"]) == (100, 16, 3.142)


def test_findings_undecided_checks_and_verdict_match_the_report() -> None:
    report = everything()
    told = event_builder()
    found = lines([told.began("check", "0.1.0"), *told.of_report(report), told.verdict(report)])
    assert found[0] == {"type": "run-began", "verb": "check", "version": "0.1.0"}
    assert [event["outcome"]["subject"] for event in found if event["type"] == "outcome"] == ["GPUs of node3", "RDMA"]
    findings = [event["finding"] for event in found if event["type"] == "finding"]
    assert [(one["id"], one["suppressed_by"]) for one in findings] == [
        ("TST001", ""),
        ("TST501", ""),
        ("TST002", "comment"),
    ]
    assert found[-1] == {
        "type": "verdict",
        "verdict": "no-go",
        "exit_code": 1,
        "errors": 1,
        "warnings": 1,
        "infos": 0,
        "suppressed": 1,
        "undecided": 1,
        "reason": "",
    }


@pytest.mark.parametrize("part", range(4))
def test_every_line_about_a_hundred_reports_follows_the_schema(part: int) -> None:
    for one in reports()[part::4]:
        report: Report = replace(one)
        told = event_builder()
        found = lines([*told.of_report(report), told.verdict(report)])
        assert len(found) == len(report.findings) + len(report.suppressed) + len(report.coverage.unknown_outcomes) + 1


def test_the_committed_schema_is_the_generated_one() -> None:
    committed = (DOCS / "events.schema.json").read_text()
    generated = json.dumps(events.schema(), indent=2, sort_keys=True) + "\n"
    assert committed == generated, "the schema changed: run `make schema`, and look whether it only grew"
