"""Running the preflight command in the head of a virtual cluster, as a person would."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from preflight import api
from preflight.engine.report import Report
from preflight.model.recording import Recording
from preflight.model.recording_io import load
from tests.cluster import Cluster, Node
from tests.cluster.namespace import NodeProcess

ROOT = Path(__file__).resolve().parents[2]
#: A check that takes longer hangs, whatever its own deadlines are.
HARD_LIMIT_S = 290.0

#: The interpreter may have another checkout installed; this one is tested.
THIS_CHECKOUT = {"PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in ("", "checks", "rules"))}

JOB = """\
#!/usr/bin/env bash
export GLOO_SOCKET_IFNAME=eth0
torchrun --nnodes=4 --nproc_per_node=1 --node_rank="$NODE_RANK" \\
    --master_addr=node1 --master_port=29500 \\
    train.py --data-path /srv/data/shards
"""

SCRIPT = """\
import argparse

import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--data-path")
parser.parse_args()
dist.init_process_group("gloo")
"""

#: A job with servers on node1 and node2 and workers on node3 and node4.
SERVER_JOB = """\
#!/usr/bin/env bash
fleetrun --servers=10.77.0.1:6170,10.77.0.2:6170 --workers=10.77.0.3:6171,10.77.0.4:6171 \\
    --http_port=6180 train.py
"""

SERVER_SCRIPT = """\
import paddle
import paddle.distributed.fleet as fleet

paddle.enable_static()
fleet.init(is_collective=False)
strategy = fleet.DistributedStrategy()
strategy.a_sync = True
"""


def write_job(folder: Path, job: str = JOB, script: str = SCRIPT) -> Path:
    """A two-file job in `folder`; returns its start script."""
    (folder / "train.py").write_text(script)
    (folder / "run.sh").write_text(job)
    return folder / "run.sh"


def give_shards(nodes: Sequence[Node], count: int = 4) -> None:
    """Create the same shards on every node, each on its own disk."""
    for node in nodes:
        node.must(["mkdir", "-p", "/srv/data/shards"])
        for index in range(count):
            node.write_text(f"/srv/data/shards/part-{index:05d}", f"shard {index}\n" * 10)


def command(job: Path, *options: str, python: str = sys.executable) -> list[str]:
    """The command line of a check of four nodes that saves its recording beside the job.

    The nodes' interpreter has torch alone, and scripts of the tests import other frameworks, too: PKG005 is ignored
    unless an option names it.
    """
    ignored = () if any("PKG005" in option for option in options) else ("--ignore", "PKG005")
    hosts = () if any(option.startswith("--hosts") for option in options) else ("--hosts", "node[1-4]")
    return [
        *(sys.executable, "-m", "preflight", "check", str(job), *hosts),
        *("--trust-job", "--python", python, "--save", str(job.parent / "recording.json")),
        *("--output", f"json:{job.parent / 'report.json'}", "--output", "text"),
        *ignored,
        *options,
    ]


@contextmanager
def reached_over_management(cluster: Cluster) -> Iterator[None]:
    """While the block runs, ssh goes over the management network, as on clusters with a separate one."""
    config = "/run/home/root/.ssh/config"
    before = cluster.head.read_text(config)
    hosts = "".join(f"Host {node.name}\n  HostName {node.management_address}\n" for node in cluster.nodes)
    cluster.head.write_text(config, hosts + before)
    try:
        yield
    finally:
        cluster.head.write_text(config, before)


@dataclass(frozen=True)
class Checked:
    """The result of a check."""

    code: int
    text: str
    progress: str
    report: dict[str, Any]
    recording: Recording
    judged: Report

    def found(self, id: str) -> list[dict[str, Any]]:
        """The findings of one rule or check."""
        return [finding for finding in self.report["findings"] if finding["id"] == id]

    def only(self, id: str) -> dict[str, Any]:
        """Its only finding."""
        findings = self.found(id)
        assert len(findings) == 1, f"{id}: expected one finding in\n{self.text}\n{self.progress}"
        return findings[0]

    def require_stage(self, name: str) -> None:
        """Check that a stage ran."""
        (stage,) = [stage for stage in self.recording.stages if stage.name == name]
        assert not stage.skipped, f"{name} was skipped: {stage.skipped}\n{self.text}"


def check(
    cluster: Cluster, job: Path, *options: str, python: str = sys.executable, head: WarmHead | None = None
) -> Checked:
    """Run a check in the head, and judge its recording again here, without a cluster."""
    words = command(job, *options, python=python)
    if head is None:
        done = cluster.head.run(words, cwd=str(ROOT), env=THIS_CHECKOUT, timeout=HARD_LIMIT_S)
    else:
        done = head.run(words[words.index("check") :], job.parent / "said", timeout=HARD_LIMIT_S)
    return collect(job, done.returncode, done.stdout, done.stderr)


def collect(job: Path, code: int, text: str, progress: str) -> Checked:
    """Read the output of a check, and compare it with a second judgement of its recording."""
    assert "Traceback" not in progress, progress
    assert (job.parent / "report.json").exists(), f"exit code {code}\n{text}\n{progress}"
    report = json.loads((job.parent / "report.json").read_text())
    recording = load((job.parent / "recording.json").read_bytes())
    judged = api.judge(recording)
    assert judged.verdict.value == report["verdict"]
    assert [finding.fingerprint for finding in judged.findings] == [f["fingerprint"] for f in report["findings"]]
    assert [finding.message for finding in judged.findings] == [f["message"] for f in report["findings"]]
    assert judged.exit_code == report["exit_code"] == code
    return Checked(code, text, progress, report, recording, judged)


# A head with preflight already imported, for tests that run it hundreds of times.
#
# A process on the cluster's head imports everything once, and forks for each command line; the fork behaves like a new
# `python -m preflight`. Imports are half of the work of such a process.


class WarmHead:
    """Runs `preflight` with some arguments on the head of a cluster; `close` ends it."""

    def __init__(self, cluster: Cluster, folder: Path, environment: dict[str, str]) -> None:
        self._folder = str(folder)
        #: It accepts no more commands, for example after a timeout.
        self.closed = False
        command = [sys.executable, "-c", "from tests.end_to_end.head_command import serve; serve()"]
        self._server: NodeProcess = cluster.head.popen(
            command, cwd=self._folder, env=environment, stdin=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def run(self, arguments: Sequence[str], output_path: Path, *, timeout: float) -> subprocess.CompletedProcess[str]:
        """Like `cluster.head.run` of a new process; its output goes through two files beside `output_path`."""
        assert self._server.stdin is not None and self._server.stdout is not None
        files = [f"{output_path}.out", f"{output_path}.err"]
        with suppress(BrokenPipeError):  # Its last output gives the reason.
            self._server.stdin.write(json.dumps({"arguments": [*arguments], "files": files}) + "\n")
            self._server.stdin.flush()
        until = time.monotonic() + timeout
        ready, _, _ = select.select([self._server.stdout], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            self.close()
            raise subprocess.TimeoutExpired([*arguments], timeout)
        answer = self._server.stdout.readline()
        assert answer.startswith("{"), answer + self._server.stdout.read()
        output, errors = (Path(name).read_text(errors="backslashreplace") for name in files)
        return subprocess.CompletedProcess([*arguments], json.loads(answer)["code"], output, errors)

    def close(self) -> None:
        """End it and its command."""
        self.closed = True
        self._server.kill_session()
        self._server.wait(timeout=10)


def serve() -> None:
    """Runs on the head: for each line of arguments, one line with the exit code."""
    from preflight.cli import main
    from preflight.plugins import registry

    for group in (registry.RULES, registry.CHECKS, registry.SOURCES, registry.EXECUTORS, registry.REPORTERS):
        registry.load(group)
    # Like a new process, it does not import from its working directory.
    sys.path[:] = [place for place in sys.path if place]
    judged = False
    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if not pid:
            _become(asked["arguments"], asked["files"], main.run)
        _, status = os.waitpid(pid, 0)
        print(json.dumps({"code": os.waitstatus_to_exitcode(status)}), flush=True)
        if not judged:
            judged = _judge(asked["arguments"])


def _become(arguments: list[str], files: list[str], run: object) -> None:
    code = 70
    try:
        nothing = os.open(os.devnull, os.O_RDONLY)
        outputs = [os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600) for name in files]
        for there, here in zip((nothing, *outputs), (0, 1, 2), strict=True):
            os.dup2(there, here)
            os.close(there)
        assert callable(run)
        code = run(arguments)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _judge(arguments: list[str]) -> bool:
    """Judge the recording here too, so that later forks inherit its validators."""
    from preflight import api
    from preflight.model.recording_io import load

    saved = Path(arguments[arguments.index("--save") + 1])
    if not saved.exists():
        return False
    api.judge(load(saved.read_bytes()))
    return True
