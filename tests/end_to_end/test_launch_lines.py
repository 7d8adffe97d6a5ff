"""`--as-launched --run` with the lines that people write: each real launcher starts the trainer on virtual nodes.

Launchers that only `make test-all` installs are skipped elsewhere. Each line runs twice: all ranks join and train, and
then one of them is killed in the middle of the training, which must be named with its node.
"""

from __future__ import annotations

import importlib.util
import json
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.agreement.comparison import Places, places
from tests.agreement.jobs import LAUNCHERS
from tests.agreement.jobs.script import Launcher, Machines
from tests.cluster import Cluster
from tests.executors.conformance import PATHS
from tests.waiting import until

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]

#: Exported by each script; launchers pass only some variables to other nodes.
EXPORTS = "#!/bin/bash\nexport GLOO_SOCKET_IFNAME=eth0 OMP_NUM_THREADS=1\n"
#: Longer than anything takes on a busy machine.
DEADLINE_S = 400
#: More steps than are finished before a rank is killed.
MANY = ("--steps", "100000")


@dataclass(frozen=True)
class LaunchLine:
    """A script with one launch line.

    Args:
        launcher: the launcher of tests/agreement that installs its programs.
        script: the script after its exports.
        ranks: the host of each rank, in order.
        through: the launcher that the trainer names.
        files: further files of the job.
        program: the training program, which is replaced; most are never read.
        taken: a part of the verdict on standard error.
    """

    launcher: str
    script: str
    ranks: tuple[str, ...]
    through: str
    files: Mapping[str, str] = field(default_factory=dict)
    program: str = 'import torch.distributed as dist\n\ndist.init_process_group("gloo")\n'
    taken: str = "in 1 of 1 launches reported"


def _on_each(line: str, nodes: int = 2) -> str:
    """The line on each node, over ssh, with `{rank}` replaced by the node's number."""
    quoted = [f'ssh node{number + 1} "cd $PWD && {line.format(rank=number)}" &\n' for number in range(nodes)]
    return "".join(quoted) + "wait\n"


_BOTH = "in 2 of 2 launches reported"
_TWO_EACH = ("node1", "node1", "node2", "node2")
_HOSTS = {"hostfile": "node1 slots=2\nnode2 slots=2\n"}
_TORCHRUN = "torchrun --nnodes=2 --nproc_per_node=2 --node_rank={rank} --master_addr=node1 --master_port=29533"
_SPAWN = """\
import os

import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank, size):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", "29617"
    dist.init_process_group("gloo", rank=rank, world_size=size)


if __name__ == "__main__":
    mp.spawn(work, args=(3,), nprocs=3)
"""

LINES = {
    "torchrun on each node": LaunchLine(
        "torchrun over ssh", _on_each(f"{_TORCHRUN} train.py --lr 1"), _TWO_EACH, "torch", taken=_BOTH
    ),
    "torchrun in an if": LaunchLine(
        "torchrun over ssh",
        'if [ -n "$PLAIN" ]; then\n  python -m torch.distributed.launch --nproc_per_node=2 train.py\nelse\n'
        "  torchrun --standalone --nproc_per_node=3 train.py --lr 1\nfi\n",
        ("head",) * 3,
        "torch",
        taken="in 1 of 2 launches reported without an error; launch 1 is in another branch",
    ),
    "torchrun in a case": LaunchLine(
        "torchrun over ssh",
        'case "$SIZE" in\n  big) torchrun --standalone --nproc_per_node=4 train.py ;;\n'
        "  *) torchrun --standalone --nproc_per_node=2 train.py --lr 1 ;;\nesac\n",
        ("head",) * 2,
        "torch",
        taken="in 1 of 2 launches reported without an error; launch 1 is in another branch",
    ),
    "a program that spawns its ranks": LaunchLine(
        "torchrun over ssh", "python train.py --lr 1\n", ("head",) * 3, "torch", program=_SPAWN
    ),
    "deepspeed": LaunchLine(
        "deepspeed with pdsh",
        "deepspeed --hostfile hostfile --master_addr node1 --master_port 29544 train.py --deepspeed_config ds.json\n",
        _TWO_EACH,
        "torch",
        {**_HOSTS, "ds.json": '{"train_batch_size": 8}\n'},
    ),
    "accelerate": LaunchLine(
        "accelerate on nodes",
        _on_each(
            "accelerate launch --multi_gpu --num_machines 2 --num_processes 4 --machine_rank {rank}"
            " --main_process_ip node1 --main_process_port 29555 --same_network train.py --lr 1"
        ),
        _TWO_EACH,
        "torch",
        taken=_BOTH,
    ),
    "horovodrun": LaunchLine(
        "horovodrun on nodes",
        # Horovod's own environment has no torch.
        f"horovodrun --gloo -np 4 -H node1:2,node2:2 --network-interface eth0 {sys.executable} train.py --lr 1\n",
        _TWO_EACH,
        "horovodrun",
    ),
    "paddle 3": LaunchLine(
        "paddle 3 collective on nodes",
        _on_each(
            "python -m paddle.distributed.launch --master 10.77.0.1:29566 --nnodes 2 --rank {rank} --nproc_per_node 2"
            " --log_dir logs{rank} train.py --lr 1"
        ),
        _TWO_EACH,
        "paddle",
        taken=_BOTH,
        program="import paddle\n\npaddle.distributed.init_parallel_env()\n",
    ),
    "paddle 2": LaunchLine(
        "paddle 2 collective on nodes",
        "python -m paddle.distributed.launch --nproc_per_node 2 --log_dir logs train.py --lr 1\n",
        ("head",) * 2,
        "paddle",
        program="import paddle\n\npaddle.distributed.init_parallel_env()\n",
    ),
}


@pytest.fixture(scope="module")
def machines() -> Iterator[Places]:
    with places() as found:
        yield found


@pytest.fixture
def line(request: pytest.FixtureRequest) -> LaunchLine:
    return LINES[request.param]


def prepared(line: LaunchLine, machines: Places, folder: Path) -> Cluster:
    """Write the job, and return the nodes with the launcher's programs; skip if they are missing."""
    launcher: Launcher = LAUNCHERS[line.launcher]
    reason = machines.missing(launcher)
    if reason:
        pytest.skip(reason)
    for name, text in {"job.sh": EXPORTS + line.script, "train.py": line.program, **line.files}.items():
        (folder / name).write_text(text)
    return machines.nodes_for(launcher)


def command(*options: str) -> list[str]:
    words = [sys.executable, "-m", "preflight", "smoke", "job.sh", "--as-launched", "--run", "--trust-job"]
    return [*words, "--wait-deadline", "150", "--deadline", str(DEADLINE_S - 50), *options]


def reports(folder: Path) -> list[dict[str, object]]:
    found = [json.loads(path.read_text()) for path in folder.glob("preflight-smoke/reports/**/rank-*.json")]
    return sorted(found, key=lambda each: int(str(each["rank"])))


@pytest.fixture
def folder(machines: Places) -> Path:
    """A folder that the head and all nodes share."""
    return Path(tempfile.mkdtemp(dir=machines.root))


@pytest.mark.parametrize("line", LINES, indirect=True)
def test_all_ranks_of_the_line_join_and_train(line: LaunchLine, machines: Places, folder: Path) -> None:
    nodes = prepared(line, machines, folder)
    environment = {"PATH": machines.path, "PYTHONPATH": PATHS}
    done = nodes.head.run(command(), env=environment, cwd=str(folder), timeout=DEADLINE_S)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert line.taken in done.stderr, said
    assert f"GO: {len(line.ranks)} ranks" in said + logs(folder) and f"through {line.through}" in said + logs(folder)
    found = reports(folder)
    assert [(each["rank"], each["host"]) for each in found] == list(enumerate(line.ranks)), said
    assert all(each["go"] for each in found)
    for each in found:
        report = each["report"]
        assert isinstance(report, dict)
        assert report["world_size"] == len(line.ranks) and report["steps"] == 10 and report["mismatches"] == []
        assert report["framework"].startswith("paddle" if line.through == "paddle" else "torch")


@pytest.mark.parametrize("line", LINES, indirect=True)
def test_a_killed_rank_of_the_line_is_named(line: LaunchLine, machines: Places, folder: Path) -> None:
    nodes = prepared(line, machines, folder)
    environment = {"PATH": machines.path, "PYTHONPATH": PATHS}
    last = len(line.ranks) - 1
    process = nodes.head.popen(command(*MANY), env=environment, cwd=str(folder))
    try:
        pid = training_process(folder, last, process)
        on = line.ranks[last]
        target = nodes.head if on == "head" else nodes.node(on)
        target.must(["kill", f"-{signal.SIGKILL.value}", str(pid)])
        out, err = process.communicate(timeout=DEADLINE_S)
    except BaseException:
        process.kill_session()
        raise
    assert process.returncode == 1, out + err
    assert f"rank {last} on {on}" in err, out + err


def training_process(folder: Path, rank: int, process: subprocess.Popen[str]) -> int:
    """The process id of the rank, as its node numbers it, once it trains."""

    def training() -> int:
        for path in folder.glob(f"preflight-smoke/reports/*/events-{rank:05d}-*.jsonl"):
            if re.search(r"(DDP|DataParallel) step", path.read_text()):
                return int(path.stem.rpartition("-")[2])
        return 0 if process.poll() is None else -1

    with suppress(TimeoutError):
        if (pid := until(training, within_s=DEADLINE_S)) > 0:
            return pid
    process.kill()
    out, err = process.communicate()
    raise AssertionError(f"rank {rank} never trained\n{out}{err}{logs(folder)}")


def logs(folder: Path) -> str:
    """What ranks printed into the files of their launcher."""
    return "".join(path.read_text(errors="replace") for path in sorted(folder.glob("logs*/*log*")) if path.is_file())


def test_lines_on_several_nodes_use_virtual_nodes() -> None:
    for name, line in LINES.items():
        here = LAUNCHERS[line.launcher].where is Machines.HERE
        assert here <= (set(line.ranks) == {"head"}), name
