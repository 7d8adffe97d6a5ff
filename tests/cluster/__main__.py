"""Run a command in the head of a virtual cluster: `python -m tests.cluster -n 4 -- ssh node1 hostname`."""

from __future__ import annotations

import argparse
import inspect
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from . import faults
from .cluster import Cluster
from .namespace import ClusterError
from .needs import needs


def main(arguments: Sequence[str] | None = None) -> int:
    """Start a cluster, inject the requested faults, run the command, and exit with its status."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("-n", "--nodes", type=int, default=4, help="how many nodes (default: 4)")
    parser.add_argument("--gpus", type=int, default=0, help="stub GPUs per node (default: none)")
    parser.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="NAME:NODE[:ARGUMENT...]",
        help=f"break something first, for example drop_port:node3:29500; one of {', '.join(_names())}",
    )
    parser.add_argument("command", nargs="*", help="what to run in the head (default: a shell)")
    options = parser.parse_args(arguments)
    reasons = needs()
    if reasons:
        print(f"virtual nodes are not possible here: {'; '.join(reasons)}", file=sys.stderr)
        return 2
    try:
        with Cluster(options.nodes, gpus=options.gpus) as cluster, ExitStack() as undo:
            for fault in options.fault:
                _enter(undo, cluster, fault)
            return _run(cluster, options.command or ["bash", "--norc"])
    except (ClusterError, KeyError, TypeError, ValueError) as error:
        print(f"python -m tests.cluster: {error}", file=sys.stderr)
        return 2


def _names() -> list[str]:
    return [
        name for name, fault in vars(faults).items() if getattr(fault, "__module__", "").startswith(faults.__name__)
    ]


def _enter(undo: ExitStack, cluster: Cluster, text: str) -> None:
    name, *words = text.split(":")
    if name not in _names():
        raise ValueError(f"no fault {name!r}; there are {', '.join(_names())}")
    fault = getattr(faults, name)
    parameters = inspect.signature(fault).parameters.values()
    values = [
        _value(cluster, str(parameter.annotation), word) for parameter, word in zip(parameters, words, strict=False)
    ]
    undo.enter_context(fault(*values))


def _value(cluster: Cluster, annotation: str, word: str) -> object:
    """One word of a --fault, converted to the type of its parameter; annotations are text in this package."""
    if annotation == "Node":
        return cluster.node(word)
    if annotation == "Sequence[int]":
        return [int(part) for part in word.split(",")]
    return {"int": int, "float": float}.get(annotation, str)(word)


def _run(cluster: Cluster, command: Sequence[str]) -> int:
    process = cluster.head.popen(command, stdin=None, stdout=None, stderr=None, own_session=False)
    # The terminal sends its interrupt to the command too, which decides what to do.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return process.wait()
    finally:
        signal.signal(signal.SIGINT, before)


if __name__ == "__main__":
    sys.exit(main())
