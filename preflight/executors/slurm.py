"""Nodes of a Slurm allocation, each reached by its own overlapping step.

Inside a job (SLURM_JOB_ID) its nodes are used; elsewhere those of the user's running job (`jobid`), or of an allocation
for a few minutes with the request from the job's header.

One overlapping step of srun for one node: its command line, its environment, and what its errors mean.

Options as in srun(1) of Slurm 22.05 to 24.11; their effect was tested with slurmctld and slurmd 22.05.8.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

import anyio

from preflight._util.hostnames import is_hostname
from preflight._util.sequences import join_some
from preflight._util.usage_error import UsageError
from preflight.agent import bootstrap
from preflight.executors.base import Bundle, ExecutorError, GatheredNodes, NodeRequest, Option, find_meaning, run_tool
from preflight.executors.pipe import PipeChannel, make_nonce, no_python, start_agent
from preflight.executors.slurm_jobs import (
    REQUEST_S,
    Allocation,
    NodeState,
    SlurmJob,
    allocate,
    cluster_from_states,
    node_states,
    read_cluster,
    read_node_list,
    requested_options,
    show_job,
    slurmd_port,
)
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
            held = join_some(job.nodes, 8)
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


#: srun gives up before our deadline, so that it can report the reason.
_MIN_IMMEDIATE_S = 1
#: Variables that srun reads as options (srun(1), INPUT ENVIRONMENT VARIABLES): meant for the job's own steps, and fatal
#: or worse for ours. SLURM_LABELIO would put a label before every line of the channel, the SLURM_MEM_PER_* exclude each
#: other, SLURM_NTASKS_PER_NODE requests more tasks than one.
_NAMES = (
    "ACCOUNT ACCTG_FREQ BCAST BCAST_EXCLUDE BURST_BUFFER CLUSTERS COMPRESS CONSTRAINT CORE_SPEC CPUS_PER_GPU"
    " CPUS_PER_TASK CPU_BIND CPU_BIND_LIST CPU_BIND_TYPE CPU_BIND_VERBOSE CPU_FREQ_REQ DEBUG DELAY_BOOT DEPENDENCY"
    " DISABLE_STATUS DISTRIBUTION DIST_PLANESIZE EPILOG ERROR EXACT EXCLUSIVE EXIT_ERROR EXIT_IMMEDIATE EXPORT_ENV"
    " GPUS GPUS_PER_NODE GPUS_PER_TASK GPU_BIND GPU_FREQ GRES GRES_FLAGS HINT HET_SIZE IMMEDIATE JOB_NAME"
    " JOB_NUM_NODES KILL_BAD_EXIT LABELIO MEM_BIND MEM_PER_CPU MEM_PER_GPU MEM_PER_NODE MPI_TYPE MULTI"
    " NCORES_PER_SOCKET NETWORK NNODES NO_KILL NODELIST NPROCS NSOCKETS_PER_NODE NTASKS NTASKS_PER_CORE"
    " NTASKS_PER_GPU NTASKS_PER_NODE NTASKS_PER_SOCKET NTASKS_PER_TRES OPEN_MODE OVERCOMMIT OVERLAP PARTITION"
    " PROFILE PROLOG QOS REMOTE_CWD REQ_SWITCH RESERVATION RESV_PORTS SEND_LIBS SIGNAL SPREAD_JOB SRUN_MULTI"
    " STDERRMODE STDINMODE STDOUTMODE STEP_GRES TASK_EPILOG TASK_PROLOG TEST_EXEC THREADS THREADS_PER_CORE"
    " THREAD_SPEC TIMELIMIT TRES_BIND TRES_PER_TASK UNBUFFEREDIO USE_MIN_NODES WAIT WAIT4SWITCH WCKEY WHOLE WORKING_DIR"
)
_STEP_VARIABLES = frozenset(f"SLURM_{name}" for name in _NAMES.split())


def command(job: str, node: str, nonce: str, *, name: str, deadline_s: float) -> list[str]:
    """Return the srun command that starts an agent on one node of an allocation, as a step of this `name`.

    `--overlap` shares the resources of the job's own steps, `--mem=0` uses none of its memory, `--cpu-bind=none` lets
    the agent see all of the job's cores. Without `--unbuffered` slurmstepd forwards only whole lines, and frames have
    no lines (its io.c: a pseudo-terminal without output processing, so every byte passes unchanged).
    """
    immediate = max(_MIN_IMMEDIATE_S, int(deadline_s) - 1)
    return [
        "srun",
        f"--jobid={job}",
        "--nodes=1",
        "--ntasks=1",
        f"--nodelist={node}",
        "--overlap",
        "--mem=0",
        "--cpu-bind=none",
        "--mpi=none",
        "--unbuffered",
        "--export=ALL",
        f"--immediate={immediate}",
        f"--job-name={name}",
        "--",
        "/bin/sh",
        "-c",
        bootstrap.shell_line(nonce),
    ]


def environment_for_step(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of srun: this process's own, without variables for the job's own steps."""
    kept = {
        name: value
        for name, value in environment.items()
        if name not in _STEP_VARIABLES and not name.startswith("SRUN_")
    }
    return {**kept, "LC_ALL": "C"}


def explain(
    node: str, job: str, code: int | None, error_text: str, *, deadline_s: float, state: str = ""
) -> ExecutorError:
    """Explain the failure of an srun, from its exit `code` (None: still running at the deadline) and its `error_text`.

    `state` describes the node according to Slurm and the network.
    """
    error_text = bootstrap.without_mark(error_text)
    lines = [line.strip() for line in error_text.splitlines() if line.strip() and not _is_harmless(line)]
    known = f"; {state}" if state else ""
    missing = no_python(node, lines, code, error_text)
    if missing is not None:
        return missing
    found = find_meaning("srun", reversed(lines))
    if found is not None:
        row, line = found
        message = f'{node}: {row.meaning.format(job=job)} (srun said: "{line}"{known}); {row.remedy.format(job=job)}'
        return ExecutorError(row.kind, message, error_text)
    last_line = f' (srun said: "{lines[-1]}")' if lines else ""
    if code is None:
        return ExecutorError(
            "timeout",
            f"{node}: no agent within {deadline_s:g} s, waiting for srun to start a step of Slurm job {job} there"
            f"{last_line}{known}; possible causes: a dead slurmd, a slow prolog, a slow file server",
            error_text,
        )
    first = next((line for line in lines if not line.startswith(("srun: error: ", "srun: Job step"))), "")
    also = f': "{first}"' if first and first not in last_line else ""
    return ExecutorError("crashed", f"{node}: the step ended with exit code {code}{also}{last_line}{known}", error_text)


def _is_harmless(line: str) -> bool:
    """Return whether a line of srun is harmless."""
    return "lacks support for" in line or bool(re.search(r"srun: (?:job|step) .* (?:queued|has been allocated)", line))
