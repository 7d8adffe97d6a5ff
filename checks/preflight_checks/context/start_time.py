"""Checks how long ranks take to start on each node, compared with the others."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping

from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight_checks.planning import has_launches, missing_facts, on_every_node
from preflight_checks.probes.start_cost import ReadCost, import_cost, read_cost
from preflight_checks.requirements.hosts import fold

#: The frameworks that ranks import, in search order.
PACKAGES = ("torch", "paddle", "tensorflow", "mxnet", "jax")
#: A node is slow if it exceeds the fleet's median by this factor and by this much in absolute terms.
MUCH_SLOWER, AT_LEAST_S = 5.0, 1.0
#: With a higher load per core than this, the disk cannot be judged.
BUSY = 1.5
#: An import that takes longer than this keeps ranks past the timeouts of rendezvous when hundreds of them start.
LONG_IMPORT_S = 30.0


@check(
    "RMT005",
    "framework-comes-slowly",
    plan=on_every_node(read_cost, params={"packages": PACKAGES}, when=has_launches, context=True, deadline_s=6.0),
    probes=(read_cost,),
    cost="reads 120 files and at most 8 MiB of the framework's own, hundredths of a second, 2.5 seconds at most",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("openvinotoolkit/stable-diffusion-webui#88", "horovod/horovod#824"),
)
def framework_comes_slowly(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The framework's files load equally fast on all nodes, and fast enough to import it.

    What it checks: the time to read 120 modules and libraries of torch or paddle on each node, compared with the
    fleet's median and with 2.5 seconds.

    Why it matters: ranks import thousands of files at once. From a slow shared file system that takes minutes, and
    differs from node to node; the first ones run into the timeout of the rendezvous.

    Example: a conda environment in a home directory on NFS.

    Fix: put the environment on the nodes' own disks, into a container image, or pack it into one file that is unpacked
    there.

    Known limits: cached files load fast now and slowly after a restart. A busy node is slow, too, so this is only a
    warning.
    """
    if not job.launches:
        yield not_applicable("start of the framework", "the job starts no ranks")
        return
    yield from missing_facts(facts, read_cost, "start of the framework")
    observed = facts.observed(read_cost)
    if not observed:
        return
    slow = _slow_nodes(observed)
    busy = {node: value for node, value in slow.items() if (value.load_per_core or 0.0) > BUSY}
    slow = {node: value for node, value in slow.items() if node not in busy}
    if busy:
        load = max(value.load_per_core or 0.0 for value in busy.values())
        yield unknown(
            f"start of the framework on {fold(busy)}", f"it was slow, but the node is busy (load {load:.1f} a core)"
        )
    if not slow and len(busy) < len(observed):
        yield passed(f"start of the framework on {len(observed) - len(busy)} nodes")
    if not slow:
        return
    node, value = max(slow.items(), key=lambda item: item[1].took_s)
    middle = statistics.median(value.took_s for value in observed.values())
    how = f"more than {value.took_s:.1f} s" if value.cut else f"{value.took_s:.1f} s"
    everywhere = len(slow) == len(observed)
    yield failed(
        f"{value.package} on {fold(slow)}",
        f"reading {value.files} files of {value.package} from {value.folder} takes {how} on {node}"
        + (" on every node" if everywhere and len(observed) > 1 else "")
        + (f"; half of the nodes need less than {middle:.2f} s" if not everywhere else ""),
        at=Evidence(
            "start of the framework",
            how,
            f"about {min(middle, AT_LEAST_S):.2f} s",
            f"time cat {value.folder}/*.py",
            node,
        ),
        nodes=tuple(slow),
        remedy=f"Move the ranks' environment to a local disk of {fold(slow)}, or into a container image.",
    )


def _slow_nodes(observed: Mapping[str, ReadCost]) -> dict[str, ReadCost]:
    """The nodes that did not finish, and those far behind the median."""
    middle = statistics.median(value.took_s for value in observed.values())
    return {
        node: value
        for node, value in observed.items()
        if value.cut or (value.took_s > max(AT_LEAST_S, MUCH_SLOWER * middle) and len(observed) > 2)
    }


@check(
    "RMT006",
    "framework-imports-slowly",
    plan=on_every_node(import_cost, params={"packages": PACKAGES}, when=has_launches, context=True, deadline_s=9.0),
    probes=(import_cost,),
    cost="imports the framework once on each node: seconds of CPU time",
    profile="pedantic",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("openvinotoolkit/stable-diffusion-webui#88", "horovod/horovod#824"),
)
def framework_imports_slowly(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Importing the framework works on every node, and takes about equally long.

    What it checks: `import torch` (or paddle ...) in the ranks' context, once on each node.

    Why it matters: as for RMT005, and imports also fail or hang on missing libraries and on devices that do not
    respond.

    Example: 40 seconds on the node whose environment was moved to NFS, 3 on the others.

    Fix: put the environment on the nodes' own disks, or in a container image.

    Known limits: takes seconds of CPU time on each node, so it runs only in the `pedantic` profile.
    """
    if not job.launches:
        yield not_applicable("import of the framework", "the job starts no ranks")
        return
    yield from missing_facts(facts, import_cost, "import of the framework")
    observed = facts.observed(import_cost)
    if not observed:
        return
    middle = statistics.median(value.took_s for value in observed.values())
    bound = max(MUCH_SLOWER * middle, 3.0) if len(observed) > 2 else LONG_IMPORT_S
    slow = {node: value for node, value in observed.items() if value.took_s > min(bound, LONG_IMPORT_S)}
    if not slow:
        yield passed(f"import of the framework on {len(observed)} nodes")
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
        remedy=f"Move the ranks' environment to a local disk of {fold(slow)}, or into a container image.",
    )
