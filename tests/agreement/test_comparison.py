"""Each kind of injected difference is found; a comparison that finds none would prove nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from preflight.commands.plan.job_plan import JobPlan, LaunchPlan, Place, Plan, RankRow, Setting
from tests.agreement.comparison import compare
from tests.agreement.jobs import LAUNCHERS
from tests.agreement.jobs.script import GeneratedJob

_PLACE = Place("run.sh", 1)
_ROWS = (
    RankRow("rank", "0", "node1", "0-1", "0-1", "GPU 0-1"),
    RankRow("rank", "1", "node2", "2-3", "0-1", "GPU 0-1"),
)


def _plan(**changes: Any) -> Plan:
    launch = LaunchPlan(
        "run.sh:1",
        "deepspeed",
        "train.py",
        _PLACE,
        world_size=Setting("world_size", "4", True, "", _PLACE),
        ranks=_ROWS,
        rank_arguments=("--local_rank={local_rank}",),
        arguments=("--lr", "0.1"),
        variables=(Setting("TUNE_A", "1", True, "", _PLACE),),
    )
    return Plan("0", (JobPlan("job", (), (replace(launch, **changes),)),))


def _write(folder: Path, **changes: Any) -> None:
    for rank in range(4):
        environment = {"RANK": str(rank), "LOCAL_RANK": str(rank % 2), "WORLD_SIZE": "4", "TUNE_A": "1"}
        environment["CUDA_VISIBLE_DEVICES"] = "0,1"
        said = {
            "arguments": [f"--local_rank={rank % 2}", "--lr", "0.1"],
            "environment": environment,
            "host": f"node{rank // 2 + 1}",
        }
        (folder / f"{rank}.json").write_text(json.dumps(said | (changes if rank == 3 else {})))


def _job() -> GeneratedJob:
    return GeneratedJob(LAUNCHERS["deepspeed with pdsh"], exported=("TUNE_A",))


def test_processes_as_planned_agree(tmp_path: Path) -> None:
    _write(tmp_path)
    found = compare(_job(), _plan(), tmp_path)
    assert (found.differences, found.processes, found.hosts, found.devices) == ((), 4, 4, 4)


@pytest.mark.parametrize(
    ("cause", "changes"),
    [
        ("processes", {"ranks": _ROWS[:1]}),
        ("world", {"world_size": Setting("world_size", "5", True, "", _PLACE)}),
        ("arguments", {"arguments": ("--lr", "0.2")}),
        ("arguments", {"rank_arguments": ()}),
        ("environment", {"kept_variables": ("TUNE_A",)}),
        ("environment", {"variables": ()}),
        ("host", {"ranks": (replace(_ROWS[0], host="node2"), replace(_ROWS[1], host="node1"))}),
        ("node", {"ranks": (RankRow("rank", "0", "", "0-3", "0, 1, 0, 1"),)}),
        ("device", {"ranks": (_ROWS[0], replace(_ROWS[1], devices="GPU 1,0"))}),
        ("local_rank", {"ranks": (_ROWS[0], replace(_ROWS[1], local_ranks="1-2"))}),
        ("open", {"ranks": (RankRow("rank", "i", "", "2i to 2i+1", "0-1"),)}),
        ("no ranks", {"ranks": ()}),
    ],
)
def test_a_different_plan_is_found(cause: str, changes: dict[str, Any], tmp_path: Path) -> None:
    _write(tmp_path)
    assert compare(_job(), _plan(**changes), tmp_path).cause == cause


def test_a_process_that_ran_elsewhere_differs(tmp_path: Path) -> None:
    _write(tmp_path, host="node1")
    assert compare(_job(), _plan(), tmp_path).cause == "host"


def test_a_job_that_started_nothing_does_not_agree(tmp_path: Path) -> None:
    assert compare(_job(), _plan(), tmp_path).cause == "not started"
