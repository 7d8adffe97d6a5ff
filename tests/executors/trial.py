"""Use an executor as `preflight check` does, and print the results: `python -m tests.executors.trial WHAT --on NAME`.

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

from preflight.agent.wire import AgentRequest, Context, Done, Event
from preflight.executors.base import ExecutorError, NodeRequest
from preflight.model.recording import Node
from preflight.runner.preparation import ExecutorChoice, choose, find
from preflight.runner.session import OpenFleet, open_fleet

#: The deadline for opening nodes, unless `--deadline` sets another.
DEADLINE_S = 8.0
#: Invalid host names, each with a trap that would leave a file behind.
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
_PROBES = Path(__file__).parents[1] / "agent" / "shipped" / "probes.py"
#: The probes of a plugin, in the form sent to nodes.
SHIPPED = (("shipped.probes", _PROBES.read_text(encoding="utf-8")),)


async def no_bundle() -> bytes:
    """For nodes that never get as far as the bundle."""
    return b""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the requested action, and print its results."""
    parser = argparse.ArgumentParser(prog="python -m tests.executors.trial", description=__doc__)
    parser.add_argument("what", choices=["look", "train", "give-up", "refuse"])
    parser.add_argument("--on", default="")
    parser.add_argument("--on-option", action="append", default=[])
    parser.add_argument("--hosts", default="")
    parser.add_argument("--count", type=int)
    parser.add_argument("--deadline", type=float, default=DEADLINE_S)
    parser.add_argument("--gather", type=float, default=20.0)
    parser.add_argument("--run", default="", help="value of the variable RUN that ranks and all they start carry")
    parser.add_argument("--trap", default="/run/trap")
    options = parser.parse_args(arguments)
    deeds = {"look": _look, "train": _train, "give-up": _give_up, "refuse": _refuse}
    anyio.run(deeds[options.what], options)
    return 0


def _say(**what: object) -> None:
    print(json.dumps(what), flush=True)


async def _choose(options: argparse.Namespace) -> tuple[ExecutorChoice, tuple[Node, ...]]:
    choice = await choose(
        hosts=options.hosts, hostfile=None, executor=options.on, options=options.on_option, environment=os.environ
    )
    wanted = NodeRequest((), choice.named_nodes, options.count, deadline_s=options.gather, environment=os.environ)
    found = await find(choice, wanted)
    names = [node.name for node in found.nodes]
    _say(executor=choice.executor.name, origin=dataclasses.asdict(found.origin), nodes=names)
    return choice, found.nodes


async def _look(options: argparse.Namespace) -> None:
    choice, nodes = await _choose(options)
    began = time.monotonic()
    async with open_fleet(choice.executor, nodes, deadline_s=options.deadline, extra=SHIPPED) as fleet:
        opened_s = time.monotonic() - began
        carried: dict[str, bool] = {}
        async with anyio.create_task_group() as group:
            for name in fleet.sessions:
                group.start_soon(_carry, fleet, name, carried)
        records = [dataclasses.asdict(record) for record in fleet.records]
    _say(records=records, carried=carried, opened_s=opened_s, took_s=time.monotonic() - began)


async def _carry(fleet: OpenFleet, name: str, carried: dict[str, bool]) -> None:
    """Send a megabyte to the node and back."""
    payload = (name * MEGABYTE)[:MEGABYTE]
    answer = await fleet.sessions[name].request("shipped.probes:echo", {"value": payload}, deadline_s=15.0)
    carried[name] = isinstance(answer, Done) and answer.value == payload


async def _train(options: argparse.Namespace) -> None:
    choice, nodes = await _choose(options)
    async with open_fleet(choice.executor, nodes, deadline_s=options.deadline, extra=SHIPPED) as fleet:
        running = []
        for name, session in fleet.sessions.items():

            def on_event(event: Event, name: str = name) -> None:
                if event.origin == "child":
                    _say(training=name)

            context = Context(sys.executable, environment={"RUN": options.run})
            running.append(session.start(AgentRequest(0, "shipped.probes:stubborn", {}, 120.0, context), on_event))
        for one in running:
            _say(answer=repr(await one.result()))


async def _give_up(options: argparse.Namespace) -> None:
    choice, nodes = await _choose(options)
    began = time.monotonic()
    with anyio.move_on_after(1.0):
        async with open_fleet(choice.executor, nodes, deadline_s=60.0, extra=SHIPPED):
            _say(opened=True)
            await anyio.sleep_forever()
    _say(gave_up_s=time.monotonic() - began)
    # So that the caller can look for leftovers while this process still runs.
    sys.stdin.read()


async def _refuse(options: argparse.Namespace) -> None:
    choice, _ = await _choose(options)
    refused = {}
    for index, text in enumerate(HOSTILE):
        name = text.format(trap=f"{options.trap}-{index}")
        try:
            channel = await choice.executor.open(Node(name, 0, name), deadline_s=options.deadline, bundle=no_bundle)
        except ExecutorError as error:
            refused[name] = (error.kind, error.message)
        else:
            await channel.aclose()
            refused[name] = ("opened", "")
    await choice.executor.aclose()
    _say(refused=refused)


if __name__ == "__main__":
    sys.exit(main())
