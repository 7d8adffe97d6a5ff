"""Documents are written as pydantic, which makes their schemas and reads them, would write them."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import TypeAdapter

from preflight import api
from preflight.document import to_bytes
from preflight.recording import Recording
from preflight.report import adapter, to_json
from tests.building import a_recording, job, reached

ROOT = Path(__file__).resolve().parents[1]


def test_a_report_is_written_as_its_schema_says() -> None:
    report = api.lint([ROOT / "examples" / "megatron-slurm" / "broken"], root=ROOT / "examples")
    assert report.findings and report.jobs[0].claims
    assert json.loads(to_json(report)) == json.loads(adapter().dump_json(report))


def test_a_recording_is_written_as_its_schema_says() -> None:
    jobs = api.jobs_in([ROOT / "examples" / "deepspeed-hostfile" / "good"], root=ROOT)
    recording = a_recording(*jobs, job(), verb="check", nodes=reached("a", "b"), stages=("node",))
    assert json.loads(to_bytes(recording, indent=1)) == json.loads(TypeAdapter(Recording).dump_json(recording))


def test_what_utf_8_cannot_hold_is_replaced() -> None:
    assert json.loads(to_bytes({"half": "\ud800"}, indent=1)) == {"half": "?"}
