"""The slots of a hostfile that DeepSpeed uses, and the slots of each host for other launchers."""

from __future__ import annotations

from pathlib import Path

import pytest

from preflight.config.resolve import jobs_in
from preflight.model.job import Job, Known
from preflight.model.job.derive import deepspeed_slots, host_slots

_HOSTS = "node1 slots=3\nnode2 slots=2\nnode3 slots=3\n"


def _job(folder: Path, line: str, hosts: str = _HOSTS) -> Job:
    (folder / "hostfile").write_text(hosts)
    (folder / "train.py").write_text("import torch\n")
    (folder / "run.sh").write_text(f"{line} train.py\n")
    (found,) = jobs_in([folder / "run.sh"], root=folder)
    return found


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", {"node1": (0, 1, 2), "node2": (0, 1), "node3": (0, 1, 2)}),
        # The hostfile gives the order, regardless of the option.
        ("--include node3@node1:2,0", {"node1": (2, 0), "node3": (0, 1, 2)}),
        ("--exclude node2", {"node1": (0, 1, 2), "node3": (0, 1, 2)}),
        ("--exclude node1:0,1@node2:0,1", {"node1": (2,), "node3": (0, 1, 2)}),
        ("--num_nodes 2", {"node1": (0, 1, 2), "node2": (0, 1)}),
        ("--num_nodes=2 --num_gpus=1", {"node1": (0,), "node2": (0,)}),
        ("--include node4", {}),
        ("--include node1:a", {}),
        ("--num_gpus $GPUS", {}),
    ],
)
def test_options_leave_some_slots_of_a_hostfile(
    options: str, expected: dict[str, tuple[int, ...]], tmp_path: Path
) -> None:
    job = _job(tmp_path, f"deepspeed --hostfile hostfile {options}")
    assert deepspeed_slots(job, job.launches[0]) == expected
    if expected and options:
        world = sum(len(own) for own in expected.values())
        assert job.value("world_size", job.launches[0].scope) == Known(world)
        assert job.value("nodes", job.launches[0].scope) == Known(len(expected))


def test_only_deepspeed_has_such_slots(tmp_path: Path) -> None:
    job = _job(tmp_path, "mpirun -hostfile hostfile -np 8 python")
    assert deepspeed_slots(job, job.launches[0]) == {}
    assert host_slots(job, job.launches[0]) == {"node1": 3, "node2": 2, "node3": 3}


def test_hosts_without_slots_have_none(tmp_path: Path) -> None:
    job = _job(tmp_path, "mpirun -hostfile hostfile -np 2 python", "node1\nnode2\n")
    assert host_slots(job, job.launches[0]) == {}
