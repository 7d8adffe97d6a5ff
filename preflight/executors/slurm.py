"""Nodes of a Slurm allocation, each reached by its own overlapping step.

An allocation is held by `salloc`, whose command only waits for the end of a pipe that we hold: however this process
ends, the pipe ends, then the command, and salloc releases the nodes. If salloc itself is killed, it leaves a job with
the time limit of one run. Its behaviour on signals and in the queue was tested with Slurm 22.05.8; options are those of
srun(1) in Slurm 22.05 to 24.11.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import anyio

from preflight._util import toml
from preflight._util.hostnames import expand_hosts, is_hostname
from preflight._util.sequences import join_some
from preflight._util.usage_error import UsageError
from preflight.agent import bootstrap
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
from preflight.model.job import Known, is_whole_number
from preflight.model.recording import Cluster, ClusterNode, Node, Partition
from preflight.sources.shell.sbatch_directives import gpus_of_gres

#: Time limit of one request to the controller.
REQUEST_S = 4.0
#: Options of the job's header that name nodes come from the job, and need trust.
_NODE_OPTIONS = ("--nodelist", "--exclude")
#: A value in the syntax of sbatch(1): no blank, no control character, nothing that a shell would interpret.
_VALUE = re.compile(r"[A-Za-z0-9_.,:;=+*/\[\]()&|!@%-]{0,400}", re.ASCII)
_FIELD = re.compile(r"(?:^|\s)([A-Z][A-Za-z:/]*)=")
_MARKED_REASON = re.compile(r"(.*) \[[^\s@\[\]]+@[^\s\[\]]+\]")
_PENDING = re.compile(r"Pending job allocation (\d+)")
_GRANTED = re.compile(r"Granted job allocation (\d+)")
#: The messages of salloc if the request is valid but no nodes are free.
_BUSY = re.compile(
    r"connection timed out|requested nodes are busy|immediate execution impossible|nodes required for job are down,"
    r"|resources|partition .* not available now|partition in (?:down|inactive) state",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """The relevant data of a Slurm job; `nodes` are in Slurm's order."""

    id: str
    nodes: tuple[str, ...]
    state: str = ""
    reason: str = ""
    user: str = ""


async def show_job(job: str) -> SlurmJob:
    """Return the controller's data about a job. Raises ExecutorError if there is none."""
    ran = await run_tool(["scontrol", "show", "job", job, "--oneliner"], deadline_s=REQUEST_S)
    if ran.code:
        kind = "blocked" if "invalid job id" in ran.errors.lower() else "unreachable"
        raise ExecutorError(kind, f"Slurm does not show job {job}: {ran.last_error}", ran.errors)
    fields = parse_fields(ran.output.splitlines()[0] if ran.output else "")
    return SlurmJob(
        job, read_node_list(fields.get("NodeList", "")), fields.get("JobState", ""), fields.get("Reason", "")
    )


def read_node_list(text: str) -> tuple[str, ...]:
    """Expand a node list of Slurm; empty for `(null)`. Raises ExecutorError for a malformed list."""
    if not text or text == "(null)":
        return ()
    try:
        return expand_hosts(text)
    except ValueError as error:
        raise ExecutorError("crashed", f"Slurm's node list is invalid: {error}") from None


def parse_fields(line: str) -> dict[str, str]:
    """Parse `A=1 B=two words C=3`, scontrol's format of a record on one line; a value may contain blanks."""
    pieces = _FIELD.split(line)
    return {name: value.strip() for name, value in zip(pieces[1::2], pieces[2::2], strict=False)}


def parse_node(line: str) -> dict[str, str]:
    """Parse scontrol's record of a node on one line; empty for any other line.

    A reason may contain any text, even `State=`. Therefore everything from the first `Reason=` to the last mark of who
    set it and when (`[root@2026-08-01T12:00:00]`) is the reason, without that mark; and the first field of a name
    counts.
    """
    if not line.startswith("NodeName="):
        return {}
    head, found, rest = line.partition(" Reason=")
    pieces = _FIELD.split(head)
    fields: dict[str, str] = {}
    for name, value in zip(pieces[1::2], pieces[2::2], strict=False):
        fields.setdefault(name, value.strip())
    if found:
        marked = _MARKED_REASON.match(rest)
        fields["Reason"] = (marked[1] if marked else rest).strip()
    return fields


@dataclass(frozen=True, slots=True)
class NodeState:
    """Slurm's data about a node: its state with the reason (`DOWN+DRAIN: bad cable`), and the address of its slurmd."""

    fields: str
    address: str
    port: str = ""

    @property
    def flags(self) -> frozenset[str]:
        """Return the words of the state, without the reason."""
        return frozenset(self.fields.partition(":")[0].split("+"))


async def node_states(nodes: Sequence[str], *, deadline_s: float = REQUEST_S) -> dict[str, NodeState]:
    """Return Slurm's data about each node, without nodes it does not list."""
    ran = await run_tool(["scontrol", "show", "node", ",".join(nodes), "--oneliner"], deadline_s=deadline_s)
    found: dict[str, NodeState] = {}
    for line in ran.output.splitlines():
        fields = parse_node(line)
        if "NodeName" in fields and "State" in fields:
            name, reason = fields["NodeName"], fields.get("Reason", "")
            state = fields["State"] + (f": {reason}" if reason else "")
            found[name] = NodeState(state, fields.get("NodeAddr", name), fields.get("Port", ""))
    return found


async def slurmd_port() -> str:
    """Return the default port of slurmd; empty if the controller does not answer."""
    ran = await run_tool(["scontrol", "show", "config"], deadline_s=REQUEST_S)
    found = re.search(r"^SlurmdPort\s*=\s*(\d+)\s*$", ran.output, re.MULTILINE)
    return found[1] if found else ""


class Allocation:
    """Nodes that are held for one run. `aclose` releases them, and so does the end of this process."""

    def __init__(self, channel: PipeChannel, job: SlurmJob) -> None:
        self.job = job
        self._channel = channel

    async def aclose(self) -> None:
        """Release the nodes, and make sure that they are released."""
        await _release(self._channel, self.job.id)


async def allocate(request: NodeRequest, options: Sequence[str], *, deadline_s: float) -> Allocation:
    """Request nodes from Slurm. Raises ExecutorError with its message, "blocked" if none is free, else "denied"."""
    nonce = make_nonce()
    script = f'echo "{nonce} $SLURM_JOB_ID $SLURM_JOB_NODELIST"; exec cat >/dev/null'
    limit = max(1, math.floor(deadline_s))
    command = [
        *("salloc", *options, f"--time={_minutes(request)}", f"--immediate={limit}", "--wait-all-nodes=1"),
        *("--kill-command=TERM", "--job-name=preflight", "--no-bell", "--", "/bin/sh", "-c", script),
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SALLOC_", "SLURM_JOB"))}
    try:
        channel = PipeChannel(command, description="salloc", environment={**environment, "LC_ALL": "C"})
    except OSError as error:
        raise ExecutorError("missing", f"`salloc` cannot be run here: {error.strerror}") from error
    try:
        with anyio.fail_after(deadline_s + 3.0):
            received = await _read_grant(channel, f"{nonce} ", request.on_note)
    except TimeoutError:
        received = None
    except BaseException:
        await _release(channel, _job_id_in(channel.error_tail()))
        raise
    if received is None:
        # Let salloc print its last message first: it withdraws its own request.
        code = await channel.exit_code(2.0)
        words = channel.error_tail()
        await _release(channel, _job_id_in(words))
        raise _refusal_error(options, code, words, deadline_s)
    id, _, nodes = received.partition(" ")
    return Allocation(channel, SlurmJob(id, read_node_list(nodes.strip()), "RUNNING"))


async def _read_grant(channel: PipeChannel, mark: str, on_note: Callable[[str], None]) -> str | None:
    """Return the output of the command inside the allocation after the mark; None if salloc ended without it."""
    script = ""
    received = ""
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            nonlocal script
            while True:
                await anyio.sleep(0.2)
                pending = _PENDING.search(channel.error_tail())
                if pending and not script:
                    script = pending[1]
                    on_note(f"Slurm job {script}, which requests the nodes, is waiting in the queue")

        group.start_soon(watch)
        try:
            while True:
                data = await channel.receive()
                received += data.decode("utf-8", "replace")
                place = received.find(mark)
                if place >= 0 and "\n" in received[place:]:
                    return received[place + len(mark) :].split("\n", 1)[0]
                if not data:
                    return None
        finally:
            group.cancel_scope.cancel()
    return None


async def _release(channel: PipeChannel, job: str) -> None:
    """End salloc, and cancel its job if it cannot have done so itself."""
    with anyio.CancelScope(shield=True):
        if not job:
            # In the queue, salloc ignores the end of its pipe: it needs a signal, and then prints its request.
            channel.abandon()
        await channel.aclose()
        clean = await channel.exit_code(0) in (0, 1)
        job = job or _job_id_in(channel.error_tail())
        if job and not clean:
            with contextlib.suppress(ExecutorError):
                await run_tool(["scancel", "--quiet", job], deadline_s=REQUEST_S)


def _job_id_in(error_text: str) -> str:
    found = _GRANTED.search(error_text) or _PENDING.search(error_text)
    return found[1] if found else ""


def _refusal_error(options: Sequence[str], code: int | None, error_text: str, deadline_s: float) -> ExecutorError:
    lines = [line.strip().removeprefix("salloc: ").removeprefix("error: ") for line in error_text.splitlines()]
    fields = [
        line for line in lines if line and not re.match(r"(?:Pending|Job allocation|Relinquishing|job \d+)", line)
    ]
    requested = " ".join(options) or "one node"
    last = fields[-1] if fields else f"it ended with exit code {code}"
    if _PENDING.search(error_text) or _BUSY.search(last):
        first = (
            f' ("{fields[0]}")' if fields and not re.search("connection timed out", fields[0], re.IGNORECASE) else ""
        )
        return ExecutorError(
            "blocked",
            f"no nodes were free for `salloc {requested}` within {deadline_s:g} s{first}; the request was withdrawn. "
            "Run preflight inside the job (in its batch script), allow more time (--gather-deadline), or check "
            "nodes with --on ssh --hosts",
            error_text,
        )
    return ExecutorError("denied", f'Slurm rejects `salloc {requested}`: "{last}"', error_text)


def _minutes(request: NodeRequest) -> int:
    """Return the time limit of our allocation: the duration of one run, so that nothing is held for longer."""
    return max(2, math.ceil((request.lasts_s + 60) / 60))


def requested_options(request: NodeRequest, *, timed: bool = False) -> tuple[str, ...]:
    """Return the header's resources as salloc options; node names only with trust, the time only if `timed`."""
    options: dict[str, str] = {}
    for job in request.jobs:
        for claim in job.about("batch_option"):
            if not isinstance(claim.value, Known):
                continue
            option = str(claim.value.value)
            name, equals, value = option.partition("=")
            if (
                (name == "--time" and not timed)
                or (name in _NODE_OPTIONS and not request.trust_job)
                or not _VALUE.fullmatch(value)
            ):
                continue
            options[name] = f"{name}{equals}{value}"
        if options:
            break
    if request.named_nodes:
        options["--nodelist"] = "--nodelist=" + ",".join(node.name for node in request.named_nodes)
        options["--nodes"] = f"--nodes={len(request.named_nodes)}"
    elif "--nodes" not in options and request.count:
        options["--nodes"] = f"--nodes={request.count}"
    # With fewer tasks than nodes Slurm would withdraw nodes; one task each is enough.
    return tuple(options[name] for name in sorted(options))


#: Fields of sinfo(1): node, state, CPUs, MiB, generic resources, features, reason; one line for each node.
_FORMAT = "%N|%T|%c|%m|%G|%f|%E"
#: Words in the state of a node that does not accept new work. A following `~` or `#` means that it sleeps or boots.
_CLOSED_STATES = re.compile(r"drain|down|fail|inval|unknown|future|maint|perfctrs|blocked", re.IGNORECASE)
#: Nodes of partitions that the job does not name are not needed.
_MAX_NODES = 20_000


async def read_cluster(options: Sequence[str]) -> Cluster:
    """Return partitions, the nodes of those in `options`, and whether Slurm accepts. Raises ExecutorError."""
    ran = await run_tool(["scontrol", "show", "partition", "--oneliner"], deadline_s=REQUEST_S)
    if ran.code:
        raise ExecutorError("unreachable", f"Slurm's controller does not respond: {ran.last_error}", ran.errors)
    partitions = tuple(_partition(parse_fields(line)) for line in ran.output.splitlines() if "PartitionName=" in line)
    unknown: list[str] = []
    named = next((option.partition("=")[2] for option in options if option.startswith("--partition=")), "")
    wanted = set(named.split(",")) if named else {item.name for item in partitions if item.is_default}
    nodes: tuple[ClusterNode, ...] = ()
    if wanted & {item.name for item in partitions}:
        try:
            nodes = await _nodes(",".join(sorted(wanted & {item.name for item in partitions})))
        except ExecutorError as error:
            unknown.append(error.message)
    refusal = ""
    try:
        refusal = await _refusal(options)
    except ExecutorError as error:
        unknown.append(error.message)
    return Cluster("slurm", nodes, tuple(unknown), partitions, refusal)


def cluster_from_states(states: dict[str, NodeState]) -> Cluster:
    """Return the nodes of an allocation as a cluster; nothing is known about its other nodes."""
    nodes = tuple(
        ClusterNode(name, {}, closed=_closed_reason(*_split_state(state.fields))) for name, state in states.items()
    )
    return Cluster("slurm", nodes)


def _split_state(output: str) -> tuple[str, str]:
    state, _, reason = output.partition(": ")
    return state, reason


def _closed_reason(state: str, reason: str) -> str:
    """Return why a node in this state does not accept new work; empty if it does."""
    if not _CLOSED_STATES.search(state):
        return ""
    return state.lower() + (f": {reason}" if reason not in ("", "none", "None") else "")


async def _nodes(partitions: str) -> tuple[ClusterNode, ...]:
    command = ["sinfo", "--noheader", "--Node", f"--partition={partitions}", f"--format={_FORMAT}"]
    ran = await run_tool(command, deadline_s=REQUEST_S)
    nodes: dict[str, ClusterNode] = {}
    for line in ran.output.splitlines()[:_MAX_NODES]:
        parts = line.strip().split("|", 6)
        if len(parts) < 7:
            continue
        name, state, cpus, memory, gres, features, reason = parts
        has = {"cpu": _number(cpus), "memory": _number(memory) * 1024 * 1024, "gpu": float(gpus_of_gres(gres))}
        labels = dict.fromkeys(feature for feature in features.split(",") if feature not in ("", "(null)"))
        nodes[name] = ClusterNode(name, has, labels=dict.fromkeys(labels, ""), closed=_closed_reason(state, reason))
    return tuple(nodes.values())


def _number(text: str) -> float:
    digits = re.match(r"\d+", text)
    return float(digits[0]) if digits else 0.0


def _partition(output: dict[str, str]) -> Partition:
    def names_of(name: str) -> tuple[str, ...]:
        return tuple(part for part in output.get(name, "").split(",") if part and part not in ("ALL", "(null)", "NONE"))

    def bound(name: str) -> int | None:
        return int(output[name]) if is_whole_number(output.get(name, "")) else None

    limit = output.get("MaxTime", "")
    return Partition(
        output.get("PartitionName", ""),
        output.get("State", "UP"),
        bound("TotalNodes"),
        bound("MinNodes"),
        bound("MaxNodes"),
        "" if limit in ("UNLIMITED", "INFINITE") else limit,
        output.get("Default") == "YES",
        names_of("AllowAccounts"),
        names_of("DenyAccounts"),
        names_of("AllowQos"),
        names_of("DenyQos"),
    )


async def _refusal(options: Sequence[str]) -> str:
    """Return why sbatch would reject a job with these options; empty if it would accept it. Nothing is submitted."""
    command = ["sbatch", "--test-only", *options, "--output=/dev/null", "--wrap=true"]
    ran = await run_tool(command, deadline_s=REQUEST_S)
    if not ran.code:
        return ""
    output = [line.strip() for line in ran.errors.splitlines() if line.strip()]
    return re.sub(r"^(?:sbatch: error: |allocation failure: |sbatch: )+", "", output[-1])[:300] if output else ""


#: States in which a node of an allocation does not accept a step; srun would wait for it until our deadline.
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
class SlurmExecutor(Executor):
    """Runs agents as steps of one job. After `gather`, `job` is that job."""

    settings: Mapping[str, str] = field(default_factory=dict)
    name: str = "slurm"
    _job: SlurmJob | None = None
    _allocation: Allocation | None = None
    _states: dict[str, NodeState] = field(default_factory=dict)
    _port: str = ""
    #: The name of our steps, and the number of steps that may remain although their srun is gone.
    _step: str = field(default_factory=lambda: f"preflight-{secrets.token_hex(3)}")
    _unfinished: int = 0

    options = (Option("jobid", "A running job of yours, whose nodes are checked.", "71", _job_problem),)

    def configured(self, settings: Mapping[str, str]) -> SlurmExecutor:
        return SlurmExecutor(dict(settings))

    def detect(self, environment: Mapping[str, str]) -> str:
        """Return why this process belongs to a job of Slurm."""
        job = environment.get("SLURM_JOB_ID", "")
        return f"SLURM_JOB_ID={job} is set: this is inside a Slurm job" if job.isdecimal() else ""

    async def check_usable(self, environment: Mapping[str, str], *, deadline_s: float) -> str:
        """Return the Slurm version here. Raises ExecutorError if there is none or its controller does not answer."""
        _require_srun(environment)
        version = await run_tool(["srun", "--version"], deadline_s=deadline_s, environment=environment)
        named = version.output.strip() or "srun"
        pinged = await run_tool(["scontrol", "ping"], deadline_s=deadline_s, environment=environment)
        if pinged.code or " is UP" not in pinged.output:
            why = pinged.last_error or pinged.output.strip() or f"exit code {pinged.code}"
            raise ExecutorError(
                "unreachable", f"there is {named}, but Slurm's controller does not respond ({why}); see `scontrol ping`"
            )
        return f"{named}, whose controller responds"

    async def gather(self, request: NodeRequest) -> GatheredNodes:
        """Return the nodes of the job or of our allocation. Raises ExecutorError, or UsageError for an unknown name."""
        _require_srun(request.environment)
        job, words, cluster = await self._find(request)
        self._job = job
        if not job.nodes:
            why = f" ({job.reason})" if job.reason not in ("", "None") else ""
            raise ExecutorError("blocked", f"Slurm job {job.id} has no nodes: it is {job.state.lower()}{why}")
        strangers = [node.name for node in request.named_nodes if node.name not in job.nodes]
        if strangers:
            held = join_some(job.nodes, 8)
            raise UsageError(f"{', '.join(strangers[:8])}: not nodes of Slurm job {job.id}, which has {held}")
        notes = await self._read_node_states(job)
        nodes = request.named_nodes or tuple(Node(name, index, name) for index, name in enumerate(job.nodes))
        return GatheredNodes(nodes, words, notes, cluster=cluster or cluster_from_states(self._states))

    async def _find(self, request: NodeRequest) -> tuple[SlurmJob, str, Cluster | None]:
        """Return the job with the nodes, how it was found, and data about its partitions, if requested."""
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
        request.on_note(f"requesting nodes from Slurm: salloc {' '.join(options)}")
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
        target = target_of(node)
        if self._job is None:
            raise ExecutorError("blocked", f"{node.name}: there is no known Slurm job that could run a step on it")
        state = self._states.get(target)
        if state is not None and state.flags & _UNUSABLE_STATES:
            raise ExecutorError(
                "unreachable",
                f"{node.name}: Slurm reports it as {state.fields} and starts no step there; see `sinfo -R`",
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
        last_state = ""

        def diagnose(code: int | None, error_text: str) -> ExecutorError:
            return explain(node.name, job, code, error_text, deadline_s=deadline_s, state=last_state)

        async with anyio.create_task_group() as group:

            async def examine() -> None:
                nonlocal last_state
                await anyio.sleep(deadline_s * _LATE_SHARE)
                last_state = await self._describe_silent_node(target)

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
            lines.append("Slurm's controller does not respond")
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
            "refused": f"nothing listens on its port {port}: slurmd is not running",
            "silent": f"its port {port} does not respond: the node is down, or packets are dropped",
            "accepted": "slurmd accepts connections there: it is frozen or busy, or a prolog is running",
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
        """Cancel steps that the controller still lists as ours: they remain if srun was killed before the launch."""
        listing = ["squeue", "--noheader", "--steps", f"--jobs={job}", "--format=%i %j"]
        lines = (await run_tool(listing, deadline_s=REQUEST_S / 2)).output.splitlines()
        steps = [words[0] for words in map(str.split, lines) if words[1:] == [self._step]]
        if steps:
            await run_tool(["scancel", "--quiet", *steps], deadline_s=REQUEST_S / 2)


EXECUTOR = SlurmExecutor


#: srun gives up before our deadline, so that it can report the reason.
_MIN_IMMEDIATE_S = 1
#: Variables for the job's own steps, which would break our steps.
_STEP_VARIABLES = frozenset(f"SLURM_{name}" for name in toml.beside(__file__, "srun_variables.toml")["names"].split())


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
    """Explain srun's failure from `code` (None: still running), `error_text` and the node's `state`."""
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
    return "lacks support for" in line or bool(re.search(r"srun: (?:job|step) .* (?:queued|has been allocated)", line))
