"""Nodes of a Slurm allocation, each reached by an overlapping step of its own.

Inside a job (SLURM_JOB_ID) its nodes are taken; from elsewhere those of a running job of one's own (`jobid`), or of an
allocation for a few minutes that asks for what the job's own header asks for.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
from collections.abc import Mapping
from dataclasses import field

import anyio

from preflight.errors import UsageError
from preflight.executors.base import Bundle, ExecutorError, Gathered, Option, Wanted
from preflight.executors.pipe import PipeChannel, new_nonce, start_agent
from preflight.executors.slurm_cluster import ask_cluster, of_states
from preflight.executors.slurm_jobs import (
    ASK_S,
    Allocation,
    Job,
    NodeState,
    allocate,
    hosts_in,
    node_states,
    request_of,
    show_job,
    slurmd_port,
)
from preflight.executors.slurm_steps import command, environment_for_step, explain
from preflight.executors.tool import run_tool
from preflight.job.hostname import is_hostname
from preflight.lazy.dataclasses import dataclass
from preflight.recording import Cluster, Node

#: States in which a node of an allocation takes no step; srun would wait for it until our deadline.
_GONE = frozenset(("DOWN", "FAIL", "NOT_RESPONDING", "POWERED_DOWN", "POWERING_DOWN", "UNKNOWN", "FUTURE"))
#: How long looking at a node that does not answer may take.
_LOOK_S = 1.2
#: A node that has not answered after this share of its deadline is looked at meanwhile.
_LATE = 0.5
#: Tells a slurmd that is dead from one that is frozen. In a process of its own: a name look-up may hang.
_KNOCK = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 0.8).close()
    print("accepted")
except ConnectionRefusedError:
    print("refused")
except socket.timeout:
    print("silent")
except OSError as error:
    print(error.strerror or error)
"""


def _require_srun(environment: Mapping[str, str]) -> None:
    """Raise ExecutorError where there is no way into Slurm from here."""
    if shutil.which("srun", path=environment.get("PATH")) is None:
        raise ExecutorError("missing", "there is no srun on this machine, so no way into Slurm; use --on ssh")


def _a_job(value: str) -> str:
    return "" if value.isdigit() and 0 < int(value) < 2**32 else f"{value!r} is no job; its number is expected"


@dataclass(slots=True)
class SlurmExecutor:
    """Runs agents as steps of one job. `job` is that job once `gather` knows it."""

    given: Mapping[str, str] = field(default_factory=dict)
    name: str = "slurm"
    _job: Job | None = None
    _allocation: Allocation | None = None
    _states: dict[str, NodeState] = field(default_factory=dict)
    _port: str = ""
    #: What our steps are called, and how many of them may still be there although their srun is gone.
    _step: str = field(default_factory=lambda: f"preflight-{secrets.token_hex(3)}")
    _unfinished: int = 0

    @property
    def options(self) -> tuple[Option, ...]:
        """What can be told by --on-option."""
        return (Option("jobid", "A running job of your own whose nodes are looked at.", "71", _a_job),)

    def configured(self, given: Mapping[str, str]) -> SlurmExecutor:
        """Another one with what was told."""
        return SlurmExecutor(dict(given))

    def detect(self, environment: Mapping[str, str]) -> str:
        """Whether this process belongs to a job of Slurm."""
        job = environment.get("SLURM_JOB_ID", "")
        return f"SLURM_JOB_ID={job} is set: this is inside a Slurm job" if job.isdigit() else ""

    async def usable(self, environment: Mapping[str, str], *, deadline_s: float) -> str:
        """Which Slurm answers here. Raises ExecutorError where there is none, or its controller does not answer."""
        _require_srun(environment)
        version = await run_tool(["srun", "--version"], deadline_s=deadline_s, environment=environment)
        named = version.output.strip() or "srun"
        pinged = await run_tool(["scontrol", "ping"], deadline_s=deadline_s, environment=environment)
        if pinged.code or " is UP" not in pinged.output:
            why = pinged.last_error or pinged.output.strip() or f"it ended with code {pinged.code}"
            raise ExecutorError(
                "unreachable", f"there is {named}, and no controller of Slurm answers ({why}); see `scontrol ping`"
            )
        return f"{named}, and its controller answers"

    async def gather(self, wanted: Wanted) -> Gathered:
        """The nodes of the job; from outside of any, of an allocation made for this run.

        Raises:
            ExecutorError: there is no Slurm here, or it gives no nodes.
            UsageError: a node was named that the job does not hold.
        """
        _require_srun(wanted.environment)
        job, words, cluster = await self._find(wanted)
        self._job = job
        if not job.nodes:
            why = f" ({job.reason})" if job.reason not in ("", "None") else ""
            raise ExecutorError("blocked", f"Slurm job {job.id} holds no nodes: it is {job.state.lower()}{why}")
        strangers = [node.name for node in wanted.named if node.name not in job.nodes]
        if strangers:
            held = ", ".join(job.nodes[:8]) + (" ..." if len(job.nodes) > 8 else "")
            raise UsageError(f"{', '.join(strangers[:8])} is not among the nodes of Slurm job {job.id}, {held}")
        notes = await self._look_at(job)
        nodes = wanted.named or tuple(Node(name, index, name) for index, name in enumerate(job.nodes))
        return Gathered(nodes, words, notes, cluster=cluster or of_states(self._states))

    async def _find(self, wanted: Wanted) -> tuple[Job, str, Cluster | None]:
        """The job whose nodes are looked at, how it was found, and what Slurm says of its partitions, if asked."""
        if "jobid" in self.given:
            job = await show_job(self.given["jobid"])
            if job.state != "RUNNING":
                why = f" ({job.reason})" if job.reason not in ("", "None") else ""
                raise ExecutorError("blocked", f"Slurm job {job.id} is not running but {job.state.lower()}{why}")
            return job, f"Slurm job {job.id} (--on-option jobid={job.id})", None
        if self.detect(wanted.environment):
            id = wanted.environment["SLURM_JOB_ID"]
            listed = wanted.environment.get("SLURM_JOB_NODELIST", "")
            if listed:
                return Job(id, hosts_in(listed), "RUNNING"), f"Slurm job {id} (SLURM_JOB_NODELIST={listed})", None
            return await show_job(id), f"Slurm job {id} (SLURM_JOB_ID)", None
        cluster = await ask_cluster(request_of(wanted, timed=True))
        options = request_of(wanted)
        wanted.tell(f"asking Slurm for nodes: salloc {' '.join(options)}")
        try:
            self._allocation = await allocate(wanted, options, deadline_s=wanted.deadline_s)
        except ExecutorError as error:
            error.cluster = cluster
            raise
        job = self._allocation.job
        return job, f"Slurm job {job.id}, allocated for this run (salloc {' '.join(options)})", cluster

    async def _look_at(self, job: Job) -> tuple[str, ...]:
        """Remember what Slurm says of each node. A controller that is slow to say it hinders nothing."""
        try:
            self._states = await node_states(job.nodes)
            self._port = await slurmd_port()
        except ExecutorError as error:
            return (f"Slurm did not say in which state the nodes are: {error.message}",)
        found = ((name, self._states[name]) for name in job.nodes if name in self._states)
        drained = [f"{name} ({state.said})" for name, state in found if "DRAIN" in state.flags]
        return (f"drained: {', '.join(drained[:8])}",) if drained else ()

    async def open(self, node: Node, *, deadline_s: float, bundle: Bundle) -> PipeChannel:
        """Start an agent as a step on `node`. Raises ExecutorError that says what srun and Slurm said."""
        target = node.address or node.name
        if not is_hostname(target):
            raise ExecutorError("denied", f"{node.name}: {target!r} is no host name, and is not put on a command line")
        if self._job is None:
            raise ExecutorError("blocked", f"{node.name}: no job of Slurm is known whose step could run there")
        state = self._states.get(target)
        if state is not None and state.flags & _GONE:
            raise ExecutorError(
                "unreachable",
                f"{node.name}: Slurm says that it is {state.said}, and starts no step there; look at `sinfo -R`",
            )
        job, nonce = self._job.id, new_nonce()
        started = command(job, target, nonce, name=self._step, deadline_s=deadline_s)
        try:
            channel = PipeChannel(
                started,
                description=f"srun --jobid={job} -w {target}",
                environment=environment_for_step(os.environ),
                # While it waits for slurmd, srun heeds no signal but SIGKILL.
                deaf=True,
            )
        except OSError as error:
            raise ExecutorError("missing", f"{node.name}: `srun` cannot be run here: {error.strerror}") from error
        seen = ""

        def diagnose(code: int | None, words: str) -> ExecutorError:
            return explain(node.name, job, code, words, deadline_s=deadline_s, state=seen)

        async with anyio.create_task_group() as group:

            async def look() -> None:
                nonlocal seen
                await anyio.sleep(deadline_s * _LATE)
                seen = await self._seen(target)

            group.start_soon(look)
            failure: ExecutorError | None = None
            self._unfinished += 1
            try:
                await start_agent(channel, node.name, nonce, bundle=bundle, diagnose=diagnose, deadline_s=deadline_s)
            except ExecutorError as error:
                # Raised below, outside the task group, which would wrap it.
                failure = error
            else:
                self._unfinished -= 1
            group.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return channel

    async def _seen(self, target: str) -> str:
        """What Slurm says of a node that did not answer, and whether anybody listens on slurmd's port there."""
        said: list[str] = []
        state = self._states.get(target)
        try:
            state = (await node_states([target], deadline_s=_LOOK_S / 2)).get(target, state)
            if state is not None:
                said.append(f"Slurm says that it is {state.said}")
        except ExecutorError:
            said.append("Slurm's controller does not answer")
        address = state.address if state is not None else target
        port = state.port if state is not None and state.port else self._port
        if not port.isdigit() or not is_hostname(address):
            return "; ".join(said)
        try:
            knock = [sys.executable, "-I", "-c", _KNOCK, address, port]
            answer = (await run_tool(knock, deadline_s=_LOOK_S)).output.strip()
        except ExecutorError:
            answer = "silent"
        meaning = {
            "refused": f"nothing listens on port {port} there: slurmd is dead",
            "silent": f"port {port} of it is silent: the node is down, or packets are dropped",
            "accepted": "slurmd there accepts connections: it is frozen or busy, or a prolog runs",
        }
        return "; ".join([*said, meaning.get(answer, answer)])

    async def aclose(self) -> None:
        """End steps that srun left behind, and give an allocation of our own back."""
        if self._unfinished and self._job is not None:
            with contextlib.suppress(ExecutorError):
                await self._end_steps(self._job.id)
        self._unfinished = 0
        allocation, self._allocation = self._allocation, None
        if allocation is not None:
            await allocation.aclose()

    async def _end_steps(self, job: str) -> None:
        """Cancel what the controller still takes for a step of ours: srun was killed before it was launched."""
        listing = ["squeue", "--noheader", "--steps", f"--jobs={job}", "--format=%i %j"]
        lines = (await run_tool(listing, deadline_s=ASK_S / 2)).output.splitlines()
        steps = [words[0] for words in map(str.split, lines) if words[1:] == [self._step]]
        if steps:
            await run_tool(["scancel", "--quiet", *steps], deadline_s=ASK_S / 2)


EXECUTOR = SlurmExecutor
