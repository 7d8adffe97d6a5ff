"""The examination of this machine: all items in parallel, each with a deadline, and the result that programs read."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import anyio

from preflight import __version__
from preflight._util.cache import default_cache
from preflight._util.json_output import schema_of
from preflight._util.validation import type_adapter
from preflight.commands.doctor import local_items
from preflight.engine.report import ExitCode
from preflight.executors.base import Executor
from preflight.model.doctor_items import Capability, DoctorItem, Surroundings
from preflight.model.recording import Node
from preflight.plugins import registry
from preflight.runner.job_context import named_nodes
from preflight.runner.node_selection import choose

#: Items without which a command can do nothing.
_FOR_LINT = ("packs.files", "packs.rules")
#: How much longer than its deadline an item may take to report why it has no result.
LATE_S = 5.0
_Make = Callable[[], Awaitable[Iterable[DoctorItem]]]


def examine(
    *,
    hosts: str = "",
    hostfile: Path | None = None,
    executor: str = "",
    executor_options: Sequence[str] = (),
    pythons: Sequence[str] = (),
    environment: Mapping[str, str],
    stream: TextIO,
    deadline_s: float = 20.0,
) -> Examination:
    """Return what this machine can and cannot check.

    Args:
        hosts, hostfile, executor, executor_options: nodes to reach, and how, as for a check.
        pythons: interpreters that ranks run with, examined before those found here.
        environment: the variables of this process; `stream` is where output goes.
        deadline_s: time limit for each item.

    Raises:
        UsageError: an unknown executor or option, or an invalid host.
    """
    surroundings = Surroundings(environment, interpreters(pythons, environment), deadline_s)
    named, _ = named_nodes(hosts, hostfile)

    async def examine_all() -> tuple[DoctorItem, ...]:
        choice = await choose(
            hosts=hosts, hostfile=hostfile, executor=executor, options=executor_options, environment=environment
        )
        return await _examine_parallel(_parts(surroundings, choice.executor, named, stream), deadline_s)

    items = anyio.run(examine_all)
    return summarize(items)


def interpreters(pythons: Sequence[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the Pythons that ranks might use here: the named ones, that of an active environment, the first on PATH,
    and preflight's own.
    """
    named = [shutil.which(python) or python for python in pythons]
    active = [
        str(Path(environment[name]) / "bin" / "python")
        for name in ("VIRTUAL_ENV", "CONDA_PREFIX")
        if environment.get(name)
    ]
    folders = environment.get("PATH")
    found = shutil.which("python3", path=folders) or shutil.which("python", path=folders) or ""
    existing = [path for path in (*active, found, sys.executable) if os.access(path, os.X_OK)]
    # An environment's Python is a link to its base Python but a different interpreter, so the folder counts too.
    unique: dict[tuple[str, Path], str] = {}
    for path in (*named, *existing):
        unique.setdefault((os.path.realpath(path), Path(path).parent), path)
    return tuple(unique.values())


def _parts(
    surroundings: Surroundings, executor: Executor, named: Sequence[Node], stream: TextIO
) -> list[tuple[str, _Make]]:
    """Return the items by name, in report order."""
    environment, deadline_s = surroundings.environment, surroundings.deadline_s

    async def at_once() -> Iterable[DoctorItem]:
        return (local_items.python(), *local_items.packs())

    async def here() -> Iterable[DoctorItem]:
        kept = await anyio.to_thread.run_sync(local_items.cache, default_cache())
        found = await anyio.to_thread.run_sync(local_items.machine, Path.cwd())
        return (kept, found, local_items.terminal(stream, environment), local_items.limits(len(named)))

    async def keys() -> Iterable[DoctorItem]:
        return (await local_items.keys(environment, Path(environment.get("HOME", "/"))),)

    def of_executor(choice: Executor) -> _Make:
        async def examine() -> Iterable[DoctorItem]:
            return (await local_items.executor_item(choice, environment, deadline_s=deadline_s),)

        return examine

    async def of_hosts() -> Iterable[DoctorItem]:
        return await local_items.hosts(executor, named, deadline_s=deadline_s)

    parts: list[tuple[str, _Make]] = [("preflight", at_once)]
    parts += [(f"way.{choice.name}", of_executor(choice)) for choice in local_items.executors()]
    parts.append(("ssh.keys", keys))
    if named:
        parts.append(("hosts", of_hosts))
    for examiner in registry.examiners()[0]:
        parts.append((examiner.where, lambda make=examiner.make: make(surroundings)))  # type: ignore[misc]
    parts += [(broken.where, _always_fails(broken.why)) for broken in registry.examiners()[1]]
    parts.append(("here", here))
    return parts


def _always_fails(why: str) -> _Make:
    async def fail() -> Iterable[DoctorItem]:
        raise RuntimeError(why)

    return fail


async def _examine_parallel(parts: Sequence[tuple[str, _Make]], deadline_s: float) -> tuple[DoctorItem, ...]:
    found: dict[int, tuple[DoctorItem, ...]] = {}

    async def take(number: int, name: str, make: _Make) -> None:
        try:
            # An item that keeps its own deadline gives a better message than this one.
            with anyio.fail_after(deadline_s + LATE_S):
                found[number] = tuple(await make())
        except TimeoutError:
            found[number] = (DoctorItem(name, name, Capability.UNKNOWN, f"no answer within {deadline_s + LATE_S:g} s"),)
        except Exception as error:
            found[number] = (DoctorItem(name, name, Capability.UNKNOWN, f"crashed: {type(error).__name__}: {error}"),)

    async with anyio.create_task_group() as group:
        for number, (name, make) in enumerate(parts):
            group.start_soon(take, number, name, make)
    return tuple(look for number in sorted(found) for look in found[number])


def summarize(items: tuple[DoctorItem, ...]) -> Examination:
    """Return the summary of all items."""
    capability = {look.id: look.capability for look in items}
    lint = all(capability.get(id) in (Capability.YES, Capability.PARTLY) for id in _FOR_LINT)
    open_ways = tuple(local_items.summary(items))
    check = bool(open_ways) and capability.get("packs.checks") in (Capability.YES, Capability.PARTLY)
    trains = [look for look in items if look.id.startswith("training.")]
    smoke = check and any(look.capability in (Capability.YES, Capability.PARTLY) for look in trains)
    code = ExitCode.GO if lint or check else ExitCode.NO_GO
    return Examination(__version__, items, lint, check, smoke, open_ways, code)


SCHEMA_VERSION = 2


@dataclass(frozen=True, slots=True)
class Examination:
    """The examined items, in a fixed order.

    `lint`, `check` and `smoke` tell whether the command can do anything here; `executors` are the executors that can be
    used. `exit_code` is 0 unless nothing at all can be done.
    """

    version: str
    items: tuple[DoctorItem, ...]
    lint: bool
    check: bool
    smoke: bool
    executors: tuple[str, ...]
    exit_code: int
    schema_version: int = SCHEMA_VERSION


def schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of that document."""
    return schema_of(type_adapter(Examination), "preflight examination")
