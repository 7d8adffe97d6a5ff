"""Checks that the nodes of parameter servers have the memory, cores and bandwidth, and a Paddle that includes a
server.
"""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight_checks.comparison import size
from preflight_checks.plans import known_facts, on_every_node
from preflight_checks.probes.packages import packages
from preflight_checks.probes.server_place import server_place
from preflight_checks.requirements import fold, is_ps
from preflight_checks.servers.placement import (
    Layout,
    Shares,
    known_layout,
    layout_claims,
    placement_check,
    shares,
    speed_mbps,
)

#: A synchronous step that takes this long just to exchange dense parameters is too slow.
SLOW_STEP_S = 1.0


@placement_check(
    "PLC003",
    "server-memory-too-small",
    severity=Severity.ERROR,
    evidence=("PaddlePaddle/Paddle#10398", "PaddlePaddle/Paddle#30524"),
)
def server_memory_too_small(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The nodes of the servers have enough memory for the parameters.

    What it checks: dense parameters, partitioned as the job configures, and tables by rows, each with optimizer
    states, summed over the servers of a node and compared with the memory of that node or its control group.

    Why it matters: a server allocates its share when the first parameters arrive, and fails with "bad alloc" after the
    whole job has been placed and started.

    Example: a table of 1e9 rows x 64 with Adam is 715 GiB; four servers on nodes of 64 GiB.

    Fix: more servers on more nodes, nodes with more memory, or a table that stores only the rows in use.

    Known limits: sizes that the script does not state and trainers on a server's node are not counted. Exceeding the
    total memory is an error, exceeding the free memory a warning.
    """
    for item in known_layout(job, fleet, facts, "memory of servers"):
        if isinstance(item, Verdict):
            yield item
            continue
        wanted = shares(job, len(item.servers))
        if wanted is None:
            yield not_applicable("memory of servers", "the files do not state the sizes of the parameters")
            continue
        missing: dict[bool, dict[str, tuple[int, int]]] = {}
        for node, own in item.by_node(item.servers).items():
            place = facts.observed(server_place).get(node)
            need = sum(wanted.held[item.servers.index(endpoint)] for endpoint in own)
            if place is None or place.memory_bytes is None:
                yield unknown(f"memory of {node}", "it is unknown")
            elif need > place.memory_bytes:
                missing.setdefault(True, {})[node] = (need, place.memory_bytes)
            elif place.memory_free_bytes is not None and need > place.memory_free_bytes:
                missing.setdefault(False, {})[node] = (need, place.memory_free_bytes)
        for certain, nodes in missing.items():
            yield _memory(item, wanted, nodes, certain=certain)
        if not missing:
            yield passed("memory of servers")


def _memory(found: Layout, wanted: Shares, nodes: dict[str, tuple[int, int]], *, certain: bool) -> Verdict:
    node, (need, has) = next(iter(nodes.items()))
    kept = f", with {wanted.slots} further values for each" if wanted.slots else ""
    free = "" if certain else " free"
    return failed(
        f"memory of {fold(nodes)}",
        f"the servers on {fold(nodes)} will hold {size(need)} a node{kept}, and {node} has {size(has)}{free}",
        at=Evidence("memory", size(has), size(need), "free -h", node),
        also=(*wanted.claims, *layout_claims(found)),
        nodes=tuple(nodes),
        remedy="Spread the servers over more nodes, or use a table that stores only the rows in use.",
        certain=certain,
    )


@placement_check(
    "PLC004",
    "server-cores-too-few",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("PaddlePaddle/Paddle#10398", "PaddlePaddle/Paddle#30524"),
)
def server_cores_too_few(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Each server and trainer of a node has its own core.

    What it checks: cores that a process may use on the node (affinity and quota) compared with servers and trainers
    there.

    Why it matters: servers answer many trainers at once; one that shares a core with a trainer delays every step of
    all trainers.

    Example: two servers and two trainers in a container with 2 cores.

    Fix: fewer processes on the node, or more cores.

    Known limits: one core for each process is the minimum; servers use as many as there are trainers.
    """
    for item in known_layout(job, fleet, facts, "cores of servers"):
        if isinstance(item, Verdict):
            yield item
            continue
        crowded: dict[tuple[float, int], list[str]] = {}
        everything = item.by_node((*item.servers, *item.trainers))
        for node in item.by_node(item.servers):
            place = facts.observed(server_place).get(node)
            if place is None or place.cores is None:
                yield unknown(f"cores of {node}", "they are unknown")
            elif place.cores < len(everything[node]):
                crowded.setdefault((place.cores, len(everything[node])), []).append(node)
        for (cores, processes), nodes in crowded.items():
            yield failed(
                f"cores of {fold(nodes)}",
                f"a process may use {cores:g} cores on {fold(nodes)}, and {processes} servers and trainers run there",
                at=Evidence("cores", f"{cores:g}", str(processes), "nproc", nodes[0]),
                also=layout_claims(item),
                nodes=nodes,
                remedy=f"Run fewer processes on {fold(nodes)}, or give it more cores.",
            )
        if not crowded:
            yield passed("cores of servers")


@placement_check(
    "PLC005",
    "server-network-too-slow",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("tensorflow/tensorflow#3762",),
)
def server_network_too_slow(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """A server's network card moves the data of one step in less than a second.

    What it checks: the dense parameters on the servers of a node, sent to and from every trainer on another node,
    divided by the speed that the card of the server's address reports.

    Why it matters: with parameter servers every byte of every trainer goes through the servers' cards; below this speed
    the job waits for the network at each step.

    Example: 500 MiB of dense parameters on one server, 8 trainers and 1 Gbit/s: over 30 seconds a step.

    Fix: more servers on more nodes, a faster network, or fewer exchanges (k_steps, half-asynchronous, geo).

    Known limits: rows of tables are not counted, because their number depends on the data; virtual cards report no
    speed, and it is then unknown.
    """
    for item in known_layout(job, fleet, facts, "network of servers"):
        if isinstance(item, Verdict):
            yield item
            continue
        wanted = shares(job, len(item.servers))
        if wanted is None or not sum(wanted.exchanged_bytes) or not item.trainers:
            yield not_applicable("network of servers", "the files do not state what a step exchanges")
            continue
        slow: dict[tuple[int, int, int], list[str]] = {}
        for node, own in item.by_node(item.servers).items():
            place = facts.observed(server_place).get(node)
            speed = speed_mbps(place, own[0]) if place is not None else None
            if not speed:
                yield unknown(f"network of {node}", f"the card of {own[0].host} reports no speed")
                continue
            remote = [endpoint for endpoint in item.trainers if item.node_of.get(endpoint) != node]
            share = sum(wanted.exchanged_bytes[item.servers.index(endpoint)] for endpoint in own)
            if _seconds_each_way(share, len(remote), speed) > SLOW_STEP_S:
                slow.setdefault((share, len(remote), speed), []).append(node)
        for (share, trainers, speed), nodes in slow.items():
            needed = f"{share * trainers * 8 / 1e6 / SLOW_STEP_S:.0f} Mbit/s"
            yield failed(
                f"network of {fold(nodes)}",
                f"each step {trainers} trainers exchange {size(share)} with the servers on {fold(nodes)}, which takes "
                f"{_seconds_each_way(share, trainers, speed):.1f} s each way at the {speed} Mbit/s of its card",
                at=Evidence("network", f"{speed} Mbit/s", needed, "ethtool", nodes[0]),
                also=(*wanted.claims, *layout_claims(item)),
                nodes=nodes,
                remedy="Spread the servers over more nodes, or exchange less often.",
            )
        if not slow:
            yield passed("network of servers")


def _seconds_each_way(share_bytes: int, trainers: int, speed_mbps: int) -> float:
    """Seconds for one direction: gradients arrive while values are sent."""
    return share_bytes * trainers * 8 / (speed_mbps * 1e6)


#: The first release whose wheels have no parameter server (PaddlePaddle/Paddle#73999).
FIRST_WITHOUT = Version("3.1.1")


@check(
    "VER009",
    "paddle-without-parameter-server",
    plan=on_every_node(packages, when=lambda job, fleet: is_ps(job), context=True, deadline_s=8.0),
    cost="reads the metadata of installed packages in the ranks' interpreter",
    severity=Severity.ERROR,
    evidence=(
        ("the build options were dropped", "PaddlePaddle/Paddle#73999"),
        ("the sources too", "PaddlePaddle/Paddle#77412"),
    ),
)
def paddle_without_parameter_server(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The Paddle of a parameter-server job is a release whose wheels include the parameter server.

    What it checks: the version of paddlepaddle where servers and workers will run, read from package metadata, where
    the job starts parameter servers.

    Why it matters: wheels from 3.1.1 on lack it. The launcher still accepts the options and starts all processes, and
    the job dies in `minimize` with an import error or wrong arguments to `clone()`, which do not mention the cause.

    Example: node-a has paddlepaddle 3.3.1, and the job starts two parameter servers with fleetrun --server_num=2.

    Fix: install paddlepaddle 3.0.0 or older for this job (2.6.2 with numpy below 2), or build it with the parameter
    server.

    Known limits: your own build with the parameter server passes only if its version has a local part (3.2.0+ps).
    """
    if not is_ps(job):
        yield not_applicable("paddle's parameter server", "the job has no parameter servers")
        return
    observed = yield from known_facts(facts, packages, "paddle's parameter server")
    versions = {
        node: value.versions["paddlepaddle"] for node, value in observed.items() if "paddlepaddle" in value.versions
    }
    without = {node: version for node, version in versions.items() if _is_without(version)}
    if without:
        node, version = next(iter(without.items()))
        has = "has" if len(without) == 1 else "have"
        yield failed(
            "paddle's parameter server",
            f"{fold(without)} {has} paddlepaddle {fold(dict.fromkeys(without.values()))}, whose wheels have no "
            f"parameter server (since {FIRST_WITHOUT}), and this job needs it",
            at=Evidence("packages", f"paddlepaddle {version}", f"below {FIRST_WITHOUT}", node=node),
            nodes=tuple(without),
            remedy=f"Install paddlepaddle 3.0.0 or older on {fold(without)}, or build it with the parameter server.",
        )
    elif versions:
        yield passed(f"paddle's parameter server: {fold(dict.fromkeys(versions.values()))} on {len(versions)} nodes")
    elif observed:
        yield not_applicable("paddle's parameter server", "no node has paddlepaddle in the ranks' interpreter")


def _is_without(text: str) -> bool:
    try:
        version = Version(text)
    # `int` also refuses thousands of digits.
    except ValueError:
        return False
    return version >= FIRST_WITHOUT and not version.local
