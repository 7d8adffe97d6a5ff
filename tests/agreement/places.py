"""The machines for generated jobs: this one, or virtual nodes that are started for the first job that needs them."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.agreement.jobs.launcher import Launcher, Machines
from tests.cluster import Cluster, needs
from tests.cluster.slurm import needs_slurm, slurm

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
