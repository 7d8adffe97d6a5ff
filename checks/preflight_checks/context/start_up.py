"""How long ranks take to start on each node, against the others."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping

from preflight.job import Job
from preflight.judgement import Verdict, check, failed, not_applicable, passed, unknown
from preflight.outcome import Confidence, Evidence, Severity
from preflight.recording import Facts, Fleet
from preflight.request import Request, probe_name
from preflight_checks.demands import fold, unseen
from preflight_checks.probes.start_cost import ReadCost, import_cost, read_cost

#: The frameworks that a job's ranks import, in the order in which they are looked for.
PACKAGES = ("torch", "paddle", "tensorflow", "mxnet", "jax")
#: Slower than the median of the fleet by this factor, and by this much in all.
MUCH_SLOWER, AT_LEAST_S = 5.0, 1.0
#: With more than this many processes waiting for each core nothing can be said of the disk.
BUSY = 1.5
#: An import that takes longer than this keeps ranks past the time-outs of rendezvous when hundreds of them start.
LONG_IMPORT_S = 30.0


def _plan_read(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    for node in fleet.reached if job.launches else ():
        yield Request(probe_name(read_cost), node.name, {"packages": PACKAGES}, context=True, deadline_s=6.0)


@check(
    "RMT005",
    "framework-comes-slowly",
    plan=_plan_read,
    probes=(read_cost,),
    cost="reads 120 files and at most 8 MiB of the framework's own, hundredths of a second, 2.5 seconds at most",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("openvinotoolkit/stable-diffusion-webui#88", "horovod/horovod#824"),
)
def framework_comes_slowly(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The files of the framework come as fast on one node as on another, and fast enough to import it.

    What it checks: how long reading 120 modules and libraries of torch or paddle takes on each node, against
    the fleet's median and against 2.5 seconds.

    Why it matters: ranks import thousands of files at once. From a slow shared file system that takes minutes, and
    differs from node to node; the first ones run into the time-out of the rendezvous.

    Example: a conda environment in a home directory on NFS.

    Fix: put the environment on the nodes' own disks, into a container image, or pack it into one file that is unpacked
    there.

    Known limits: what lies in a node's cache comes fast now and slowly after a restart. A busy node is slow, too, so
    that this is a warning.

    Evidence: openvinotoolkit/stable-diffusion-webui#88, horovod/horovod#824.
    """
    if not job.launches:
        yield not_applicable("start of the framework", "the job starts no ranks")
        return
    yield from unseen(facts, read_cost, "start of the framework")
    have = facts.observed(read_cost)
    if not have:
        return
    slow = _slow(have)
    busy = {node: value for node, value in slow.items() if (value.load_per_core or 0.0) > BUSY}
    slow = {node: value for node, value in slow.items() if node not in busy}
    if busy:
        load = max(value.load_per_core or 0.0 for value in busy.values())
        yield unknown(
            f"start of the framework on {fold(busy)}", f"it was slow, and the node is busy (load {load:.1f} a core)"
        )
    if not slow and len(busy) < len(have):
        yield passed(f"start of the framework on {len(have) - len(busy)} nodes")
    if not slow:
        return
    node, value = max(slow.items(), key=lambda item: item[1].took_s)
    middle = statistics.median(value.took_s for value in have.values())
    how = f"more than {value.took_s:.1f} s" if value.cut else f"{value.took_s:.1f} s"
    everywhere = len(slow) == len(have)
    yield failed(
        f"{value.package} on {fold(slow)}",
        f"reading {value.files} files of {value.package} from {value.folder} takes {how} on {node}"
        + (" and likewise on every node" if everywhere and len(have) > 1 else "")
        + (f"; half of the nodes need less than {middle:.2f} s" if not everywhere else ""),
        at=Evidence(
            "start of the framework",
            how,
            f"about {min(middle, AT_LEAST_S):.2f} s",
            f"time cat {value.folder}/*.py",
            node,
        ),
        nodes=tuple(slow),
        remedy=f"Put the ranks' environment on a disk of {fold(slow)}, or into a container image.",
    )


def _slow(have: Mapping[str, ReadCost]) -> dict[str, ReadCost]:
    """The nodes that did not get through, and those far behind the median."""
    middle = statistics.median(value.took_s for value in have.values())
    return {
        node: value
        for node, value in have.items()
        if value.cut or (value.took_s > max(AT_LEAST_S, MUCH_SLOWER * middle) and len(have) > 2)
    }


def _plan_import(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    for node in fleet.reached if job.launches else ():
        yield Request(probe_name(import_cost), node.name, {"packages": PACKAGES}, context=True, deadline_s=9.0)


@check(
    "RMT006",
    "framework-imports-slowly",
    plan=_plan_import,
    probes=(import_cost,),
    cost="imports the framework once on each node: seconds of processor time",
    profile="pedantic",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("openvinotoolkit/stable-diffusion-webui#88", "horovod/horovod#824"),
)
def framework_imports_slowly(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Importing the framework works on every node, and takes about as long as on the others.

    What it checks: `import torch` (or paddle ...) in the ranks' context, once on each node.

    Why it matters: as RMT005, and what an import does beyond reading files: libraries that are missing, or devices that
    are asked for and do not answer.

    Example: 40 seconds on the node whose environment was moved to NFS, 3 on the others.

    Fix: put the environment on the nodes' own disks, or into a container image.

    Known limits: costs seconds of processor time on each node, and is asked in the profile `pedantic` alone.

    Evidence: openvinotoolkit/stable-diffusion-webui#88, horovod/horovod#824.
    """
    if not job.launches:
        yield not_applicable("import of the framework", "the job starts no ranks")
        return
    yield from unseen(facts, import_cost, "import of the framework")
    have = facts.observed(import_cost)
    if not have:
        return
    middle = statistics.median(value.took_s for value in have.values())
    bound = max(MUCH_SLOWER * middle, 3.0) if len(have) > 2 else LONG_IMPORT_S
    slow = {node: value for node, value in have.items() if value.took_s > min(bound, LONG_IMPORT_S)}
    if not slow:
        yield passed(f"import of the framework on {len(have)} nodes")
        return
    node, value = max(slow.items(), key=lambda item: item[1].took_s)
    yield failed(
        f"import of {value.package} on {fold(slow)}",
        f"`import {value.package}` takes {value.took_s:.1f} s on {node}; the median is {middle:.1f} s",
        at=Evidence(
            "import",
            f"{value.took_s:.1f} s",
            f"{middle:.1f} s",
            f"python -X importtime -c 'import {value.package}'",
            node,
        ),
        nodes=tuple(slow),
        remedy=f"Put the ranks' environment on a disk of {fold(slow)}, or into a container image.",
    )
