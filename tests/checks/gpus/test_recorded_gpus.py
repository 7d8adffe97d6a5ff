"""What NVML said about real, healthy GPUs: every value is read, and no check finds anything.

Recorded with the probe on 2026-11-27 from an H100 80GB HBM3 and an H200, each alone in a virtual machine without
NVLink, with driver 580.159.04; the identifiers are changed. All values were those of `nvidia-smi -q`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from preflight.model.findings import Status
from preflight.model.recording import FactRecord
from preflight.model.requests import Request, probe_name
from preflight_checks.gpus.presence import gpu_count
from preflight_checks.probes.gpus import gpus
from tests.checks.check_builders import facts, fleet, job, judge, one
from tests.checks.gpus.test_health import CHECKS

RECORDED = Path(__file__).with_name("recorded")


def recorded(name: str) -> dict[str, Any]:
    """The answer of the probe."""
    found = json.loads((RECORDED / f"{name}.json").read_text())
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("name", ["h100", "h200"])
def test_healthy_gpu_is_found_healthy(name: str) -> None:
    value = recorded(name)
    assert value["gpus"][0]["unread"] == {} and value["driver"] == value["kernel_driver"] == "580.159.04"
    seen = facts(FactRecord(Request(probe_name(gpus), "node0", {}), value))
    asked = job(nodes=1, processes_per_node=1, backend="nccl", accelerator="cuda")
    for check in CHECKS:
        states = {verdict.status for verdict in judge(check, asked, fleet(1), seen)}
        assert states <= {Status.PASS, Status.NOT_APPLICABLE}, check.meta.id
    one(judge(gpu_count, asked, fleet(1), seen), Status.PASS)
