"""The examination: everything at once, each piece isolated and ended at its deadline, in a fixed order."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

import anyio

from preflight import __version__, catalog
from preflight.cache import default_cache
from preflight.doctor import machine, ways
from preflight.doctor.model import Examination
from preflight.examination import Can, Look, Surroundings
from preflight.executors.base import Executor
from preflight.place import named_nodes
from preflight.reach import choose
from preflight.recording import Node
from preflight.report import ExitCode

#: What is missing where a verb can do nothing: without one of these looks there is no lint.
_FOR_LINT = ("packs.files", "packs.rules")
#: How much longer than its deadline a look may take to say why it has no answer.
LATE_S = 5.0
_Make = Callable[[], Awaitable[Iterable[Look]]]


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
    """What this machine can and cannot check.

    Args:
        hosts, hostfile, executor, executor_options: nodes to reach, and the way, as of a check.
        pythons: interpreters that ranks run with, looked at before those that are found here.
        environment: the variables of this process; `stream` is where output goes.
        deadline_s: for each look.

    Raises:
        UsageError: no such executor or option, or a host that is none.
    """
    surroundings = Surroundings(environment, interpreters(pythons, environment), deadline_s)
    named, _ = named_nodes(hosts, hostfile)

    async def all_of_it() -> tuple[Look, ...]:
        way = await choose(
            hosts=hosts, hostfile=hostfile, executor=executor, options=executor_options, environment=environment
        )
        return await _gathered(_parts(surroundings, way.executor, named, stream), deadline_s)

    looks = anyio.run(all_of_it)
    return summed_up(looks)


def interpreters(pythons: Sequence[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """The Pythons that ranks might run with here: those named, that of an environment, the first on the PATH, ours."""
    named = [shutil.which(python) or python for python in pythons]
    active = [
        str(Path(environment[name]) / "bin" / "python")
        for name in ("VIRTUAL_ENV", "CONDA_PREFIX")
        if environment.get(name)
    ]
    folders = environment.get("PATH")
    found = shutil.which("python3", path=folders) or shutil.which("python", path=folders) or ""
    there = [path for path in (*active, found, sys.executable) if os.access(path, os.X_OK)]
    # An environment's Python is a link to the one that it was made with, and yet another interpreter: by folder, too.
    unique: dict[tuple[str, Path], str] = {}
    for path in (*named, *there):
        unique.setdefault((os.path.realpath(path), Path(path).parent), path)
    return tuple(unique.values())


def _parts(
    surroundings: Surroundings, executor: Executor, named: Sequence[Node], stream: TextIO
) -> list[tuple[str, _Make]]:
    """What is looked at, by name, in the order in which it is told."""
    environment, deadline_s = surroundings.environment, surroundings.deadline_s

    async def at_once() -> Iterable[Look]:
        return (machine.python(), *machine.packs())

    async def here() -> Iterable[Look]:
        kept = await anyio.to_thread.run_sync(machine.cache, default_cache())
        return (kept, machine.terminal(stream, environment), machine.limits(len(named)))

    async def keys() -> Iterable[Look]:
        return (await ways.keys(environment, Path(environment.get("HOME", "/"))),)

    def one(way: Executor) -> _Make:
        async def ask() -> Iterable[Look]:
            return (await ways.way(way, environment, deadline_s=deadline_s),)

        return ask

    async def of_hosts() -> Iterable[Look]:
        return await ways.hosts(executor, named, deadline_s=deadline_s)

    parts: list[tuple[str, _Make]] = [("preflight", at_once)]
    parts += [(f"way.{way.name}", one(way)) for way in ways.executors()]
    parts.append(("ssh.keys", keys))
    if named:
        parts.append(("hosts", of_hosts))
    for examiner in catalog.examiners()[0]:
        parts.append((examiner.where, lambda make=examiner.make: make(surroundings)))  # type: ignore[misc]
    parts += [(broken.where, _failing(broken.why)) for broken in catalog.examiners()[1]]
    parts.append(("here", here))
    return parts


def _failing(why: str) -> _Make:
    async def fail() -> Iterable[Look]:
        raise RuntimeError(why)

    return fail


async def _gathered(parts: Sequence[tuple[str, _Make]], deadline_s: float) -> tuple[Look, ...]:
    found: dict[int, tuple[Look, ...]] = {}

    async def take(number: int, name: str, make: _Make) -> None:
        try:
            # Whoever keeps a deadline itself says more than this one, which is for those that do not.
            with anyio.fail_after(deadline_s + LATE_S):
                found[number] = tuple(await make())
        except TimeoutError:
            found[number] = (Look(name, name, Can.UNKNOWN, f"no answer within {deadline_s + LATE_S:g} s"),)
        except Exception as error:
            found[number] = (Look(name, name, Can.UNKNOWN, f"it crashed: {type(error).__name__}: {error}"),)

    async with anyio.create_task_group() as group:
        for number, (name, make) in enumerate(parts):
            group.start_soon(take, number, name, make)
    return tuple(look for number in sorted(found) for look in found[number])


def summed_up(looks: tuple[Look, ...]) -> Examination:
    """What all looks together come to."""
    can = {look.id: look.can for look in looks}
    lint = all(can.get(id) in (Can.YES, Can.PARTLY) for id in _FOR_LINT)
    open_ways = tuple(ways.summary(looks))
    check = bool(open_ways) and can.get("packs.checks") in (Can.YES, Can.PARTLY)
    trains = [look for look in looks if look.id.startswith("training.")]
    smoke = check and any(look.can in (Can.YES, Can.PARTLY) for look in trains)
    code = ExitCode.GO if lint or check else ExitCode.NO_GO
    return Examination(__version__, looks, lint, check, smoke, open_ways, code)
