"""A healthy smoke run on nodes with four times as many busy processes as processors gives no finding.

`PREFLIGHT_SOAK=50` runs each case so often; without it, once. A busy host may be reported, but no rank may be blamed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.cluster.slurm import Slurm, require_slurm, slurm
from tests.end_to_end.head_command import JOB, SCRIPT, SERVER_JOB, SERVER_SCRIPT, check, give_shards, write_job
from tests.end_to_end.test_healthy_nodes import ROUNDS, busy
from tests.executors.conformance import PATHS

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]


JOBS = {
    "collective": (JOB, SCRIPT),
    "servers-async": (SERVER_JOB, SERVER_SCRIPT),
    "servers-sync": (SERVER_JOB, SERVER_SCRIPT.replace("True", "False")),
}


#: In these cases a real interpreter imports torch on every busy node.
REAL = ("collective",)


OPTIONS = ("--keep-going", "--smoke-deadline", "150", "--select", "SMK")


#: Findings about the machine itself, which is really busy.
OF_THE_MACHINE = {"SYS002"}


@pytest.mark.timeout(180 * ROUNDS)
@pytest.mark.parametrize("kind", JOBS)
def test_healthy_run_on_busy_nodes_blames_no_rank(cluster: Cluster, warm: str, tmp_path: Path, kind: str) -> None:
    give_shards(cluster.nodes)
    job = write_job(tmp_path, *JOBS[kind])
    told: list[str] = []
    times: list[float] = []
    with busy(4 * (os.cpu_count() or 1)):
        for number in range(ROUNDS):
            began = time.monotonic()
            checked = check(cluster, job, *OPTIONS, python=sys.executable if kind in REAL else warm)
            times.append(time.monotonic() - began)
            print(f"{kind}: round {number + 1} of {ROUNDS} took {times[-1]:.0f} s", flush=True)
            told += [
                f"round {number}: {f['id']} {f['message']}"
                for f in checked.report["findings"]
                if f["severity"] != "info" and f["id"] not in OF_THE_MACHINE
            ]
            passed = {o["id"] for o in checked.report["outcomes"] if o["status"] == "pass"}
            if not passed & {"SMK001", "SMK021"}:
                unknown = [o["reason"] for o in checked.report["outcomes"] if o["status"] == "unknown"]
                told.append(f"round {number}: nothing passed; {unknown}")
    print(f"{kind}: {ROUNDS} rounds, each {min(times):.0f} to {max(times):.0f} s", flush=True)
    assert told == []


# `preflight smoke --as-launched --submit` on a cluster with Slurm: the job's own batch script with the trainer.


HEADER = """\
#!/bin/bash
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --mem=1G
#SBATCH --time=10:00
#SBATCH --output={folder}/job-%j.out
export GLOO_SOCKET_IFNAME=eth0 OMP_NUM_THREADS=1
export PATH={folder}:$PATH
"""


@pytest.fixture(scope="module")
def running(cluster: Cluster) -> Iterator[Slurm]:
    require_slurm()
    with slurm(cluster) as started:
        yield started


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that the head and all nodes share; each has its own /tmp."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


def submitted(cluster: Cluster, folder: Path, script: str, *options: str, nodes: int = 2) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of the command for a batch script, from the login node."""
    (folder / "job.sbatch").write_text(HEADER.format(nodes=nodes, folder=folder) + script)
    for name, words in (("python", ""), ("torchrun", "-m torch.distributed.run ")):
        (folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words}"$@"\n')
        (folder / name).chmod(0o755)
    command = [sys.executable, "-m", "preflight", "smoke", "job.sbatch", "--as-launched", "--submit", "--trust-job"]
    done = cluster.head.run([*command, *options], env={"PYTHONPATH": PATHS}, cwd=str(folder), timeout=170)
    return done.returncode, done.stdout, done.stderr


def test_srun_starts_the_ranks_itself(cluster: Cluster, running: Slurm, shared: Path) -> None:
    code, out, err = submitted(cluster, shared, 'ARGS="--lr 1"\nsrun python -u train.py $ARGS --out x\n')
    assert code == 0, out + err
    assert "GO: 2 ranks on 2 hosts connected through srun" in out
    assert "submitted as job" in err and "is running on node[1-2]" in err
    assert "GO: 2 ranks in 1 of 1 launches reported" in err
    found = [json.loads(path.read_text()) for path in shared.glob("preflight-smoke/reports/*/*/rank-*.json")]
    assert sorted((each["rank"], each["host"], each["place"]["master_addr"]) for each in found) == [
        (0, "node1", "node1"),
        (1, "node2", "node1"),
    ]
    assert running.jobs() == []


def test_torchrun_under_srun(cluster: Cluster, running: Slurm, shared: Path) -> None:
    script = (
        'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'
        "srun torchrun --nnodes=2 --nproc_per_node=1 --rdzv_backend=c10d --rdzv_id=$SLURM_JOB_ID \\\n"
        '    --rdzv_endpoint="$MASTER_ADDR:29500" train.py --lr 1\n'
    )
    code, out, err = submitted(cluster, shared, script)
    assert code == 0, out + err
    assert "GO: 2 ranks on 2 hosts connected through torch" in out


def test_rank_that_is_not_started_is_named_and_ends_the_job(cluster: Cluster, running: Slurm, shared: Path) -> None:
    script = "export WORLD_SIZE=3 MASTER_ADDR=node1\nsrun bash -c 'RANK=$SLURM_PROCID python train.py --lr 1'\n"
    code, out, err = submitted(cluster, shared, script, "--wait-deadline", "10")
    assert code == 1, out + err
    assert "ranks [2] did not reach the store within 10 s" in err
    assert running.jobs() == []


def test_a_job_that_does_not_start_is_cancelled(cluster: Cluster, running: Slurm, shared: Path) -> None:
    with running.allocation("-N4", "--exclusive"):
        code, out, err = submitted(cluster, shared, "srun python train.py\n", "--queue-deadline", "2", nodes=4)
        assert code == 3, out + err
        assert "incomplete: it did not start within 2 s" in err
    assert running.jobs() == []
