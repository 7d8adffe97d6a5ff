"""Nodes of a Slurm allocation, each reached by its own overlapping step.

Inside a job (SLURM_JOB_ID) its nodes are used; elsewhere those of the user's running job (`jobid`), or of an allocation
for a few minutes with the request from the job's header.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

import anyio

from preflight._util.hostnames import is_hostname
from preflight._util.usage_error import UsageError
from preflight.executors.base import Bundle, ExecutorError, GatheredNodes, NodeRequest, Option
from preflight.executors.pipe import PipeChannel, make_nonce, start_agent
from preflight.executors.slurm_cluster import cluster_from_states, read_cluster
from preflight.executors.slurm_jobs import (
    REQUEST_S,
    Allocation,
    NodeState,
    SlurmJob,
    allocate,
    node_states,
    read_node_list,
    requested_options,
    show_job,
    slurmd_port,
)
from preflight.executors.slurm_steps import command, environment_for_step, explain
from preflight.executors.tool import run_tool
from preflight.model.job import is_whole_number
from preflight.model.recording import Cluster, Node

#: States in which a node of an allocation accepts no step; srun would wait for it until our deadline.
_UNUSABLE_STATES = frozenset(("DOWN", "FAIL", "NOT_RESPONDING", "POWERED_DOWN", "POWERING_DOWN", "UNKNOWN", "FUTURE"))
#: Time limit of examining a node that does not answer.
_POLL_S = 1.2
#: A node that has not answered after this share of its deadline is examined meanwhile.
_LATE_SHARE = 0.5
#: Distinguishes a dead slurmd from a frozen one. In a separate process, because a name lookup may hang.
_PORT_TEST = """
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
    """Raise ExecutorError if Slurm cannot be used from here."""
    if shutil.which("srun", path=environment.get("PATH")) is None:
        raise ExecutorError("missing", "srun was not found on this machine; use --on ssh")


def _job_problem(value: str) -> str:
    return "" if is_whole_number(value) and 0 < int(value) < 2**32 else f"{value!r} is not a job; expected its number"


@dataclass(slots=True)
class SlurmExecutor:
    """Runs agents as steps of one job. `job` is that job after `gather`."""

    settings: Mapping[str, str] = field(default_factory=dict)
    name: str = "slurm"
    _job: SlurmJob | None = None
    _allocation: Allocation | None = None
    _states: dict[str, NodeState] = field(default_factory=dict)
    _port: str = ""
    #: The name of our steps, and how many of them may remain although their srun is gone.
    _step: str = field(default_factory=lambda: f"preflight-{secrets.token_hex(3)}")
    _unfinished: int = 0

    @property
    def options(self) -> tuple[Option, ...]:
        """Return its options."""
        return (Option("jobid", "A running job of your own, whose nodes are checked.", "71", _job_problem),)

    def configured(self, settings: Mapping[str, str]) -> SlurmExecutor:
        """Return a copy with these options."""
        return SlurmExecutor(dict(settings))

    def detect(self, environment: Mapping[str, str]) -> str:
        """Return why this process belongs to a job of Slurm."""
        job = environment.get("SLURM_JOB_ID", "")
        return f"SLURM_JOB_ID={job} is set: this is inside a Slurm job" if job.isdecimal() else ""

    async def usable(self, environment: Mapping[str, str], *, deadline_s: float) -> str:
        """Return the Slurm version here. Raises ExecutorError if there is none or its controller does not answer."""
        _require_srun(environment)
        version = await run_tool(["srun", "--version"], deadline_s=deadline_s, environment=environment)
        named = version.output.strip() or "srun"
        pinged = await run_tool(["scontrol", "ping"], deadline_s=deadline_s, environment=environment)
        if pinged.code or " is UP" not in pinged.output:
            why = pinged.last_error or pinged.output.strip() or f"exit code {pinged.code}"
            raise ExecutorError(
                "unreachable", f"there is {named}, but Slurm's controller does not answer ({why}); see `scontrol ping`"
            )
        return f"{named}, whose controller answers"

    async def gather(self, request: NodeRequest) -> GatheredNodes:
        """Return the nodes of the job; outside of a job, of an allocation made for this run.

        Raises:
            ExecutorError: Slurm is not available here, or provides no nodes.
            UsageError: a node was named that is not in the job.
        """
        _require_srun(request.environment)
        job, words, cluster = await self._find(request)
        self._job = job
        if not job.nodes:
            why = f" ({job.reason})" if job.reason not in ("", "None") else ""
            raise ExecutorError("blocked", f"Slurm job {job.id} holds no nodes: it is {job.state.lower()}{why}")
        strangers = [node.name for node in request.named if node.name not in job.nodes]
        if strangers:
            held = ", ".join(job.nodes[:8]) + (" ..." if len(job.nodes) > 8 else "")
            raise UsageError(f"{', '.join(strangers[:8])}: not among the nodes of Slurm job {job.id}, which has {held}")
        notes = await self._read_node_states(job)
        nodes = request.named or tuple(Node(name, index, name) for index, name in enumerate(job.nodes))
        return GatheredNodes(nodes, words, notes, cluster=cluster or cluster_from_states(self._states))

    async def _find(self, request: NodeRequest) -> tuple[SlurmJob, str, Cluster | None]:
        """Return the job whose nodes are used, how it was found, and data about its partitions, if requested."""
        if "jobid" in self.settings:
            job = await show_job(self.settings["jobid"])
            if job.state != "RUNNING":
                why = f" ({job.reason})" if job.reason not in ("", "None") else ""
                raise ExecutorError("blocked", f"Slurm job {job.id} is not running but {job.state.lower()}{why}")
            return job, f"Slurm job {job.id} (--on-option jobid={job.id})", None
        if self.detect(request.environment):
            id = request.environment["SLURM_JOB_ID"]
            listed = request.environment.get("SLURM_JOB_NODELIST", "")
            if listed:
                return (
                    SlurmJob(id, read_node_list(listed), "RUNNING"),
                    f"Slurm job {id} (SLURM_JOB_NODELIST={listed})",
                    None,
                )
            return await show_job(id), f"Slurm job {id} (SLURM_JOB_ID)", None
        cluster = await read_cluster(requested_options(request, timed=True))
        options = requested_options(request)
        request.on_note(f"asking Slurm for nodes: salloc {' '.join(options)}")
        try:
            self._allocation = await allocate(request, options, deadline_s=request.deadline_s)
        except ExecutorError as error:
            error.cluster = cluster
            raise
        job = self._allocation.job
        return job, f"Slurm job {job.id}, allocated for this run (salloc {' '.join(options)})", cluster

    async def _read_node_states(self, job: SlurmJob) -> tuple[str, ...]:
        """Store Slurm's data about each node. A slow controller does not prevent the run."""
        try:
            self._states = await node_states(job.nodes)
            self._port = await slurmd_port()
        except ExecutorError as error:
            return (f"Slurm did not report the state of the nodes: {error.message}",)
        found = ((name, self._states[name]) for name in job.nodes if name in self._states)
        drained = [f"{name} ({state.fields})" for name, state in found if "DRAIN" in state.flags]
        return (f"drained: {', '.join(drained[:8])}",) if drained else ()

    async def open(self, node: Node, *, deadline_s: float, bundle: Bundle) -> PipeChannel:
        """Start an agent as a step on `node`. Raises ExecutorError with the messages of srun and Slurm."""
        target = node.address or node.name
        if not is_hostname(target):
            raise ExecutorError("denied", f"{node.name}: {target!r} is not a valid host name")
        if self._job is None:
            raise ExecutorError("blocked", f"{node.name}: no Slurm job is known that could run a step there")
        state = self._states.get(target)
        if state is not None and state.flags & _UNUSABLE_STATES:
            raise ExecutorError(
                "unreachable",
                f"{node.name}: Slurm reports it as {state.fields} and starts no step there; look at `sinfo -R`",
            )
        job, nonce = self._job.id, make_nonce()
        started = command(job, target, nonce, name=self._step, deadline_s=deadline_s)
        try:
            channel = PipeChannel(
                started,
                description=f"srun --jobid={job} -w {target}",
                environment=environment_for_step(os.environ),
                # While it waits for slurmd, srun ignores all signals but SIGKILL.
                ignores_sigterm=True,
            )
        except OSError as error:
            raise ExecutorError("missing", f"{node.name}: `srun` cannot be run here: {error.strerror}") from error
        seen = ""

        def diagnose(code: int | None, error_text: str) -> ExecutorError:
            return explain(node.name, job, code, error_text, deadline_s=deadline_s, state=seen)

        async with anyio.create_task_group() as group:

            async def examine() -> None:
                nonlocal seen
                await anyio.sleep(deadline_s * _LATE_SHARE)
                seen = await self._describe_silent_node(target)

            group.start_soon(examine)
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

    async def _describe_silent_node(self, target: str) -> str:
        """Describe a node that did not answer: Slurm's data about it, and whether slurmd's port is open."""
        lines: list[str] = []
        state = self._states.get(target)
        try:
            state = (await node_states([target], deadline_s=_POLL_S / 2)).get(target, state)
            if state is not None:
                lines.append(f"Slurm reports it as {state.fields}")
        except ExecutorError:
            lines.append("Slurm's controller does not answer")
        address = state.address if state is not None else target
        port = state.port if state is not None and state.port else self._port
        if not port.isdecimal() or not is_hostname(address):
            return "; ".join(lines)
        try:
            port_test = [sys.executable, "-I", "-c", _PORT_TEST, address, port]
            answer = (await run_tool(port_test, deadline_s=_POLL_S)).output.strip()
        except ExecutorError:
            answer = "silent"
        meaning = {
            "refused": f"nothing listens on its port {port}: slurmd is dead",
            "silent": f"its port {port} does not answer: the node is down, or packets are dropped",
            "accepted": "slurmd there accepts connections: it is frozen or busy, or a prolog runs",
        }
        return "; ".join([*lines, meaning.get(answer, answer)])

    async def aclose(self) -> None:
        """End steps that srun left behind, and release our own allocation."""
        if self._unfinished and self._job is not None:
            with contextlib.suppress(ExecutorError):
                await self._end_steps(self._job.id)
        self._unfinished = 0
        allocation, self._allocation = self._allocation, None
        if allocation is not None:
            await allocation.aclose()

    async def _end_steps(self, job: str) -> None:
        """Cancel the steps that the controller still lists as ours: this happens if srun was killed before they were
        launched.
        """
        listing = ["squeue", "--noheader", "--steps", f"--jobs={job}", "--format=%i %j"]
        lines = (await run_tool(listing, deadline_s=REQUEST_S / 2)).output.splitlines()
        steps = [words[0] for words in map(str.split, lines) if words[1:] == [self._step]]
        if steps:
            await run_tool(["scancel", "--quiet", *steps], deadline_s=REQUEST_S / 2)


EXECUTOR = SlurmExecutor
