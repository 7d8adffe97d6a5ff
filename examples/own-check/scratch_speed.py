"""A check in one file: is /scratch fast enough? Use it with `preflight check JOB --plugin scratch_speed.py`.

The probe runs on each node, with Python 3.8 or newer and only the parts of preflight that probes may use. The check
judges the facts, and may use all of preflight.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from preflight.plugin import (
    Confidence,
    Evidence,
    Facts,
    Fleet,
    Job,
    Pack,
    ProbeUnavailable,
    Request,
    Severity,
    Unavailable,
    Verdict,
    check,
    failed,
    not_applicable,
    passed,
    probe_name,
    unknown,
)

#: The title of this area of checks, for the last lines of a report.
PACK = Pack(areas={"ACM": "Acme's cluster"})
FOLDER = os.environ.get("ACME_SCRATCH", "/scratch")
MIB = 2**20


@dataclass(frozen=True)
class Speed:
    """The number of written bytes, and the time until they were flushed."""

    wrote_bytes: int
    took_s: float


def scratch_speed(params: dict[str, Any]) -> Speed:
    """Measure how long it takes to write a file of `params["bytes"]` to `params["folder"]` and to flush it."""
    file = Path(params["folder"], f".preflight-{os.getpid()}")
    data = b"\0" * MIB
    began = time.monotonic()
    try:
        with file.open("xb") as stream:
            for _ in range(params["bytes"] // MIB):
                stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        return Speed(params["bytes"], time.monotonic() - began)
    except FileNotFoundError:
        raise ProbeUnavailable("missing", f"{file.parent} does not exist") from None
    except PermissionError:
        raise ProbeUnavailable("denied", f"{file.parent} is not writable") from None
    finally:
        if file.exists():
            file.unlink()


def plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    """Request the fact from every reached node, for any job."""
    for node in fleet.reached:
        yield Request(probe_name(scratch_speed), node.name, {"folder": FOLDER, "bytes": 4 * MIB}, required=True)


@check(
    "ACM301",
    "scratch-slow",
    plan=plan,
    probes=(scratch_speed,),
    cost="writes 4 MiB to the scratch folder",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=(("Acme's wiki, page on storage", "https://wiki.example.org/training/storage"),),
)
def scratch_slow(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The scratch folder of every node takes data at 1 MiB/s at least.

    What it checks: a file of 4 MiB, written and flushed.

    Why it matters: a node whose scratch disk is dying delays every checkpoint.

    Example: node17 takes 90 seconds.

    Fix: drain the node.

    Known limits: one short try; a busy disk looks slow, too.
    """
    if not fleet.reached:
        yield not_applicable("scratch", "no node was reached")
    for seen in facts.each(scratch_speed):
        if isinstance(seen.fact, Unavailable):
            yield unknown(f"scratch on {seen.node}", seen.fact.reason, required=True)
            continue
        speed = seen.fact.value
        rate = speed.wrote_bytes / MIB / max(speed.took_s, 1e-6)
        if rate >= 1.0:
            yield passed(f"scratch on {seen.node}")
        else:
            yield failed(
                f"scratch on {seen.node}",
                f"{FOLDER} on {seen.node} takes {rate:.2f} MiB/s; expected at least 1 MiB/s",
                at=Evidence(
                    "scratch", f"{rate:.2f} MiB/s", "1 MiB/s", f"dd if=/dev/zero of={FOLDER}/x bs=1M", seen.node
                ),
                nodes=(seen.node,),
                remedy=f"scontrol update nodename={seen.node} state=drain reason=scratch",
            )
