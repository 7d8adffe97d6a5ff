"""Which ways to nodes are open from this machine: every executor is asked itself, and named hosts are reached."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import anyio

from preflight import catalog
from preflight.examination import Can, Look
from preflight.executors.base import Executor, ExecutorError, Usable
from preflight.executors.tool import run_tool
from preflight.fleet import open_fleet
from preflight.reach import recognising
from preflight.recording import Node, NodeRecord

_ASK_S = 3.0
#: What ssh-add ends with where there is an agent without keys, and where there is no agent.
_NO_KEYS, _NO_AGENT = 1, 2


def executors() -> tuple[Executor, ...]:
    """Every executor but the one that plays recordings, which needs nothing of a machine."""
    return tuple(item for item in catalog.load(catalog.EXECUTORS).items if item.name != "replay")


async def way(executor: Executor, environment: Mapping[str, str], *, deadline_s: float) -> Look:
    """Whether one executor can be used from here, by its own word."""
    about = f"--on {executor.name}"
    lost = f"nodes cannot be reached with {about}"
    here = {found.name: reason for found, reason in recognising(environment)}.get(executor.name, "")
    try:
        if not isinstance(executor, Usable):
            return Look(f"way.{executor.name}", about, Can.UNKNOWN, "it does not say whether it can be used", "", "")
        with anyio.fail_after(deadline_s):
            said = await executor.usable(environment, deadline_s=deadline_s)
    except TimeoutError:
        return Look(f"way.{executor.name}", about, Can.UNKNOWN, f"it did not say within {deadline_s:g} s", lost)
    except ExecutorError as error:
        said, _, remedy = error.message.rpartition("; ")
        known = Can.UNKNOWN if error.kind == "timeout" else Can.NO
        return Look(f"way.{executor.name}", about, known, said or error.message, lost, remedy if said else "")
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(_ASK_S):
            await executor.aclose()
    return Look(f"way.{executor.name}", about, Can.YES, f"{said}; taken by itself: {here}" if here else said)


async def keys(environment: Mapping[str, str], home: Path) -> Look:
    """Which keys ssh could offer: how many an agent holds, and names of files. Nothing of a key is read."""
    try:
        files = sorted(path.stem for path in (home / ".ssh").glob("id_*.pub"))
    except OSError:
        files = []
    said = [f"key files: {', '.join(files)}" if files else "no key files of the usual names"]
    held = 0
    if environment.get("SSH_AUTH_SOCK"):
        try:
            ran = await run_tool(["ssh-add", "-l"], deadline_s=_ASK_S, environment=environment)
        except ExecutorError as error:
            said.append(f"the agent does not answer ({error.kind})")
        else:
            held = len(ran.output.splitlines()) if ran.code == 0 else 0
            said.append("SSH_AUTH_SOCK leads to no agent" if ran.code == _NO_AGENT else f"an agent holds {held}")
    else:
        said.append("no agent (SSH_AUTH_SOCK is not set)")
    if held or files:
        return Look("ssh.keys", "keys for ssh", Can.YES, "; ".join(said))
    return Look(
        "ssh.keys",
        "keys for ssh",
        Can.PARTLY,
        "; ".join(said),
        "hosts that want a key do not let preflight in, which answers no question; a ticket or certificate may do",
        "ssh-keygen -t ed25519 && ssh-copy-id HOST, or eval $(ssh-agent) && ssh-add",
    )


async def hosts(executor: Executor, nodes: Sequence[Node], *, deadline_s: float) -> tuple[Look, ...]:
    """Whether an agent comes up on each of these nodes, as a check would start it."""
    try:
        async with open_fleet(executor, nodes, deadline_s=deadline_s, trainer=False) as fleet:
            records = fleet.records
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(_ASK_S):
            await executor.aclose()
    return tuple(_reached(executor, record) for record in records)


def _reached(executor: Executor, record: NodeRecord) -> Look:
    name = record.node.name
    if not record.problem:
        offset = record.clock_offset_s
        clock = f", clock {offset:+.3f} s" if offset is not None else ""
        return Look(f"host.{name}", name, Can.YES, f"{record.host}, Python {record.python}, as {record.user}{clock}")
    problem = record.problem.removeprefix(f"{name}: ")
    said, _, remedy = problem.rpartition("; ")
    remedy = remedy if said else f"try `{executor.name} {name}` by hand"
    return Look(f"host.{name}", name, Can.NO, said or problem, "nothing can be looked at there", remedy)


def summary(looks: Sequence[Look]) -> Iterator[str]:
    """The names of the executors that can be used."""
    return (look.id.removeprefix("way.") for look in looks if look.id.startswith("way.") and look.can is Can.YES)
