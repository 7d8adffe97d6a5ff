"""Reports of one scenario at any size: conflicting node counts, an unreachable node, a slow one, an outdated one.

`python -m tests.reporters.html.stories OUT NODES` writes the page of one, to look at.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

from preflight.analysis.link_matrix import ALL_PAIRS_UP_TO
from preflight.engine.report import AvoidedCost, Report
from preflight.model.charts import (
    Bar,
    Bars,
    Cell,
    Chart,
    Column,
    Lane,
    Layout,
    Mark,
    Matrix,
    Piece,
    Place,
    Row,
    Span,
    Table,
    Timeline,
)
from preflight.model.findings import Edit, Evidence, Fix, Severity
from preflight.model.job import span_of
from preflight.model.recording import Node, NodeRecord
from preflight.plugins.authoring import failed, not_applicable, passed, root_command, unknown
from preflight.reporters.base import Style
from preflight.reporters.html import REPORTER
from tests.builders import job, judged, make_check, make_recording, make_rule

SCRIPT = """#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
export NCCL_SOCKET_IFNAME=ib0
srun torchrun --nnodes=8 --nproc_per_node=8 --master_addr=node1 --master_port=29500 \\
    train.py --deepspeed ds.json
"""
_OPEN = "ufw allow from 10.0.0.0/16 to any port 29500:29600 proto tcp"
_PHASES = (("start", 0.4), ("import torch", 2.1), ("meet", 0.5), ("exact sums", 0.9), ("train", 2.2), ("compare", 0.3))


def names(count: int) -> tuple[str, ...]:
    """The nodes of a story: `node1` to `node4`, or `worker0001` and so on."""
    if count < 10:
        return tuple(f"node{number}" for number in range(1, count + 1))
    return tuple(f"worker{number:0{len(str(count))}d}" for number in range(1, count + 1))


def story(count: int = 4) -> Report:
    """The report on this many nodes, with one chart of each kind."""
    nodes = names(count)
    shut, slow, old = nodes[count // 2], nodes[count * 4 // 5], nodes[count // 3]
    report = judged(_recording(nodes), _rules(), _checks(nodes, shut, old))
    hours = count * 0.25
    waited = AvoidedCost(
        ("LNK001", "WLD001"),
        count,
        f"--hosts {nodes[0]},...",
        900,
        "torchrun's default for `join_timeout`, 900 s",
        hours,
        8,
        "`--nproc_per_node=8` in train.sbatch:5",
        hours * 8,
    )
    return replace(report, charts=charts(nodes, shut, slow, old), avoided_cost=waited)


def _recording(nodes: tuple[str, ...]):  # type: ignore[no-untyped-def]
    records = tuple(
        NodeRecord(Node(name, number, name), python="3.11.7", round_trip_s=0.0004 + _noise(number, 7) * 1e-4)
        for number, name in enumerate(nodes)
    )
    return make_recording(
        job(name="train.sbatch"),
        verb="check",
        nodes=records,
        stages=("open", "node", "link"),
        skipped=[("smoke", "the job cannot start: WLD001")],
    )


def _rules():  # type: ignore[no-untyped-def]
    def at(words: str, *, behind: str = "") -> object:
        start = SCRIPT.index(words, SCRIPT.index(behind) if behind else 0)
        return span_of("train.sbatch", SCRIPT, start, start + len(words))

    column = SCRIPT.splitlines()[4].index("--nnodes=8") + 1
    mended = Fix("say --nnodes=4", (Edit("train.sbatch", 5, column, "--nnodes=8", "--nnodes=4"),), safe=True)
    return [
        make_rule(
            lambda _: [
                failed(
                    "train.sbatch:5",
                    "`--nnodes=8` waits for 8 nodes, but `--nodes=4` starts 4: the job hangs at rendezvous until its "
                    "time-out.",
                    at=at("--nnodes=8"),
                    also=[(at("--nodes=4"), "4 nodes are granted here")],
                    remedy="Say --nnodes=$SLURM_NNODES, so that the two cannot differ.",
                    fix=mended,
                )
            ],
            "WLD001",
            "launch-size-disagreement",
        ),
        make_rule(lambda _: [passed("train.sbatch"), passed("ds.json")], "FIL001", "unreadable-input"),
        make_rule(
            lambda _: [not_applicable("train.sbatch:5", "no parameter servers are started")], "PSV001", "servers"
        ),
        make_rule(lambda _: [unknown("train.sbatch:5", "$PORT is set by the caller")], "RDV001", "port-in-use"),
    ]


def _checks(nodes: tuple[str, ...], shut: str, old: str):  # type: ignore[no-untyped-def]
    refused = Evidence("links:dial", "connection refused", "connected", f"nc -zv {shut} 29500", nodes[0])
    other = Evidence(
        "software:versions",
        "NCCL 2.18.5",
        "NCCL 2.21.5, as on the others",
        "python -c 'import torch; print(torch.cuda.nccl.version())'",
        old,
    )
    clocks = [Evidence("clocks:kept", "not synchronised", "synchronised", "timedatectl", name) for name in nodes]
    return [
        make_check(
            lambda *_: [
                failed(
                    shut,
                    f"nobody reaches {shut} on port 29500: all {len(nodes) - 1} others are refused",
                    at=refused,
                    nodes=[shut],
                    remedy=f"Open ports 29500-29600 between the nodes in {shut}'s firewall.",
                    run=[root_command(*_OPEN.split(), on=[shut])],
                    waits_at="rendezvous",
                )
            ],
            "LNK001",
            "node-unreachable",
            when="link",
        ),
        make_check(
            lambda *_: [
                failed(
                    old,
                    f"{old} has NCCL 2.18.5, the {len(nodes) - 1} others have 2.21.5",
                    at=other,
                    nodes=[old],
                    remedy="Install the same wheel everywhere: pip install nvidia-nccl-cu12==2.21.5.",
                )
            ],
            "VER003",
            "nccl-versions-differ",
            severity=Severity.WARNING,
        ),
        make_check(
            lambda *_: [
                failed(
                    "clocks",
                    f"the clocks of {len(nodes)} nodes are not synchronised",
                    at=clocks[0],
                    also=clocks[1:],
                    nodes=nodes,
                    remedy="Start a time daemon on each of them.",
                )
            ],
            "CLK002",
            "clock-not-kept",
            severity=Severity.INFO,
        ),
        make_check(lambda *_: [passed(f"links: {len(nodes)} nodes, both ways")], "LNK002", "link-slow", when="link"),
        make_check(lambda *_: [unknown("RDMA", "no RDMA tools on the nodes")], "RDM001", "rdma-down"),
    ]


def _noise(*numbers: int) -> float:
    """Between 0 and 1, the same for the same numbers."""
    return math.sin(sum(number * (12.9898 + index * 31.7) for index, number in enumerate(numbers))) * 43758.5453 % 1


def charts(nodes: tuple[str, ...], shut: str, slow: str, old: str) -> tuple[Chart, ...]:
    """One of each kind, about these nodes."""
    count = len(nodes)
    tried = [
        (row, column)
        for row in range(count)
        for column in range(count)
        if row != column and (count <= ALL_PAIRS_UP_TO or (row - column) % count % (count // 24) == 1)
    ]
    total = f"{len(tried):,} of {count * (count - 1):,} pairs were tried"
    reach = tuple(
        Mark(row, column, None, "bad", "connection refused") if nodes[column] == shut else Mark(row, column, None, "ok")
        for row, column in tried
    )
    speeds = tuple(_speed(nodes, row, column, shut, slow) for row, column in tried)
    return (
        Matrix(
            "links.reach",
            "Reachability",
            f"Every node dials the others over TCP; {total}.",
            "",
            nodes,
            nodes,
            reach,
        ),
        Matrix("links.bandwidth", "Bandwidth", f"One TCP stream for 0.2 s; {total}.", "Gbit/s", nodes, nodes, speeds),
        _versions(nodes, old),
        _steps(nodes, slow),
        Bars(
            "smoke.stragglers",
            "Stragglers",
            "Median time of a training step by itself, before waiting for others.",
            "s",
            tuple(
                Bar(
                    f"rank {number}",
                    name,
                    0.021 * (1.6 if name == slow else 1 + _noise(number, 3) * 0.08),
                    name == slow,
                )
                for number, name in enumerate(nodes)
            ),
        ),
        _placement(nodes),
    )


def _speed(nodes: tuple[str, ...], row: int, column: int, shut: str, slow: str) -> Mark:
    if nodes[column] == shut:
        return Mark(row, column, None, "unknown", "not reached")
    if slow in (nodes[row], nodes[column]):
        return Mark(row, column, 9.1 + _noise(row, column), "bad", "a tenth of the others")
    return Mark(row, column, 88 + _noise(row, column) * 10, "ok")


def _versions(nodes: tuple[str, ...], old: str) -> Table:
    columns = tuple(Column(name) for name in ("driver", "CUDA", "torch", "NCCL", "kernel"))
    usual = ("550.54.15", "12.4", "2.5.1", "2.21.5", "6.1.0-27")
    rows = []
    for name in nodes:
        cells = [Cell(value) for value in usual]
        if name == old:
            cells[3] = Cell("2.18.5", odd=True, why="2.21.5 on the others")
        if name == nodes[0]:
            cells[4] = Cell(None, why="uname is not there")
        rows.append(Row(name, tuple(cells)))
    note = f"{len(nodes)} nodes, as the ranks' own interpreter sees them."
    return Table("versions", "Versions", note, columns, tuple(rows))


def _steps(nodes: tuple[str, ...], slow: str) -> Timeline:
    lanes = []
    for number, name in enumerate(nodes):
        at, spans = 0.0, []
        for phase, seconds in _PHASES:
            factor = 1.9 if name == slow and phase == "train" else 0.9 + _noise(number, len(phase)) * 0.2
            spans.append(Span(at, at + seconds * factor, phase))
            at += seconds * factor
        lanes.append(Lane(f"rank {number}", name, tuple(spans)))
    return Timeline("smoke.steps", "Steps of the smoke run", f"{len(nodes)} ranks, one on each node.", tuple(lanes))


def _placement(nodes: tuple[str, ...]) -> Layout:
    servers = max(2, len(nodes) // 8)
    places = []
    for number, name in enumerate(nodes):
        pieces = [Piece(f"worker {number}", "worker", None)]
        if number < servers:
            pieces.insert(0, Piece(f"server {number}", "server", (1.5 + _noise(number) * 0.4) * 2**30))
        places.append(Place(name, tuple(pieces)))
    note = f"{servers} servers hold the dense parameters and the tables."
    return Layout("servers.placement", "Who is where", note, "bytes", tuple(places))


def page(report: Report) -> bytes:
    """The report as an HTML file."""
    return REPORTER.render(report, Style())


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(page(story(int(sys.argv[2]))))
