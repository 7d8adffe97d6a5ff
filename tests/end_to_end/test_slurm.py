"""`preflight check` on a cluster with Slurm: inside a batch job, and from the login node."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from preflight import api
from preflight.model.recording_io import load
from tests.cluster import Cluster
from tests.cluster.faults import services as ranks
from tests.cluster.node import wait_until
from tests.cluster.slurm import Slurm, require_slurm, slurm
from tests.end_to_end.head_command import JOB, ROOT, check, give_shards, write_job
from tests.executors.conformance import PATHS
from tests.ports import free_port
from tests.waiting import until

pytestmark = pytest.mark.thorough
SLURM_JOB = """\
#!/bin/bash
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --partition={partition}
#SBATCH --mem=1G
#SBATCH --time={time}
#SBATCH --output=/dev/null
export GLOO_SOCKET_IFNAME=eth0
{before}
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun --nnodes={nodes} --nproc_per_node=1 --rdzv_backend=c10d --rdzv_id=1 \\
    --rdzv_endpoint="$MASTER_ADDR:29500" train.py
"""


@pytest.fixture(scope="module")
def running(cluster: Cluster) -> Iterator[Slurm]:
    """Slurm with a small partition beside that of all nodes."""
    require_slurm()
    give_shards(cluster.nodes)
    partitions = (
        "PartitionName=batch Nodes=ALL Default=YES MaxTime=INFINITE State=UP",
        "PartitionName=two Nodes=node[1-2] MaxTime=60 MaxNodes=2 State=UP",
        "PartitionName=closed Nodes=ALL State=DOWN",
    )
    with slurm(cluster, partitions=partitions) as started:
        yield started


def job_in(folder: Path, *, nodes: int = 4, partition: str = "batch", time: str = "10:00", before: str = "") -> Path:
    """A batch script and its training script."""
    write_job(folder)
    script = folder / "job.sbatch"
    script.write_text(SLURM_JOB.format(nodes=nodes, partition=partition, time=time, before=before))
    (folder / "run.sh").unlink()
    return script


def check_command(script: Path, *options: str) -> list[str]:
    folder = script.parent
    return [
        *(sys.executable, "-m", "preflight", "check", str(script), "--trust-job", "--python", sys.executable),
        *("--save", str(folder / "recording.json"), "--output", f"json:{folder / 'report.json'}", "--output", "text"),
        *options,
    ]


def from_outside(cluster: Cluster, script: Path, *options: str) -> tuple[int, dict[str, object], str]:
    """Run a check on the head, with no allocation around it."""
    command = check_command(script, "--on", "slurm", *options)
    done = cluster.head.run(command, env={"PYTHONPATH": PATHS}, cwd=str(ROOT), timeout=110)
    assert "Traceback" not in done.stderr, done.stderr
    report = json.loads((script.parent / "report.json").read_text())
    return done.returncode, report, done.stdout + done.stderr


@pytest.mark.thorough
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_a_batch_job_checks_its_own_nodes_to_a_verdict(cluster: Cluster, running: Slurm, tmp_path: Path) -> None:
    # The batch script itself runs on the first node, which shares no folder with the head.
    first, folder = cluster.node("node1"), Path("/srv/data/job")
    # However busy this machine is, the ranks get the time to import torch.
    words = " ".join(check_command(folder / "job.sbatch", "--smoke-deadline", "400"))
    # Not a plain `exit`: the parser would skip everything below it.
    ends = f'echo $? >{folder}/code; [ -z "$SLURM_JOB_ID" ] || exit'
    line = f"cd {ROOT} && PYTHONPATH={PATHS} {words} >{folder}/said 2>&1; {ends}"
    script = job_in(tmp_path, before=line)
    for name in ("job.sbatch", "train.py"):
        first.write_text(f"{folder}/{name}", (tmp_path / name).read_text())
    cluster.head.must(["sbatch", "--parsable", "--output=/dev/null", "--chdir=/", str(script)])
    wait_until(lambda: first.path(f"{folder}/code").exists(), 500, "the batch job to end")
    text = first.read_text(f"{folder}/said")
    assert first.read_text(f"{folder}/code").strip() == "0", text
    recording = load(first.path(f"{folder}/recording.json").read_bytes())
    assert recording.executor == "slurm" and recording.origin is not None
    assert recording.origin.source == "executor" and "SLURM_JOB_NODELIST=node[1-4]" in recording.origin.words
    assert [record.host for record in recording.nodes] == [f"node{index}" for index in range(1, 5)]
    report = api.judge(recording)
    assert report.verdict.value == "go", text
    passed = {outcome.id for outcome in report.outcomes if outcome.status.value == "pass"}
    assert {"NOD001", "NOD003", "LNK001", "SMK001", "SMK002"} <= passed


def test_login_node_requests_the_jobs_resources(cluster: Cluster, running: Slurm, tmp_path: Path) -> None:
    code, report, text = from_outside(cluster, job_in(tmp_path, nodes=2, partition="two"), "--until", "node")
    assert code == 0, text
    run = report["run"]
    assert isinstance(run, dict)
    assert "salloc --mem=1G --nodes=2 --ntasks-per-node=1 --partition=two" in run["origin"]["words"]
    assert "2 of 2 nodes responded over slurm: node[1-2]" in text
    assert running.jobs() == []


def test_impossible_request_is_reported_without_nodes(cluster: Cluster, running: Slurm, tmp_path: Path) -> None:
    script = job_in(tmp_path, nodes=3, partition="two", time="3:00:00")
    code, report, text = from_outside(cluster, script, "--until", "node", "--gather-deadline", "2")
    assert code == 1, text
    findings = report["findings"]
    assert isinstance(findings, list)
    assert sorted({f["id"] for f in findings if f["severity"] == "error"}) == ["ALC002", "ALC005", "ALC006"], text
    assert "requests 3 nodes, but partition two allows at most 2" in text
    assert "requests 3:00:00, and partition two allows at most 01:00:00" in text
    assert running.jobs() == []


def test_a_partition_that_is_down_is_named(cluster: Cluster, running: Slurm, tmp_path: Path) -> None:
    script = job_in(tmp_path, nodes=2, partition="closed")
    code, _, text = from_outside(cluster, script, "--until", "node", "--gather-deadline", "2")
    assert code == 1 and "closed is DOWN, so it starts no jobs" in text, text
    assert running.jobs() == []


# An interrupted run still writes its report, and leaves no process behind.


INTERRUPT_JOB = """\
torchrun --nnodes=2 --nproc_per_node=1 --node_rank="$NODE_RANK" --master_addr=127.0.0.1 --master_port={} train.py
"""
#: How long preflight and its processes may take to end.
GONE_WITHIN_S = 5.0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_partial_report_is_written(tmp_path: Path, number: signal.Signals, code: int) -> None:
    (tmp_path / "run.sh").write_text(INTERRUPT_JOB.format(free_port()))
    (tmp_path / "train.py").write_text('import torch.distributed as dist\n\ndist.init_process_group("gloo")\n')
    command = [sys.executable, "-m", "preflight", "check", str(tmp_path / "run.sh"), "--on", "local"]
    # An interpreter that never answers, so the run is still active when the signal is sent.
    sleeper = tmp_path / "sleeper"
    sleeper.write_text("#!/bin/sh\nexec sleep 300\n")
    sleeper.chmod(0o755)
    report = tmp_path / "report.json"
    process = subprocess.Popen(
        [*command, "--python", str(sleeper), "--keep-going", "--output", f"json:{report}"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "checking the nodes" in line:
            break
    below = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    _, errors = process.communicate(timeout=GONE_WITHIN_S + 10)
    assert "Traceback" not in errors
    assert process.returncode == code
    written = json.loads(report.read_text())
    assert written["exit_code"] == code
    assert written["run"]["stages"][-1]["skipped"] == "it was interrupted"
    assert [record["problem"] for record in written["nodes"]] == ["", ""]
    until(lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in below))


# Secrets of nodes are in no output of a check, but differences between them are still found.


OURS, THEIRS, IN_JOB = "s3cret-of-node2", "s3cret-of-the-others", "abcdef0123456789-in-the-job"


def test_secrets_of_nodes_are_compared_and_never_written(cluster: Cluster, tmp_path: Path) -> None:
    give_shards(cluster.nodes)
    job = write_job(tmp_path, f"export WANDB_API_KEY={IN_JOB}\n{JOB}")
    others = [node for node in cluster.nodes if node.name != "node2"]
    with (
        ranks.session_variables(
            *others, PADDLE_ACCESS_KEY=THEIRS, WANDB_API_KEY=THEIRS, UCX_URL=f"http://me:{THEIRS}@a/"
        ),
        ranks.session_variables(cluster.node("node2"), PADDLE_ACCESS_KEY=OURS, WANDB_API_KEY=OURS),
    ):
        checked = check(cluster, job, "--until", "node")
    found = [finding for finding in checked.found("ENV020") if "PADDLE_ACCESS_KEY" in finding["message"]]
    assert [finding["nodes"] for finding in found] == [["node2"]] and "not shown" in found[0]["message"]
    written = "".join((tmp_path / name).read_text() for name in ("recording.json", "report.json")) + checked.text
    for secret in (OURS, THEIRS, IN_JOB):
        assert secret not in written
    seen = [fact.value for fact in checked.recording.facts if fact.request.probe.endswith("environment:environment")]
    hashes = {value["digests"]["PADDLE_ACCESS_KEY"] for value in seen}
    assert len(hashes) == 2, "two values, two hashes: parity is judged by them"
