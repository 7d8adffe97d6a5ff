"""Use an executor as `preflight check` does, and say what came of it: `python -m tests.executors.trial WHAT --on NAME`.

Runs on the head of a virtual cluster, as a process of its own that can be killed. WHAT is `look` (ask every node and
carry a megabyte there and back), `train` (a stubborn rank on every node, until the end), `give-up` (be cancelled while
nodes are being opened) or `refuse` (names that are none). Prints JSON, a line at a time.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import anyio

from preflight.executors.base import ExecutorError, Wanted
from preflight.fleet import OpenFleet, open_fleet
from preflight.node.wire import Ask, Context, Done, Event
from preflight.reach import Way, choose, find
from preflight.recording import Node

#: What no executor may take for a host, each with a trap that would leave a file behind.
HOSTILE = (
    "-oProxyCommand=touch {trap}",
    "--prolog=touch {trap}",
    "node1;touch {trap}",
    "node1 touch {trap}",
    "$(touch {trap})",
    "`touch {trap}`",
    "node1\ntouch {trap}",
    "",
    "node1,node2",
    "node[1-2]",
)
MEGABYTE = 1 << 20
_PROBES = Path(__file__).parents[1] / "node" / "shipped" / "probes.py"
#: The probes of a plugin, as they go to nodes.
SHIPPED = (("shipped.probes", _PROBES.read_text(encoding="utf-8")),)


async def no_bundle() -> bytes:
    """For nodes that nobody gets so far with."""
    return b""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what was asked for, and print what came of it."""
    parser = argparse.ArgumentParser(prog="python -m tests.executors.trial", description=__doc__)
    parser.add_argument("what", choices=["look", "train", "give-up", "refuse"])
    parser.add_argument("--on", default="")
    parser.add_argument("--on-option", action="append", default=[])
    parser.add_argument("--hosts", default="")
    parser.add_argument("--count", type=int)
    parser.add_argument("--deadline", type=float, default=8.0)
    parser.add_argument("--gather", type=float, default=20.0)
    parser.add_argument("--run", default="", help="value of the variable RUN that ranks and all they start carry")
    parser.add_argument("--trap", default="/run/trap")
    options = parser.parse_args(arguments)
    deeds = {"look": _look, "train": _train, "give-up": _give_up, "refuse": _refuse}
    anyio.run(deeds[options.what], options)
    return 0


def _say(**what: object) -> None:
    print(json.dumps(what), flush=True)


async def _way(options: argparse.Namespace) -> tuple[Way, tuple[Node, ...]]:
    way = await choose(
        hosts=options.hosts, hostfile=None, executor=options.on, options=options.on_option, environment=os.environ
    )
    wanted = Wanted((), way.named, options.count, deadline_s=options.gather, environment=os.environ)
    found = await find(way, wanted)
    names = [node.name for node in found.nodes]
    _say(executor=way.executor.name, origin=dataclasses.asdict(found.origin), nodes=names)
    return way, found.nodes


async def _look(options: argparse.Namespace) -> None:
    way, nodes = await _way(options)
    began = time.monotonic()
    async with open_fleet(way.executor, nodes, deadline_s=options.deadline, extra=SHIPPED) as fleet:
        opened_s = time.monotonic() - began
        carried: dict[str, bool] = {}
        async with anyio.create_task_group() as group:
            for name in fleet.sessions:
                group.start_soon(_carry, fleet, name, carried)
        records = [dataclasses.asdict(record) for record in fleet.records]
    _say(records=records, carried=carried, opened_s=opened_s, took_s=time.monotonic() - began)


async def _carry(fleet: OpenFleet, name: str, carried: dict[str, bool]) -> None:
    """A megabyte of the node's own there and back."""
    payload = (name * MEGABYTE)[:MEGABYTE]
    answer = await fleet.sessions[name].ask("shipped.probes:echo", {"value": payload}, deadline_s=15.0)
    carried[name] = isinstance(answer, Done) and answer.value == payload


async def _train(options: argparse.Namespace) -> None:
    way, nodes = await _way(options)
    async with open_fleet(way.executor, nodes, deadline_s=options.deadline, extra=SHIPPED) as fleet:
        running = []
        for name, session in fleet.sessions.items():

            def told(event: Event, name: str = name) -> None:
                if event.origin == "child":
                    _say(training=name)

            context = Context(sys.executable, environment={"RUN": options.run})
            running.append(session.start(Ask(0, "shipped.probes:stubborn", {}, 120.0, context), told))
        for one in running:
            _say(answer=repr(await one.result()))


async def _give_up(options: argparse.Namespace) -> None:
    way, nodes = await _way(options)
    began = time.monotonic()
    with anyio.move_on_after(1.0):
        async with open_fleet(way.executor, nodes, deadline_s=60.0, extra=SHIPPED):
            _say(opened=True)
            await anyio.sleep_forever()
    _say(gave_up_s=time.monotonic() - began)
    # So that whoever started this can look what is still there while this process is.
    sys.stdin.read()


async def _refuse(options: argparse.Namespace) -> None:
    way, _ = await _way(options)
    refused = {}
    for index, text in enumerate(HOSTILE):
        name = text.format(trap=f"{options.trap}-{index}")
        try:
            channel = await way.executor.open(Node(name, 0, name), deadline_s=options.deadline, bundle=no_bundle)
        except ExecutorError as error:
            refused[name] = (error.kind, error.message)
        else:
            await channel.aclose()
            refused[name] = ("opened", "")
    await way.executor.aclose()
    _say(refused=refused)


if __name__ == "__main__":
    sys.exit(main())
