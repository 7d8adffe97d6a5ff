"""Reaches nodes with one mpirun per node, because standard input goes only to rank 0 of each.

Open MPI 4 and 5 (mpirun, prterun) and descendants of Hydra (MPICH, Intel MPI, MVAPICH) are distinguished by the output
of `mpirun --version`. Their messages were recorded from Open MPI 4.1.4 and MPICH 4.0.2.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field

from preflight.agent import bootstrap
from preflight.executors import ssh as nodefiles
from preflight.executors.base import (
    Bundle,
    Executor,
    ExecutorError,
    GatheredNodes,
    NodeRequest,
    Option,
    find_meaning,
    run_tool,
    target_of,
)
from preflight.executors.pipe import PipeChannel, make_nonce, no_python, start_agent
from preflight.executors.ssh import ssh_error
from preflight.model.recording import Node

#: Time limit of `mpirun --version`, which takes seconds on a slow file server.
_VERSION_S = 10.0
#: Hydra ends a rank whose pipe is full (pmodels/mpich#2336). The pipe holds a megabyte; data sent no faster than this
#: is read in time even on a busy node.
_HYDRA_BYTES_PER_S = 4 << 20
_LAUNCHERS = ("mpirun", "mpiexec", "prterun", "mpiexec.hydra")
#: Variables of a launch that this process is part of, or that would insert bytes into the channel.
_FOREIGN_VARIABLES = re.compile(
    r"OMPI_(?:COMM_|UNIVERSE|APP_CTX|FIRST_RANK|FILE_LOCATION|ARGV|COMMAND|NUM_)"
    r"|OMPI_MCA_(?:orte_(?:tag_output|timestamp_output|xml_output|output_filename|ess_|hnp_)|ess|pmix|rmaps_)"
    r"|PRTE_MCA_(?:prte_(?:tag|timestamp|xml|output)|ess|rmaps)|PRTE_|PMIX_(?!MCA)|PMI_|PMI2_|MPI_LOCAL|HYDI_"
    r"|HYDRA_(?:HOST_FILE|PREPEND|PPN)|MPIEXEC_(?:PREFIX|TIMEOUT)|I_MPI_(?:HYDRA_HOST_FILE|PREPEND|PERHOST)"
)
_ADVICE_LINE = re.compile(r"^-{20,}$")
#: Open MPI's warnings about its own helper, which end nothing ("setpgid(64,64) failed in parent with errno=Permission
#: denied(13)", when the child was faster).
_WARNING = re.compile(r"plm:\w+: Warning:")


def _program_problem(value: str) -> str:
    return "" if value and not value.startswith("-") else f"{value!r} is not a program"


def _family_problem(value: str) -> str:
    return "" if value in ("openmpi", "hydra") else f"{value!r} is not a family; expected openmpi or hydra"


@dataclass(slots=True)
class MpiExecutor(Executor):
    """Runs agents by mpirun. `program` and `family` are known after `gather`."""

    settings: Mapping[str, str] = field(default_factory=dict)
    name: str = "mpi"
    _program: str = ""
    _family: str = ""

    options = (
        Option(
            "program", "The mpirun to use, instead of the first on the PATH.", "/opt/mpi/bin/mpirun", _program_problem
        ),
        Option(
            "family", "openmpi or hydra (MPICH, Intel MPI), if --version does not show it.", "hydra", _family_problem
        ),
    )

    def configured(self, settings: Mapping[str, str]) -> MpiExecutor:
        return MpiExecutor(dict(settings))

    def detect(self, environment: Mapping[str, str]) -> str:
        """Return why this process belongs to a job of a batch system that mpirun can enter."""
        is_installed = any(shutil.which(name) for name in _LAUNCHERS)
        return nodefiles.reason(environment) if is_installed else ""

    async def check_usable(self, environment: Mapping[str, str], *, deadline_s: float) -> str:
        """Return the mpirun in use. Raises ExecutorError if there is none, or its MPI is unknown."""
        await self._find()
        return f"{self._program} ({'Open MPI' if self._family == 'openmpi' else 'MPICH, Intel MPI or a relative'})"

    async def gather(self, request: NodeRequest) -> GatheredNodes | None:
        """Return the nodes of the batch system's job; None outside a job, or if the user named the nodes. Raises
        ExecutorError.
        """
        await self._find()
        if request.named_nodes:
            return None
        found = nodefiles.read_nodes(request.environment)
        return GatheredNodes(*found) if found is not None else None

    async def _find(self) -> None:
        """Find the launcher, and determine whether it belongs to Open MPI or the MPICH family."""
        if self._program:
            return
        names = (self.settings["program"],) if "program" in self.settings else _LAUNCHERS
        program = next((path for name in names if (path := shutil.which(name))), "")
        if not program:
            raise ExecutorError(
                "missing", f"{names[0]} was not found on this machine; load MPI's module, or use --on ssh"
            )
        family = self.settings.get("family", "")
        if not family:
            ran = await run_tool([program, "--version"], deadline_s=_VERSION_S)
            family = mpi_family(ran.output + ran.errors)
        if not family:
            raise ExecutorError(
                "missing",
                f"`{program} --version` does not show which MPI this is; set it with --on-option family=openmpi "
                "(or hydra)",
            )
        self._program, self._family = program, family

    async def open(self, node: Node, *, deadline_s: float, bundle: Bundle) -> PipeChannel:
        """Start an agent as the only rank of an mpirun. Raises ExecutorError with the messages of mpirun and ssh."""
        target = target_of(node)
        await self._find()
        nonce = make_nonce()
        try:
            channel = PipeChannel(
                command(self._program, self._family, target, nonce, root=os.geteuid() == 0),
                description=f"{os.path.basename(self._program)} --host {target}",  # noqa: PTH119
                environment=environment_for_rank(os.environ),
                bytes_per_s=_HYDRA_BYTES_PER_S if self._family == "hydra" else 0,
            )
        except OSError as error:
            raise ExecutorError("missing", f"{node.name}: `{self._program}` cannot be run: {error.strerror}") from error
        diagnose = functools.partial(explain, node.name, target, deadline_s=deadline_s)
        await start_agent(channel, node.name, nonce, bundle=bundle, diagnose=diagnose, deadline_s=deadline_s)
        return channel


def mpi_family(version: str) -> str:
    """Return `openmpi` or `hydra`, from the output of `mpirun --version`; empty for any other MPI."""
    for family, pattern in (("openmpi", r"open ?mpi|openrte|prrte|prterun"), ("hydra", r"hydra|intel\(r\) mpi|mpich")):
        if re.search(pattern, version, re.IGNORECASE):
            return family
    return ""


def command(program: str, family: str, target: str, nonce: str, *, root: bool) -> list[str]:
    """Return the mpirun command that starts an agent on a node, not bound, so that it sees all cores."""
    shell = ["/bin/sh", "-c", bootstrap.shell_line(nonce)]
    if family == "hydra":
        return [program, "-n", "1", "-hosts", target, "-bind-to", "none", *shell]
    allowed = ["--allow-run-as-root"] if root else []
    return [program, "-np", "1", "--host", target, "--bind-to", "none", *allowed, *shell]


def environment_for_rank(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of mpirun: this process's own, without variables of another launch."""
    return {name: value for name, value in environment.items() if not _FOREIGN_VARIABLES.match(name)} | {"LC_ALL": "C"}


def explain(node: str, target: str, code: int | None, error_text: str, *, deadline_s: float) -> ExecutorError:
    """Explain a failed mpirun from its `error_text` and its exit `code` (None: still running at the deadline)."""
    error_text = bootstrap.without_mark(error_text)
    lines = [line.strip() for line in error_text.splitlines() if line.strip() and not _WARNING.search(line)]
    understood = (
        no_python(node, lines, code, error_text)
        or _explain_line("mpirun_helper", node, lines, error_text)
        or ssh_error(node, target, lines, error_text)
        or _explain_line("mpirun", node, lines, error_text)
    )
    if understood is not None:
        return understood
    first = next((line for line in lines if not _ADVICE_LINE.match(line)), "")[:300]
    quoted = f' (mpirun said: "{first}")' if first else ""
    if code is None:
        return ExecutorError(
            "timeout",
            f"{node}: no agent within {deadline_s:g} s, waiting for mpirun to start one rank there{quoted}; possible "
            "causes: a frozen sshd, a slow startup file of the login shell, a firewall between the two",
            error_text,
        )
    if any("unable to reliably start one or more daemons" in line for line in lines):
        return ExecutorError("unreachable", f"{node}: mpirun could not start its helper there{quoted}", error_text)
    return ExecutorError("crashed", f"{node}: mpirun ended with exit code {code}{quoted}", error_text)


def _explain_line(table: str, node: str, lines: list[str], error_text: str) -> ExecutorError | None:
    """Return the entry of a table for one of `lines`; None if none matches."""
    # Open MPI lists every possible cause, each after an asterisk.
    found = find_meaning(table, (line for line in lines if not line.startswith("*")))
    if found is None:
        return None
    row, line = found
    return ExecutorError(row.kind, f'{node}: {row.meaning} (mpirun said: "{line}"); {row.remedy}', error_text)


EXECUTOR = MpiExecutor
