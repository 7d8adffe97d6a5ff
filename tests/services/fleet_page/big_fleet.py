"""A history of any size, written as rows: a thousand nodes and ninety nights in seconds.

The writer of preflight would build a report of each night first. That both give the same tables is a test.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from typing import Any

from preflight.commands.history import database as tables
from preflight.commands.history.database import open_database

#: The first night, in seconds since the epoch: 2026-06-01 03:00 UTC.
FIRST = 1_780_282_800
_DAY_S = 86_400
QUANTITIES = (
    ("gpu_temperature", "temperature of the warmest GPU", "celsius", "gauge", "lower", 46.0),
    ("clock_offset", "offset of the clock", "seconds", "gauge", "lower", 0.002),
    ("node_bandwidth", "throughput over its links", "bits_per_second", "gauge", "higher", 9.2e9),
    ("node_latency", "round trip over its links", "seconds", "gauge", "lower", 45e-6),
    ("rank_pace", "time of a fixed piece of work on the slowest rank", "seconds", "gauge", "lower", 0.01),
    ("gpu_ecc_corrected", "corrected memory errors of the GPUs", "", "counter", "lower", 3.0),
)
LINKS = (
    ("link_bandwidth", "throughput of a link", "bits_per_second", "gauge", "higher", 9.2e9),
    ("link_latency", "round trip of a link", "seconds", "gauge", "lower", 45e-6),
)
FAULTS = (
    ("SYS002", "tasks-wait", "tasks wait for the disk"),
    ("DSK001", "disk-full", "/tmp has 12 MiB left, expected at least 1 GiB"),
    ("GPU004", "gpu-in-use", "GPU 3 is used by pid 4711"),
)


def name_of(number: int) -> str:
    """The name of a node, from 0."""
    return f"node{number + 1:04d}"


def build(address: str, size: int, nights: int, *, seed: int = 1, links_of_a_node: int = 2) -> None:
    """Write the nights into a new database.

    Node 7 fails every night from the middle on; link 5 to 6 gets slower; the kernel changes on a tenth in the middle.
    """
    chance = random.Random(seed)
    database = open_database(address)
    ids = list(range(1, size + 1))
    sets = [
        {"driver": "550.54.15", "gpu": gpu, "gpus": "8", "kernel": kernel, "os": "ubuntu 22.04"}
        for gpu in ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB")
        for kernel in ("5.15.0-105", "6.8.0-31")
    ]
    quantities = [*QUANTITIES, *LINKS]
    levels = {name: [usual * math.exp(chance.gauss(0, 0.03)) for _ in ids] for name, *_, usual in quantities}
    with database.writing() as connection:

        def put(table: Any, rows: list[dict[str, Any]]) -> None:
            if rows:
                connection.execute(table.insert(), rows)

        put(tables.NODES, [{"id": id, "name": name_of(id - 1)} for id in ids])
        put(
            tables.PROPERTY_SETS,
            [
                {"id": number, "digest": hashlib.sha256(text.encode()).hexdigest(), "content": text}
                for number, text in enumerate((json.dumps(item, sort_keys=True) for item in sets), 1)
            ],
        )
        columns = ("name", "title", "unit", "kind", "better")
        put(
            tables.QUANTITIES,
            [
                {"id": number, **dict(zip(columns, item, strict=False)), "least": 0.0, "share": 0.05}
                for number, item in enumerate(quantities, 1)
            ],
        )
        for night in range(nights):
            failing = {id: FAULTS[(id + night) % 3] for id in ids if chance.random() < 0.006}
            if night >= nights // 2 and size > 7:
                failing[8] = ("GPU001", "gpu-fell-off", "7 of 8 GPUs answer: GPU 5 fell off the bus <b>&amp;</b>")
            absent = {id for id in ids if chance.random() < 0.01 and id not in failing}
            unknown = {id for id in ids if chance.random() < 0.002 and id not in failing} - absent
            present = [id for id in ids if id not in absent]
            put(
                tables.RUNS,
                [
                    {
                        "id": night + 1,
                        "key": f"{seed}-{night}",
                        "began": FIRST + night * _DAY_S,
                        "verb": "nodes",
                        "verdict": "no-go" if failing else "incomplete" if unknown else "go",
                        "exit_code": 1 if failing else 3 if unknown else 0,
                        "executor": "ssh",
                        "tool_version": "0.1.0",
                    }
                ],
            )
            put(
                tables.NODE_RUNS,
                [
                    {
                        "run_id": night + 1,
                        "node_id": id,
                        "state": "failing" if id in failing else "unknown" if id in unknown else "passing",
                        "problem": "",
                        "property_set_id": (1 if id <= 0.6 * size else 3) + (night >= nights // 2 and id % 10 == 0),
                    }
                    for id in present
                ],
            )
            put(
                tables.OUTCOMES,
                [
                    {
                        "run_id": night + 1,
                        "node_id": id,
                        "rule": rule,
                        "name": name,
                        "status": "fail",
                        "severity": "error",
                        "message": message,
                    }
                    for id, (rule, name, message) in failing.items()
                ]
                + [
                    {
                        "run_id": night + 1,
                        "node_id": id,
                        "rule": "NET003",
                        "name": "mtu-differs",
                        "status": "unknown",
                        "severity": "info",
                        "message": "the interface could not be read",
                    }
                    for id in sorted(unknown)
                ],
            )
            pairs = [
                (present[at], present[(at + 1 + (night * links_of_a_node + step) % (len(present) - 1)) % len(present)])
                for at in range(len(present))
                for step in range(links_of_a_node)
            ]
            # The same neighbours in every night, so that there are links to follow.
            pairs += [(id, id + 1) for id in present if id + 1 in present]
            rows = []
            for number, (name, *_) in enumerate(quantities, 1):
                level, is_link = levels[name], number > len(QUANTITIES)
                subjects = sorted(set(pairs)) if is_link else [(id, 0) for id in present]
                values = []
                for id, peer in subjects:
                    value = level[id - 1] * (1 + 0.02 * math.sin(id * 7 + night * 3))
                    if name == "link_bandwidth" and (id, peer) == (5, 6):
                        value *= 1 - 0.5 * night / nights
                    values.append(float(f"{value:.6g}"))
                rows.append(
                    {
                        "run_id": night + 1,
                        "quantity_id": number,
                        "node_ids": json.dumps([id for id, _ in subjects], separators=(",", ":")),
                        "peer_ids": json.dumps(
                            [peer for _, peer in subjects] if is_link else [], separators=(",", ":")
                        ),
                        "value_list": json.dumps(values, separators=(",", ":")),
                    }
                )
            put(tables.MEASUREMENTS, rows)
    database.close()
