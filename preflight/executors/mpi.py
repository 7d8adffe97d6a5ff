"""Nodes reached by mpirun, one for each: what it reads on standard input goes to rank 0 only, so each agent is one.

Open MPI 4 and 5 (mpirun, prterun) and what descends from Hydra (MPICH, Intel MPI, MVAPICH) are told apart by what
`mpirun --version` says. Their words were recorded from Open MPI 4.1.4 and MPICH 4.0.2.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import field

from preflight.executors import nodefiles
from preflight.executors.base import Bundle, ExecutorError, Gathered, Option, Wanted
from preflight.executors.pipe import PipeChannel, new_nonce, start_agent
from preflight.executors.ssh import said_by_ssh
from preflight.executors.tool import run_tool
from preflight.job.hostname import is_hostname
from preflight.lazy.dataclasses import dataclass
from preflight.lazy.patterns import lazy_pattern
from preflight.node import bootstrap
from preflight.recording import Node

#: How long `mpirun --version` may take; on a slow file server it takes seconds.
_VERSION_S = 10.0
#: Hydra ends a rank whose pipe is full (pmodels/mpich#2336). The pipe holds a megabyte; what is sent no faster than
#: this is read in time also where the node is busy.
_HYDRA_BYTES_PER_S = 4 << 20
_LAUNCHERS = ("mpirun", "mpiexec", "prterun", "mpiexec.hydra")
#: What belongs to a launch that this process is part of, or would put something between the bytes of the channel.
_NOT_OURS = lazy_pattern(
    r"OMPI_(?:COMM_|UNIVERSE|APP_CTX|FIRST_RANK|FILE_LOCATION|ARGV|COMMAND|NUM_)"
    r"|OMPI_MCA_(?:orte_(?:tag_output|timestamp_output|xml_output|output_filename|ess_|hnp_)|ess|pmix|rmaps_)"
    r"|PRTE_MCA_(?:prte_(?:tag|timestamp|xml|output)|ess|rmaps)|PRTE_|PMIX_(?!MCA)|PMI_|PMI2_|MPI_LOCAL|HYDI_"
    r"|HYDRA_(?:HOST_FILE|PREPEND|PPN)|MPIEXEC_(?:PREFIX|TIMEOUT)|I_MPI_(?:HYDRA_HOST_FILE|PREPEND|PERHOST)"
)
_BLOCK = lazy_pattern(r"^-{20,}$")
#: A pattern, the kind of failure, what it means and what to do. These come before what ssh itself says ...
_HELPER: tuple[tuple[str, str, str, str], ...] = (
    (
        r"(?:orted|prted|hydra_pmi_proxy|hydra_bstrap_proxy): .*(?:not found|no such file|permission denied)"
        r"|(?:orted|prted|hydra_pmi_proxy|hydra_bstrap_proxy).*(?:command not found|cannot execute)"
        r"|execvp error on file .*proxy",
        "missing",
        "MPI's own helper cannot be started there",
        "install the same MPI at the same path on the node, and see that a login without a terminal has it on its PATH",
    ),
)
#: ... and these behind it.
_WORDS: tuple[tuple[str, str, str, str], ...] = (
    (
        r"plm_rsh_agent|path that could not be found.*(?:ssh|rsh)|unable to find.*(?:ssh|rsh)",
        "missing",
        "mpirun finds neither ssh nor rsh here, with which it would start its helper there",
        "install an OpenSSH client here, or name another agent in OMPI_MCA_plm_rsh_agent",
    ),
    (
        r"error while loading shared libraries",
        "missing",
        "a library of MPI is missing there",
        "set LD_LIBRARY_PATH where logins without a terminal get it, or use --prefix (OMPI_PREFIX)",
    ),
    (
        r"not included in the current allocation|not enough slots|not in the allocation|are already filled"
        r"|requested hosts|invalid host",
        "denied",
        "it does not belong to the nodes that mpirun may use here",
        "name nodes of the allocation",
    ),
    (
        r"attempt to run as root",
        "denied",
        "Open MPI does not run as root",
        "run preflight as the user who trains",
    ),
    (
        r"unrecognized argument|unknown option|error parsing|unrecognized command.line|not recognized",
        "missing",
        "this mpirun does not know an option that preflight needs",
        "use --on ssh, or name another one with --on-option program=PATH",
    ),
    (
        r"was unable to find the specified executable|could not (?:find|access) the executable",
        "missing",
        "there is no /bin/sh there",
        "use --on ssh to look at the node",
    ),
    (
        r"common network interfaces|tcp connection|no route found|unable to connect to mpirun|a daemon .* connect"
        r"|lost communication|unable to connect from .* to .*port",
        "unreachable",
        "its helper cannot connect back to mpirun here",
        "let the nodes connect to this machine, or choose the network with OMPI_MCA_oob_tcp_if_include",
    ),
)


def _a_program(value: str) -> str:
    return "" if value and not value.startswith("-") else f"{value!r} is no program"


def _a_family(value: str) -> str:
    return "" if value in ("openmpi", "hydra") else f"{value!r} is no family; expected openmpi or hydra"


@dataclass(slots=True)
class MpiExecutor:
    """Runs agents by mpirun. `program` and `family` are known once `gather` looked."""

    given: Mapping[str, str] = field(default_factory=dict)
    name: str = "mpi"
    _program: str = ""
    _family: str = ""

    @property
    def options(self) -> tuple[Option, ...]:
        """What can be told by --on-option."""
        return (
            Option(
                "program", "The mpirun to use, instead of the first on the PATH.", "/opt/mpi/bin/mpirun", _a_program
            ),
            Option("family", "openmpi or hydra (MPICH, Intel MPI), where --version does not tell.", "hydra", _a_family),
        )

    def configured(self, given: Mapping[str, str]) -> MpiExecutor:
        """Another one with what was told."""
        return MpiExecutor(dict(given))

    def detect(self, environment: Mapping[str, str]) -> str:
        """Whether this process belongs to a job of a batch system that mpirun is the way into."""
        there = any(shutil.which(name) for name in _LAUNCHERS)
        return nodefiles.reason(environment) if there else ""

    async def usable(self, environment: Mapping[str, str], *, deadline_s: float) -> str:
        """Which mpirun there is. Raises ExecutorError where there is none, or it does not say which MPI it is of."""
        await self._find()
        return f"{self._program} ({'Open MPI' if self._family == 'openmpi' else 'MPICH, Intel MPI or a relative'})"

    async def gather(self, wanted: Wanted) -> Gathered | None:
        """The nodes of the batch system's job; None outside of any, where the user or the job has to name them.

        Raises:
            ExecutorError: there is no mpirun here, or the list of nodes cannot be read.
        """
        await self._find()
        if wanted.named:
            return None
        found = nodefiles.nodes_in(wanted.environment)
        return Gathered(*found) if found is not None else None

    async def _find(self) -> None:
        """Which mpirun there is, and of which family."""
        if self._program:
            return
        names = (self.given["program"],) if "program" in self.given else _LAUNCHERS
        program = next((path for name in names if (path := shutil.which(name))), "")
        if not program:
            raise ExecutorError(
                "missing", f"there is no {names[0]} on this machine; load MPI's module, or use --on ssh"
            )
        family = self.given.get("family", "")
        if not family:
            ran = await run_tool([program, "--version"], deadline_s=_VERSION_S)
            family = family_of(ran.output + ran.errors)
        if not family:
            raise ExecutorError(
                "missing",
                f"`{program} --version` does not say which MPI this is; say it with --on-option family=openmpi "
                "(or hydra)",
            )
        self._program, self._family = program, family

    async def open(self, node: Node, *, deadline_s: float, bundle: Bundle) -> PipeChannel:
        """Start an agent as the only rank of an mpirun. Raises ExecutorError that says what mpirun and ssh said."""
        target = node.address or node.name
        if not is_hostname(target):
            raise ExecutorError("denied", f"{node.name}: {target!r} is no host name, and is not put on a command line")
        await self._find()
        nonce = new_nonce()
        try:
            channel = PipeChannel(
                command(self._program, self._family, target, nonce, root=os.geteuid() == 0),
                description=f"{os.path.basename(self._program)} --host {target}",  # noqa: PTH119
                environment=environment_for_rank(os.environ),
                bytes_per_s=_HYDRA_BYTES_PER_S if self._family == "hydra" else 0,
            )
        except OSError as error:
            raise ExecutorError("missing", f"{node.name}: `{self._program}` cannot be run: {error.strerror}") from error

        def diagnose(code: int | None, words: str) -> ExecutorError:
            return explain(node.name, target, code, words, deadline_s=deadline_s)

        await start_agent(channel, node.name, nonce, bundle=bundle, diagnose=diagnose, deadline_s=deadline_s)
        return channel

    async def aclose(self) -> None:
        """Nothing is shared."""


def family_of(version: str) -> str:
    """`openmpi` or `hydra`, from what `mpirun --version` prints; empty when it tells neither."""
    for family, pattern in (("openmpi", r"open ?mpi|openrte|prrte|prterun"), ("hydra", r"hydra|intel\(r\) mpi|mpich")):
        if re.search(pattern, version, re.IGNORECASE):
            return family
    return ""


def command(program: str, family: str, target: str, nonce: str, *, root: bool) -> list[str]:
    """The mpirun that starts an agent on one node. Unbound, so that the agent sees all cores of the node."""
    shell = ["/bin/sh", "-c", bootstrap.shell_line(nonce)]
    if family == "hydra":
        return [program, "-n", "1", "-hosts", target, "-bind-to", "none", *shell]
    allowed = ["--allow-run-as-root"] if root else []
    return [program, "-np", "1", "--host", target, "--bind-to", "none", *allowed, *shell]


def environment_for_rank(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of mpirun: this process's own, without what makes it part of another launch."""
    return {name: value for name, value in environment.items() if not _NOT_OURS.match(name)} | {"LC_ALL": "C"}


def explain(node: str, target: str, code: int | None, words: str, *, deadline_s: float) -> ExecutorError:
    """What became of an mpirun that ended with `code` (None: that had not by the deadline) and said `words`."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    if any(bootstrap.NO_PYTHON_MARK in line for line in lines) or code == bootstrap.NO_PYTHON:
        missing = next((line for line in lines if bootstrap.NO_PYTHON_MARK in line), "")
        tried = missing.partition(bootstrap.NO_PYTHON_MARK)[2].split()
        listed = ", ".join(tried) if tried else "none of " + ", ".join(bootstrap.INTERPRETERS) + " is there"
        return ExecutorError(
            "missing", f"{node}: no Python >= 3.8 there: tried {listed}; preflight's agent needs one", words
        )
    understood = (
        _meant(_HELPER, node, lines, words)
        or said_by_ssh(node, target, lines, words)
        or _meant(_WORDS, node, lines, words)
    )
    if understood is not None:
        return understood
    first = _first_of_its_own(lines)
    said = f' (mpirun said: "{first}")' if first else ""
    if code is None:
        return ExecutorError(
            "timeout",
            f"{node}: no agent within {deadline_s:g} s, waiting for mpirun to start one rank there{said}; "
            "a frozen sshd, a slow start-up file of the login shell or a firewall between the two does this",
            words,
        )
    if any("unable to reliably start one or more daemons" in line for line in lines):
        return ExecutorError("unreachable", f"{node}: mpirun could not start its helper there{said}", words)
    return ExecutorError("crashed", f"{node}: mpirun ended with exit code {code}{said}", words)


def _meant(
    table: tuple[tuple[str, str, str, str], ...], node: str, lines: list[str], words: str
) -> ExecutorError | None:
    """What one of `lines` means by a table; None when it knows none of them."""
    for pattern, kind, meaning, remedy in table:
        line = next((line for line in lines if re.search(pattern, line, re.IGNORECASE)), None)
        # Open MPI lists every cause there may be, each behind an asterisk.
        if line is not None and not line.startswith("*"):
            return ExecutorError(kind, f'{node}: {meaning} (mpirun said: "{line}"); {remedy}', words)
    return None


def _first_of_its_own(lines: list[str]) -> str:
    """The first line that is no frame of a block of advice."""
    return next((line for line in lines if not _BLOCK.match(line)), "")[:300]


EXECUTOR = MpiExecutor
