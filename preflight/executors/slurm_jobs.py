"""What Slurm says of a job and its nodes, and an allocation of our own that never outlives us.

An allocation is held by `salloc`, whose command does nothing but wait for the end of a pipe that we hold: whoever
kills us, the pipe ends, the command with it, and salloc gives the nodes back. Killed itself, it leaves a job whose time
limit is that of one run. What salloc does with signals and in the queue was tried with Slurm 22.05.8.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Callable, Sequence

import anyio

from preflight.executors.base import ExecutorError, Wanted
from preflight.executors.pipe import PipeChannel, new_nonce
from preflight.executors.tool import run_tool
from preflight.job import Known
from preflight.job.hostlist import expand_hosts
from preflight.lazy.dataclasses import dataclass
from preflight.lazy.patterns import lazy_pattern

#: How long a single question to the controller may take.
ASK_S = 4.0
#: Options of the job's header that name nodes are the job's word, and need trust.
_NAMING = ("--nodelist", "--exclude")
#: A value as sbatch(1) documents any of them; no blank, no control character, nothing a shell would read.
_VALUE = lazy_pattern(r"[A-Za-z0-9_.,:;=+*/\[\]()&|!@%-]{0,400}", re.ASCII)
_PENDING = lazy_pattern(r"Pending job allocation (\d+)")
_GRANTED = lazy_pattern(r"Granted job allocation (\d+)")
#: What salloc says when nothing is wrong with the request but that nobody is free.
_BUSY = lazy_pattern(
    r"connection timed out|requested nodes are busy|immediate execution impossible|nodes required for job are down,"
    r"|resources|partition .* not available now|partition in (?:down|inactive) state",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Job:
    """A job of Slurm as far as it matters here; `nodes` are in the order in which Slurm counts them."""

    id: str
    nodes: tuple[str, ...]
    state: str = ""
    reason: str = ""
    user: str = ""


async def show_job(job: str, *, deadline_s: float = ASK_S) -> Job:
    """What the controller says of a job. Raises ExecutorError when it does not, or there is none."""
    ran = await run_tool(["scontrol", "show", "job", job, "--oneliner"], deadline_s=deadline_s)
    if ran.code:
        kind = "blocked" if "invalid job id" in ran.errors.lower() else "unreachable"
        raise ExecutorError(kind, f"Slurm does not show job {job}: {ran.last_error}", ran.errors)
    said = fields_of(ran.output.splitlines()[0] if ran.output else "")
    return Job(job, hosts_in(said.get("NodeList", "")), said.get("JobState", ""), said.get("Reason", ""))


def hosts_in(text: str) -> tuple[str, ...]:
    """The nodes of a list of Slurm's; none for `(null)`. Raises ExecutorError for what is no list."""
    if not text or text == "(null)":
        return ()
    try:
        return expand_hosts(text)
    except ValueError as error:
        raise ExecutorError("crashed", f"Slurm's list of nodes is not understood: {error}") from None


def fields_of(line: str) -> dict[str, str]:
    """`A=1 B=two words C=3` as scontrol prints records in one line; a value may hold blanks."""
    pieces = re.split(r"(?:^|\s)([A-Z][A-Za-z:/]*)=", line)
    return {name: value.strip() for name, value in zip(pieces[1::2], pieces[2::2], strict=False)}


@dataclass(frozen=True, slots=True)
class NodeState:
    """What Slurm says of a node: its state with the reason (`DOWN+DRAIN: bad cable`), and where its slurmd is."""

    said: str
    address: str
    port: str = ""

    @property
    def flags(self) -> frozenset[str]:
        """The words of the state alone."""
        return frozenset(self.said.partition(":")[0].split("+"))


async def node_states(nodes: Sequence[str], *, deadline_s: float = ASK_S) -> dict[str, NodeState]:
    """What Slurm says of each node; without those it does not speak of."""
    ran = await run_tool(["scontrol", "show", "node", ",".join(nodes), "--oneliner"], deadline_s=deadline_s)
    found: dict[str, NodeState] = {}
    for line in ran.output.splitlines():
        said = fields_of(line)
        if "NodeName" in said and "State" in said:
            name, reason = said["NodeName"], said.get("Reason", "").partition(" [")[0]
            state = said["State"] + (f": {reason}" if reason else "")
            found[name] = NodeState(state, said.get("NodeAddr", name), said.get("Port", ""))
    return found


async def slurmd_port(*, deadline_s: float = ASK_S) -> str:
    """The port that slurmd listens on where nothing else is said of a node; empty when the controller is silent."""
    ran = await run_tool(["scontrol", "show", "config"], deadline_s=deadline_s)
    found = re.search(r"^SlurmdPort\s*=\s*(\d+)\s*$", ran.output, re.MULTILINE)
    return found[1] if found else ""


class Allocation:
    """Nodes that we hold for one run. `aclose` gives them back, and so does the end of this process."""

    def __init__(self, channel: PipeChannel, job: Job) -> None:
        self.job = job
        self._channel = channel

    async def aclose(self) -> None:
        """Give the nodes back, and see to it that they are."""
        await _let_go(self._channel, self.job.id)


async def allocate(wanted: Wanted, options: Sequence[str], *, deadline_s: float) -> Allocation:
    """Ask Slurm for nodes and wait for them.

    Raises:
        ExecutorError: "blocked" when none is free in time, "denied" when Slurm refuses, each with its words.
    """
    nonce = new_nonce()
    told = f'echo "{nonce} $SLURM_JOB_ID $SLURM_JOB_NODELIST"; exec cat >/dev/null'
    limit = max(1, math.floor(deadline_s))
    command = [
        *("salloc", *options, f"--time={_minutes(wanted)}", f"--immediate={limit}", "--wait-all-nodes=1"),
        *("--kill-command=TERM", "--job-name=preflight", "--no-bell", "--", "/bin/sh", "-c", told),
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SALLOC_", "SLURM_JOB"))}
    try:
        channel = PipeChannel(command, description="salloc", environment={**environment, "LC_ALL": "C"})
    except OSError as error:
        raise ExecutorError("missing", f"`salloc` cannot be run here: {error.strerror}") from error
    try:
        with anyio.fail_after(deadline_s + 3.0):
            heard = await _granted(channel, f"{nonce} ", wanted.tell)
    except TimeoutError:
        heard = None
    except BaseException:
        await _let_go(channel, _id_in(channel.last_words()))
        raise
    if heard is None:
        # Let salloc say its last words first: it takes its request back itself.
        code = await channel.exit_code(2.0)
        words = channel.last_words()
        await _let_go(channel, _id_in(words))
        raise _refused(options, code, words, deadline_s)
    id, _, nodes = heard.partition(" ")
    return Allocation(channel, Job(id, hosts_in(nodes.strip()), "RUNNING"))


async def _granted(channel: PipeChannel, mark: str, tell: Callable[[str], None]) -> str | None:
    """What the command inside of the allocation says behind the mark; None when salloc ended without."""
    told = ""
    heard = ""
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            nonlocal told
            while True:
                await anyio.sleep(0.2)
                pending = _PENDING.search(channel.last_words())
                if pending and not told:
                    told = pending[1]
                    tell(f"Slurm job {told}, which asks for the nodes, is waiting in the queue")

        group.start_soon(watch)
        try:
            while True:
                data = await channel.receive()
                heard += data.decode("utf-8", "replace")
                place = heard.find(mark)
                if place >= 0 and "\n" in heard[place:]:
                    return heard[place + len(mark) :].split("\n", 1)[0]
                if not data:
                    return None
        finally:
            group.cancel_scope.cancel()
    return None


async def _let_go(channel: PipeChannel, job: str) -> None:
    """End salloc, and cancel its job if it cannot have done so itself."""
    with anyio.CancelScope(shield=True):
        if not job:
            # In the queue salloc heeds no end of its pipe: it has to be told, and then says what it asked for.
            channel.abandon()
        await channel.aclose()
        clean = await channel.exit_code(0) in (0, 1)
        job = job or _id_in(channel.last_words())
        if job and not clean:
            with contextlib.suppress(ExecutorError):
                await run_tool(["scancel", "--quiet", job], deadline_s=ASK_S)


def _id_in(words: str) -> str:
    found = _GRANTED.search(words) or _PENDING.search(words)
    return found[1] if found else ""


def _refused(options: Sequence[str], code: int | None, words: str, deadline_s: float) -> ExecutorError:
    lines = [line.strip().removeprefix("salloc: ").removeprefix("error: ") for line in words.splitlines()]
    said = [line for line in lines if line and not re.match(r"(?:Pending|Job allocation|Relinquishing|job \d+)", line)]
    asked = " ".join(options) or "one node"
    last = said[-1] if said else f"it ended with exit code {code}"
    if _PENDING.search(words) or _BUSY.search(last):
        first = f' ("{said[0]}")' if said and not re.search("connection timed out", said[0], re.IGNORECASE) else ""
        return ExecutorError(
            "blocked",
            f"no nodes were free for `salloc {asked}` within {deadline_s:g} s{first}; the request was taken back. "
            "Run preflight inside the job (in its batch script), give it longer (--gather-deadline), or look at nodes "
            "with --on ssh --hosts",
            words,
        )
    return ExecutorError("denied", f'Slurm refuses `salloc {asked}`: "{last}"', words)


def _minutes(wanted: Wanted) -> int:
    """The time limit of our allocation: what one run may take, so that nothing is held for longer whatever happens."""
    return max(2, math.ceil((wanted.lasts_s + 60) / 60))


def request_of(wanted: Wanted, *, timed: bool = False) -> tuple[str, ...]:
    """The resources that the job's own header asks for, as options of salloc; the last word on each option counts.

    Which nodes by name, only with trust; the time limit only if `timed`, because our own is shorter.
    """
    found: dict[str, str] = {}
    for job in wanted.jobs:
        for claim in job.about("batch_option"):
            if not isinstance(claim.value, Known):
                continue
            option = str(claim.value.value)
            name, equals, value = option.partition("=")
            if (
                (name == "--time" and not timed)
                or (name in _NAMING and not wanted.trust_job)
                or not _VALUE.fullmatch(value)
            ):
                continue
            found[name] = f"{name}{equals}{value}"
        if found:
            break
    if wanted.named:
        found["--nodelist"] = "--nodelist=" + ",".join(node.name for node in wanted.named)
        found["--nodes"] = f"--nodes={len(wanted.named)}"
    elif "--nodes" not in found and wanted.count:
        found["--nodes"] = f"--nodes={wanted.count}"
    # With fewer tasks than nodes Slurm would take nodes away again; one task each is enough for us.
    return tuple(found[name] for name in sorted(found))
