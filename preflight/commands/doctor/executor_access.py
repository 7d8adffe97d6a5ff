"""Which executors can be used from this machine, and whether the named hosts can be reached."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import anyio

from preflight.executors.base import Executor, ExecutorError, Usable
from preflight.executors.tool import run_tool
from preflight.model.doctor_items import Capability, DoctorItem
from preflight.model.recording import Node, NodeRecord
from preflight.plugins import registry
from preflight.runner.fleet import open_fleet
from preflight.runner.node_selection import recognising_executors

_REQUEST_S = 3.0
#: Exit codes of ssh-add for an agent without keys, and for no agent.
_NO_KEYS, _NO_AGENT = 1, 2


def executors() -> tuple[Executor, ...]:
    """Return every executor except the one that replays recordings, which needs nothing from a machine."""
    return tuple(item for item in registry.load(registry.EXECUTORS).items if item.name != "replay")


async def executor_item(executor: Executor, environment: Mapping[str, str], *, deadline_s: float) -> DoctorItem:
    """Return whether an executor can be used from here, as it reports itself."""
    about = f"--on {executor.name}"
    lost = f"nodes cannot be reached with {about}"
    here = {found.name: reason for found, reason in recognising_executors(environment)}.get(executor.name, "")
    try:
        if not isinstance(executor, Usable):
            return DoctorItem(
                f"way.{executor.name}", about, Capability.UNKNOWN, "it does not report whether it can be used", "", ""
            )
        with anyio.fail_after(deadline_s):
            usable = await executor.usable(environment, deadline_s=deadline_s)
    except TimeoutError:
        return DoctorItem(
            f"way.{executor.name}", about, Capability.UNKNOWN, f"it did not answer within {deadline_s:g} s", lost
        )
    except ExecutorError as error:
        usable, _, remedy = error.message.rpartition("; ")
        known = Capability.UNKNOWN if error.kind == "timeout" else Capability.NO
        return DoctorItem(f"way.{executor.name}", about, known, usable or error.message, lost, remedy if usable else "")
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(_REQUEST_S):
            await executor.aclose()
    return DoctorItem(
        f"way.{executor.name}", about, Capability.YES, f"{usable}; chosen by default: {here}" if here else usable
    )


async def keys(environment: Mapping[str, str], home: Path) -> DoctorItem:
    """Return which keys ssh could offer: the number held by an agent, and names of key files. No key is read."""
    try:
        files = sorted(path.stem for path in (home / ".ssh").glob("id_*.pub"))
    except OSError:
        files = []
    usable = [f"key files: {', '.join(files)}" if files else "no key files with the usual names"]
    held = 0
    if environment.get("SSH_AUTH_SOCK"):
        try:
            ran = await run_tool(["ssh-add", "-l"], deadline_s=_REQUEST_S, environment=environment)
        except ExecutorError as error:
            usable.append(f"the agent does not answer ({error.kind})")
        else:
            held = len(ran.output.splitlines()) if ran.code == 0 else 0
            usable.append("no agent answers at SSH_AUTH_SOCK" if ran.code == _NO_AGENT else f"an agent holds {held}")
    else:
        usable.append("no agent (SSH_AUTH_SOCK is not set)")
    if held or files:
        return DoctorItem("ssh.keys", "SSH keys", Capability.YES, "; ".join(usable))
    return DoctorItem(
        "ssh.keys",
        "SSH keys",
        Capability.PARTLY,
        "; ".join(usable),
        "hosts that require a key reject preflight, which cannot type a password; a ticket or certificate may work",
        "ssh-keygen -t ed25519 && ssh-copy-id HOST, or eval $(ssh-agent) && ssh-add",
    )


async def hosts(executor: Executor, nodes: Sequence[Node], *, deadline_s: float) -> tuple[DoctorItem, ...]:
    """Return whether an agent starts on each of these nodes, as it would for a check."""
    try:
        async with open_fleet(executor, nodes, deadline_s=deadline_s, trainer=False) as fleet:
            records = fleet.records
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(_REQUEST_S):
            await executor.aclose()
    return tuple(_node_item(executor, record) for record in records)


def _node_item(executor: Executor, record: NodeRecord) -> DoctorItem:
    name = record.node.name
    if not record.problem:
        offset = record.clock_offset_s
        clock = f", clock {offset:+.3f} s" if offset is not None else ""
        return DoctorItem(
            f"host.{name}", name, Capability.YES, f"{record.host}, Python {record.python}, as {record.user}{clock}"
        )
    problem = record.problem.removeprefix(f"{name}: ")
    usable, _, remedy = problem.rpartition("; ")
    remedy = remedy if usable else f"try `{executor.name} {name}` by hand"
    return DoctorItem(f"host.{name}", name, Capability.NO, usable or problem, "nothing can be checked there", remedy)


def summary(items: Sequence[DoctorItem]) -> Iterator[str]:
    """Return the names of the executors that can be used."""
    return (
        look.id.removeprefix("way.")
        for look in items
        if look.id.startswith("way.") and look.capability is Capability.YES
    )
