"""Checks that nodes are idle before the job starts."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed
from preflight_checks.comparison import size
from preflight_checks.host.machines import plan_machines
from preflight_checks.plans import combined, known_facts, on_every_node
from preflight_checks.probes.activity import Activity, Busy, activity
from preflight_checks.probes.machine import Machine, machine
from preflight_checks.requirements import fold, nodes_share_machine

#: Foreign processes that use this share of a node's cores slow its ranks compared with idle nodes.
BUSY_SHARE = 0.25
#: Runnable tasks per core above which a node counts as overloaded.
LOAD_PER_CORE = 1.5
#: Swap use above this share of the memory is more than rarely used pages.
SWAP_SHARE = 0.1


_plan = combined(plan_machines, on_every_node(activity))


@check(
    "SYS002",
    "node-busy",
    plan=_plan,
    cost="samples all processes twice, 0.3 s apart",
    without_root="if /proc hides other users' processes, only load and pressure show them",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=(
        "intelligent-machine-learning/dlrover#678",
        ("the kernel's documentation of pressure stall information", "https://docs.kernel.org/accounting/psi.html"),
    ),
)
def node_busy(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No node is busy with other work while the rest are idle.

    What it checks: foreign processes that use a quarter of a node's cores or more while most nodes have none (a
    warning); load beyond the cores, processes stuck in the kernel, and swap in use (information).

    Why it matters: ranks work in lockstep. A forgotten run, an indexer or a backup on one node slows all of them down,
    and processes that are stuck in the kernel wait for a disk, server or driver that the ranks will need, too.

    Example: node2 still runs yesterday's preprocessing on 48 of its 64 cores.

    Fix: end it, wait for it, or exclude the node.

    Known limits: the sample lasts half a second; tasks that run once a minute are not seen. In a process namespace
    only load and pressure show foreign work.
    """
    observed = yield from known_facts(facts, activity, "activity")
    if nodes_share_machine(fleet):
        yield not_applicable("activity", "the nodes are one machine, which the check itself keeps busy")
        return
    busy = {node: value for node, value in observed.items() if _foreign_share(value) >= BUSY_SHARE}
    odd = len(busy) * 2 < len(observed)
    if busy:
        node, value = max(busy.items(), key=lambda found: _foreign_share(found[1]))
        pid = value.heavy[0].pid if value.heavy else 0
        yield failed(
            "other processes",
            f"other processes use cores of {fold(busy)} ({node}: {value.heavy_cores:g} of {value.cores} cores, "
            f"{_named(value.heavy)})",
            at=Evidence("processes", _named(value.heavy), "none", f"top -p {pid}", node),
            nodes=tuple(busy),
            remedy=f"End these processes (on {node}: `ps -fp {pid}`), wait for them, or exclude {fold(busy)}.",
            severity=None if odd else Severity.INFO,
        )
    stuck = {node: value for node, value in observed.items() if value.stuck}
    if stuck:
        node, value = next(iter(stuck.items()))
        yield failed(
            "stuck processes",
            f"processes are stuck in the kernel (state D) on {fold(stuck)} ({node}: {_named(value.stuck)})",
            at=Evidence("processes", _named(value.stuck), "none", "ps -eo pid,stat,wchan:32,comm | grep ' D'", node),
            nodes=tuple(stuck),
            remedy=f"Check what they wait for: `cat /proc/{value.stuck[0].pid}/stack`, `dmesg | grep -i "
            "'blocked for'`.",
            severity=Severity.INFO,
        )
    loaded = {n: v for n, v in observed.items() if v.load is not None and v.cores and v.load > LOAD_PER_CORE * v.cores}
    loaded = {node: value for node, value in loaded.items() if node not in busy}
    if loaded:
        node, value = next(iter(loaded.items()))
        yield failed(
            "load",
            f"more tasks are runnable than there are cores on {fold(loaded)} ({node}: load {value.load:g}, "
            f"{value.cores} cores)",
            at=Evidence("load average", f"{value.load:g}", f"below {value.cores}", "uptime", node),
            nodes=tuple(loaded),
            remedy="Check what runs there; current measurements are less reliable.",
            severity=Severity.INFO,
        )
    swapped = {node: used for node, value in facts.observed(machine).items() if (used := _swapped(value))}
    if swapped:
        yield failed(
            "swap",
            f"memory is swapped out on {fold(f'{node} ({size(used)})' for node, used in swapped.items())}",
            at=Evidence("swap in use", size(max(swapped.values())), "none", "free -h; vmstat 1", next(iter(swapped))),
            nodes=tuple(swapped),
            remedy="See which process holds the memory; reading swapped pages slows the ranks down.",
            severity=Severity.INFO,
        )
    if observed and not (busy or stuck or loaded or swapped):
        yield passed(f"activity on {len(observed)} nodes")


def _foreign_share(value: Activity) -> float:
    """The share of a node's cores that foreign processes use; less than one core counts as none."""
    return value.heavy_cores / value.cores if value.cores and value.heavy_cores >= 0.9 else 0.0


def _named(processes: list[Busy]) -> str:
    return fold((f"{p.command} ({p.pid}{f', {p.cores:g} cores' if p.cores else ''})" for p in processes), 3)


def _swapped(value: Machine) -> int:
    memory = value.memory
    if not memory.swap_total_bytes or memory.swap_free_bytes is None or not memory.total_bytes:
        return 0
    used = memory.swap_total_bytes - memory.swap_free_bytes
    return used if used > SWAP_SHARE * memory.total_bytes else 0
