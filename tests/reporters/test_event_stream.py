"""Targets of events; the last line is the verdict, however a run ends."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from preflight import api
from preflight._util.json_output import to_bytes
from preflight._util.usage_error import UsageError
from preflight.cli import main
from preflight.engine.report import Report
from preflight.model.progress import Step
from preflight.reporters import events
from preflight.reporters.events import Event, EventBuilder, open_event_stream
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
    for document in lines([event for step in steps for event in known.step_events(step)]):
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
    found = lines([event for done in range(500) for event in told.step_events(Step("node", done, 500, names, 3.14159))])
    assert found[0]["state"] == "began" and {event["state"] for event in found[1:]} == {"going-on"}
    assert 3 < len(found) < 100
    assert (found[1]["waiting"], len(found[1]["waiting_for"]), found[1]["deadline_s"]) == (100, 16, 3.142)


def test_findings_undecided_checks_and_verdict_match_the_report() -> None:
    report = everything()
    told = event_builder()
    found = lines([told.began("check", "0.1.0"), *told.report_events(report), told.verdict(report)])
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
        found = lines([*told.report_events(report), told.verdict(report)])
        assert len(found) == len(report.findings) + len(report.suppressed) + len(report.coverage.unknown_outcomes) + 1


def test_the_committed_schema_is_the_generated_one() -> None:
    committed = (DOCS / "events.schema.json").read_text()
    generated = json.dumps(events.schema(), indent=2, sort_keys=True) + "\n"
    assert committed == generated, "the schema changed: run `make schema`, and look whether it only grew"


# Targets of events; the last line is the verdict, however a run ends.


SCRIPT = "#!/bin/bash\nsrun --nodes=2 torchrun --nnodes=4 --rdzv_endpoint=localhost:29500 train.py\n"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a job that has faults."""
    (tmp_path / "run.sh").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(path: Path) -> list[dict[str, Any]]:
    """Every line of a stream."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_file_has_the_events_from_start_to_verdict(tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = main.run(["lint", "run.sh", "--events", "events.jsonl", "-o", "json:report.json"])
    found = read(tree / "events.jsonl")
    report = json.loads((tree / "report.json").read_text())
    assert (found[0]["type"], found[0]["verb"], found[-1]["type"]) == ("run-began", "lint", "verdict")
    assert [one["finding"] for one in found if one["type"] == "finding"] == report["findings"]
    assert (found[-1]["verdict"], found[-1]["exit_code"]) == (report["verdict"], code)
    assert "NO-GO" in capfd.readouterr().err


def test_standard_output_has_only_events(tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = main.run(["lint", "run.sh", "--events", "-", "-o", "text:report.txt"])
    found = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert found[-1]["exit_code"] == code == 1
    assert "NO-GO" in (tree / "report.txt").read_text()
    assert main.run(["lint", "run.sh", "--events", "-"]) == 1
    assert all(json.loads(line) for line in capfd.readouterr().out.splitlines())


def test_a_descriptor_is_written_and_left_open(tree: Path) -> None:
    with (tree / "events.jsonl").open("wb") as stream:
        assert main.run(["lint", "run.sh", "--events", f"fd:{stream.fileno()}", "-o", "text:report.txt"]) == 1
        stream.write(b"{}\n")
    found = read(tree / "events.jsonl")
    assert found[-2]["type"] == "verdict" and found[-1] == {}


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("no/such/folder.jsonl", "cannot write: No such file or directory"),
        (".", "cannot write: Is a directory"),
        ("fd:x", "expected a number after fd:"),
        ("fd:987", "this descriptor is not open"),
    ],
)
def test_an_unwritable_target_is_rejected_immediately(
    tree: Path, target: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["lint", "run.sh", "--events", target]) == 2
    assert said in capfd.readouterr().err


def test_standard_output_takes_events_or_a_report(tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["lint", "run.sh", "--events", "-", "-o", "text"]) == 2
    assert "--events - uses standard output" in capfd.readouterr().err


def test_each_line_is_flushed_before_the_run_continues(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    lines: list[dict[str, Any]] = []
    with open_event_stream(str(tmp_path / "pipe"), "check") as stream, (tmp_path / "pipe").open() as reader:
        lines.append(json.loads(reader.readline()))
        stream(Step("node", note="a: slow"))
        lines.extend(json.loads(reader.readline()) for _ in range(2))
    assert [line["type"] for line in lines] == ["run-began", "stage", "note"]


def test_a_stuck_reader_does_not_block_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_DRAIN_TIMEOUT_S", 0.05)
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        with open_event_stream(str(tmp_path / "pipe"), "check") as stream:
            for number in range(5_000):
                stream(Step("node", note=f"note {number}"))
    finally:
        os.close(reader)


def test_a_closed_stream_does_not_end_the_run(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with open_event_stream(f"fd:{writing}", "check") as stream:
        os.close(writing)
        os.close(reading)
        for number in range(100):
            stream(Step("node", note=f"note {number}"))


@pytest.mark.parametrize(
    ("error", "exit_code", "reason"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (UsageError("run.sh does not exist"), 2, "run.sh does not exist"),
        (RuntimeError("out of cheese"), 5, "RuntimeError: out of cheese"),
    ],
)
def test_the_last_line_is_the_verdict_even_without_a_report(
    tmp_path: Path, error: BaseException, exit_code: int, reason: str
) -> None:
    with pytest.raises(type(error)), open_event_stream(str(tmp_path / "events.jsonl"), "check"):
        raise error
    last = read(tmp_path / "events.jsonl")[-1]
    assert (last["type"], last["verdict"], last["exit_code"], last["reason"]) == (
        "verdict",
        "incomplete",
        exit_code,
        reason,
    )


def test_a_bug_has_a_report_and_a_verdict(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lint(*_: object, **__: object) -> None:
        raise RuntimeError("out of cheese")

    monkeypatch.setattr(api, "lint", lint)
    assert main.run(["lint", "run.sh", "--events", "events.jsonl"]) == 5
    last = read(tree / "events.jsonl")[-1]
    assert (last["verdict"], last["exit_code"], last["reason"]) == ("incomplete", 5, "")


def test_a_report_that_cannot_be_written_ends_with_the_exit_code_of_the_command(tree: Path) -> None:
    (tree / "held").mkdir()
    code = main.run(["lint", "run.sh", "--events", "events.jsonl", "-o", "json:/dev/full"])
    assert (code, read(tree / "events.jsonl")[-1]["exit_code"]) == (2, 2)
