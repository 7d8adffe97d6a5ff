"""Documents are written exactly as pydantic would write them; it generates their schemas and reads them."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import TypeAdapter

from preflight import api
from preflight._util.json_output import to_bytes
from preflight.config.resolve import jobs_in
from preflight.engine.report import adapter, to_json
from preflight.model.recording import Recording
from tests.builders import job, make_recording, reached

ROOT = Path(__file__).resolve().parents[2]


def test_a_report_follows_its_schema() -> None:
    report = api.lint([ROOT / "examples" / "megatron-slurm" / "broken"], root=ROOT / "examples")
    assert report.findings and report.jobs[0].claims
    assert json.loads(to_json(report)) == json.loads(adapter().dump_json(report))


def test_a_recording_follows_its_schema() -> None:
    jobs = jobs_in([ROOT / "examples" / "deepspeed-hostfile" / "good"], root=ROOT)
    recording = make_recording(*jobs, job(), verb="check", nodes=reached("a", "b"), stages=("node",))
    assert json.loads(to_bytes(recording, indent=1)) == json.loads(TypeAdapter(Recording).dump_json(recording))


def test_characters_that_utf_8_cannot_encode_are_replaced() -> None:
    assert json.loads(to_bytes({"half": "\ud800"}, indent=1)) == {"half": "?"}
