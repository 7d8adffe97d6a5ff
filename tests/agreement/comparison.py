"""Compares the processes of a plan with the reports of the real processes."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from preflight.commands.plan.job_plan import LaunchPlan, Plan, RankRow
from tests.agreement.jobs.script import GeneratedJob, Launcher, Machines
from tests.cluster import Cluster, needs
from tests.cluster.slurm import needs_slurm, slurm

#: Text of the plan for a value that the files do not determine.
UNDETERMINED = "(open)"


@dataclass(frozen=True)
class Process:
    """One process of a job, as planned or as observed; empty text for values that its launcher, or the plan, does not
    give.
    """

    role: str
    rank: str
    local_rank: str
    world: str
    arguments: tuple[str | None, ...]
    environment: tuple[tuple[str, str], ...]
    node: str = ""
    host: str = ""
    device: str = ""


@dataclass(frozen=True)
class Comparison:
    """How a plan and its processes compare.

    Args:
        processes: the observed processes.
        differences: one line for each value of only one side, which begins with its cause.
        hosts, devices: processes whose host or device the plan states.
    """

    processes: int
    differences: tuple[str, ...]
    hosts: int = 0
    devices: int = 0

    @property
    def cause(self) -> str:
        """The kind of the first difference."""
        return self.differences[0].partition(":")[0] if self.differences else ""


def planned_processes(job: GeneratedJob, plan: Plan) -> list[Process]:
    """The planned processes, in no particular order.

    If there is a launch line for each node and none says which node it is, every line has the rows of all: they are
    counted once if there are as many lines as nodes.
    """
    whole: Counter[tuple[Process, ...]] = Counter()
    found: list[Process] = []
    for launch in (launch for one in plan.jobs for launch in one.launches):
        processes = tuple(_processes(job, launch))
        whole[processes] += 1
        if whole[processes] == 1 or launch.starts_one or whole[processes] > _nodes(launch):
            found += processes
    return found


def _nodes(launch: LaunchPlan) -> int:
    """The number of nodes that a launch spans, by its rows."""
    hosts = {_host(row.host) for row in launch.ranks}
    return max(len({row.node for row in launch.ranks}), len(hosts))


def _processes(job: GeneratedJob, launch: LaunchPlan) -> Iterator[Process]:
    values = {one.name: one.value for one in (*launch.variables, *launch.interfaces)}
    world = launch.world_size.value if launch.world_size is not None else ""
    settings = {one.name: one.value for one in launch.settings}
    node = settings.get("node_rank")

    def process(row: RankRow, rank: str, local: str, of: str) -> Process:
        passed = {name: values[name] for name in values if name not in launch.kept_variables}
        environment = tuple((name, passed.get(name, "(not set)")) for name in sorted(job.exported))
        before = tuple(one.format(local_rank=local) for one in launch.rank_arguments)
        role = "" if row.role == "rank" else row.role
        return Process(role, rank, local, of, (*before, *launch.arguments), environment, row.node, _host(row.host))

    for row in launch.ranks:
        if launch.starts_one:
            rank, _, of = row.ranks.partition(" of ")
            yield process(row, rank, values.get("LOCAL_RANK", ""), of or world)
            continue
        if row.role == "rank" and node is not None and node.isdecimal() and row.node not in ("", node):
            # A launch line of its own starts each node.
            continue
        ranks = _numbers(row.ranks)
        if not ranks:
            yield process(row, UNDETERMINED, "", world)
        local = _numbers(row.local_ranks.partition(" on each")[0])
        devices = _devices(row.devices)
        for number, rank in enumerate(ranks):
            own = str(local[number]) if number < len(local) else ""
            device = devices[number] if len(devices) == len(ranks) else ""
            yield replace(process(row, str(rank), own, world if row.role == "rank" else ""), device=device)


def _numbers(text: str) -> list[int]:
    """The numbers in `0-3`, `5` or `0, 2, 4`; none in `8i to 8i+7`."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if match is None:
            return []
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return found


def _devices(text: str) -> list[str]:
    if not text.startswith("GPU ") or "shared" in text or "fewer" in text:
        return []
    listed = text.removeprefix("GPU ")
    return [str(number) for number in _numbers(listed)] or listed.split(",")


def _host(text: str) -> str:
    """The name of a virtual node, which may be given by its address, with or without a port."""
    name = text.partition(":")[0]
    found = re.fullmatch(r"10\.77\.0\.(\d)", name)
    return f"node{found[1]}" if found else name if name.startswith("node") else ""


def observed_processes(job: GeneratedJob, folder: Path) -> list[Process]:
    """The processes that recorded how they were started, in no particular order."""
    return [_observed_process(job, json.loads(path.read_text())) for path in folder.glob("*.json")]


def _observed_process(job: GeneratedJob, said: Mapping[str, object]) -> Process:
    environment = said["environment"]
    assert isinstance(environment, dict)
    launcher = job.launcher
    rank, local, world = (
        environment.get(name, "") if name else "" for name in (launcher.rank, launcher.local_rank, launcher.world)
    )
    role = ""
    if not rank and not world:
        # A launcher of one process may set no variables: such a process is a world of its own.
        rank, world = "0", "1"
    if "servers" in launcher.name:
        role, rank, world = _role(environment)
    variables = tuple((name, environment.get(name, "(not set)")) for name in sorted(job.exported))
    arguments = said["arguments"]
    assert isinstance(arguments, list)
    host = str(said["host"]) if launcher.where is not Machines.HERE else ""
    device = _device(environment, launcher, local)
    return Process(role, rank, local, world, tuple(arguments), variables, host, host, device)


def _role(environment: Mapping[str, str]) -> tuple[str, str, str]:
    """Role, index and world of a process of Paddle's parameter servers; a server's index is that of its endpoint."""
    if environment.get("TRAINING_ROLE") != "PSERVER":
        return "trainer", environment.get("PADDLE_TRAINER_ID", ""), ""
    listed = environment.get("PADDLE_PSERVERS_IP_PORT_LIST", "").split(",")
    own = f"{environment.get('POD_IP', '127.0.0.1')}:{environment.get('PADDLE_PORT', '')}"
    exact = [number for number, one in enumerate(listed) if one == own]
    alike = [number for number, one in enumerate(listed) if one.endswith(own.partition(":")[2])]
    return "server", str(next(iter((*exact, *alike)), "")), ""


def _device(environment: Mapping[str, str], launcher: Launcher, local: str) -> str:
    """The device that a rank uses: the selected one, or that of its local rank among the visible ones."""
    visible = environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if launcher.name.startswith(("paddle", "fleetrun")):
        # Paddle's launcher gives the position in the list of visible devices.
        selected = environment.get("FLAGS_selected_gpus", "")
        return visible[int(selected)] if selected.isdecimal() and int(selected) < len(visible) else ""
    number = int(local) if local.isdecimal() else 0
    if visible == [""]:
        return local
    return visible[0] if len(visible) == 1 else visible[number] if number < len(visible) else "(none)"


def compare(job: GeneratedJob, plan: Plan, folder: Path) -> Comparison:
    """Compare the plan with the records of the processes.

    Local ranks, hosts and devices are compared if both sides give them; if the plan counts nodes without naming them,
    ranks of one planned node must be on one host, and those of different nodes on different hosts.
    """
    expected, found = planned_processes(job, plan), observed_processes(job, folder)
    if not expected:
        return Comparison(len(found), ("no ranks: the plan has none",))
    if any(process.rank == UNDETERMINED for process in expected):
        return Comparison(len(found), ("open: the plan does not know the ranks", *map(str, expected)))
    if not found:
        return Comparison(0, ("not started: no process wrote anything down",))
    if any(not process.local_rank for process in (*expected, *found)):
        expected, found = ([replace(process, local_rank="") for process in side] for side in (expected, found))
    lines = [*_process_differences(expected, found)]
    if lines:
        return Comparison(len(found), tuple(lines))
    # Both sides have the same processes, so their locations can be compared by rank.
    actual = {(process.role, process.rank): process for process in found}
    pairs = [(process, actual[process.role, process.rank]) for process in expected]
    hosts = [(one, other) for one, other in pairs if one.host and other.host]
    lines += [
        f"host: rank {one.rank} planned on {one.host}, seen on {other.host}"
        for one, other in hosts
        if one.host != other.host
    ]
    if job.launcher.where is not Machines.HERE:
        counted = [(one, other) for one, other in pairs if one.node and not one.host]
        together = {(one.node, other.host) for one, other in counted}
        if not len(together) == len({node for node, _ in together}) == len({host for _, host in together}):
            lines.append(f"node: planned nodes and hosts seen are {sorted(together)}")
        hosts += counted
    devices = [(one, other) for one, other in pairs if one.device and other.device]
    lines += [
        f"device: rank {one.rank} planned on GPU {one.device}, seen on {other.device}"
        for one, other in devices
        if one.device != other.device
    ]
    return Comparison(len(found), tuple(lines), len(hosts), len(devices))


def _process_differences(expected: Sequence[Process], found: Sequence[Process]) -> Iterator[str]:
    """Processes that only one side has; the cause is the first field in which the two sides differ."""
    plain = [[replace(process, node="", host="", device="") for process in side] for side in (expected, found)]
    here, there = Counter(plain[0]), Counter(plain[1])
    if here == there:
        return
    cause = "processes" if len(expected) != len(found) else "ranks"
    for field in ("role", "world", "rank", "local_rank", "arguments", "environment"):
        if Counter(getattr(one, field) for one in plain[0]) != Counter(getattr(one, field) for one in plain[1]):
            cause = field if len(expected) == len(found) else "processes"
            break
    yield from (f"{cause}: planned, not seen: {process}" for process in (here - there).elements())
    yield from (f"{cause}: seen, not planned: {process}" for process in (there - here).elements())


# The machines for generated jobs: this one, or virtual nodes that are started for the first job that needs them.


ROOT = Path(__file__).resolve().parents[2]
_NODES = 4
_DEADLINE_S = 240.0
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Places:
    """The machines of a session; a folder below `root` is the same on all of them."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.root = root
        self._programs = root / "programs"
        self._programs.mkdir()
        self._stack = stack
        self._cluster: Cluster | None = None
        self._has_slurm = False

    def missing(self, launcher: Launcher) -> str:
        """Why the launcher cannot run here; empty if it can."""
        if not self._program(launcher).exists():
            return (
                f"{launcher.program} is not installed{f' in .venv/{launcher.environment}' * bool(launcher.environment)}"
            )
        if launcher.where is not Machines.HERE:
            reasons = [*needs(), *(needs_slurm() if launcher.where is Machines.SLURM else ())]
            return "; ".join(reasons)
        return ""

    def version(self, launcher: Launcher) -> str:
        """The release that the launcher prints."""
        command = [word.replace("{bin}", str(folder_of(launcher))) for word in launcher.version]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout.strip() or "?"

    def output(self, launcher: Launcher, folder: Path, variables: Mapping[str, str]) -> str:
        """The output of the job; all its processes are ended, however it ends."""
        if launcher.where is Machines.HERE:
            return _on_this_machine(launcher, folder, variables)
        head = self.nodes_for(launcher).head
        command = ["bash", "run.sh"]
        if launcher.where is Machines.SLURM:
            command = ["sbatch", "--wait", "--output=batch.out", "--error=batch.out", "run.sh"]
        environment = {"PATH": self.path, **variables}
        try:
            done = head.run(command, env=environment, cwd=str(folder), timeout=_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.close()
            return f"(ended after {_DEADLINE_S:.0f} s)"
        written = folder / "batch.out"
        return done.stdout + done.stderr + (written.read_text(errors="replace") if written.exists() else "")

    @property
    def path(self) -> str:
        """The search path of the virtual nodes, with the launcher's programs first."""
        return f"{self._programs}:{_SYSTEM_PATH}"

    def nodes_for(self, launcher: Launcher) -> Cluster:
        """The virtual nodes, on which only the launcher's own programs come before the system's."""
        self._provide(launcher)
        return self._nodes(launcher)

    def _program(self, launcher: Launcher) -> Path:
        own = folder_of(launcher) / launcher.program
        found = [path / launcher.program for path in map(Path, _SYSTEM_PATH.split(":"))]
        return next((path for path in (own, *found) if path.exists()), own)

    def _provide(self, launcher: Launcher) -> None:
        """Put only the programs of the launcher's environment first on the path of every node."""
        for old in self._programs.iterdir():
            old.unlink()
        for program in folder_of(launcher).iterdir():
            if program.name.startswith(("activate", "Activate")) or not os.access(program, os.X_OK):
                continue
            # A link to an interpreter is another interpreter, without its packages.
            path = self._programs / program.name
            path.write_text(f'#!/bin/sh\nexec {shlex.quote(str(program))} "$@"\n')
            path.chmod(0o755)

    def _nodes(self, launcher: Launcher) -> Cluster:
        if self._cluster is None:
            self._cluster = self._stack.enter_context(Cluster(_NODES, shared=[self.root]))
            for node in self._cluster.nodes:
                node.stop_sshd()
                node.start_sshd({"PATH": f"{self._programs}:{_SYSTEM_PATH}"})
        if launcher.where is Machines.SLURM and not self._has_slurm:
            self._stack.enter_context(slurm(self._cluster, gpus=4))
            self._has_slurm = True
        return self._cluster

    def close(self) -> None:
        """End the nodes with all their processes; the next job that needs nodes gets new ones."""
        self._stack.close()
        self._cluster, self._has_slurm = None, False


@contextmanager
def places() -> Iterator[Places]:
    """The machines of a session, until the end of the block."""
    with tempfile.TemporaryDirectory(prefix="agreement-") as root, ExitStack() as stack:
        yield Places(Path(root), stack)


def folder_of(launcher: Launcher) -> Path:
    """The folder of programs that the launcher is installed in."""
    return ROOT / ".venv" / launcher.environment / "bin" if launcher.environment else Path(sys.executable).parent


def _on_this_machine(launcher: Launcher, folder: Path, variables: Mapping[str, str]) -> str:
    # Variables of the test environment are not part of the job.
    mine = ("TUNE_", "OMP_", "PYTHON", "GIVEN_", "MASTER_", "SLURM_", "CUDA_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(mine)}
    environment |= {"PATH": f"{folder_of(launcher)}:{os.environ['PATH']}", **variables}
    process = subprocess.Popen(
        ["bash", "run.sh"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        return process.communicate(timeout=_DEADLINE_S)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return f"(ended after {_DEADLINE_S:.0f} s)\n{process.communicate()[0]}"
