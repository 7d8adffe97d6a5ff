"""What nodes are busy with before the job starts."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Job
from preflight.judgement import Verdict, check, failed, not_applicable, passed
from preflight.outcome import Confidence, Evidence, Severity
from preflight.recording import Facts, Fleet
from preflight.request import Request, probe_name
from preflight_checks.demands import fold, stand_ins, unseen
from preflight_checks.host.machines import plan_machines
from preflight_checks.per_node import size
from preflight_checks.probes.activity import Activity, Busy, activity
from preflight_checks.probes.machine import Machine, machine

#: Others' processes that take this part of a node's cores leave its ranks less than those of idle nodes.
SHARE = 0.25
#: More tasks that want to run than cores there are.
LOAD_EACH = 1.5
#: Swap that is in use by more than this part of the memory was not only filled with what nobody needs.
SWAPPED = 0.1


def _plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    yield from plan_machines(job, fleet, facts)
    for node in fleet.reached:
        yield Request(probe_name(activity), node.name)


@check(
    "SYS002",
    "node-busy",
    plan=_plan,
    probes=(activity, machine),
    cost="looks at all processes twice, 0.3 s apart",
    without_root="where /proc hides processes of others, only load and pressure tell of them",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("intelligent-machine-learning/dlrover#678", "https://docs.kernel.org/accounting/psi.html"),
)
def node_busy(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No node is busy with something else while the others wait for the job.

    What it checks: processes that are none of ours and use a quarter of a node's cores or more, where most nodes have
    none (a warning); load beyond the cores, processes stuck in the kernel, and swap in use (information).

    Why it matters: ranks work in step. A forgotten run, an indexer or a backup on one node slows all of them down, and
    processes that are stuck in the kernel wait for a disk, a server or a driver that the ranks will wait for, too.

    Example: node2 still runs a preprocessing of yesterday on 48 of its 64 cores.

    Fix: end it, wait for it, or leave the node out.

    Known limits: a look of half a second; what runs once a minute is not seen. Behind a process namespace only load and
    pressure tell of others.

    Evidence: intelligent-machine-learning/dlrover#678; the kernel's documentation of pressure stall information.
    """
    have = facts.observed(activity)
    yield from unseen(facts, activity, "activity")
    if stand_ins(fleet):
        yield not_applicable("activity", "the nodes are one machine, where the check itself is busy")
        return
    busy = {node: value for node, value in have.items() if _taken(value) >= SHARE}
    odd = len(busy) * 2 < len(have)
    if busy:
        node, value = max(busy.items(), key=lambda found: _taken(found[1]))
        pid = value.heavy[0].pid
        yield failed(
            "other processes",
            f"other processes use cores of {fold(busy)} ({node}: {value.heavy_cores:g} of {value.cores} cores, "
            f"{_named(value.heavy)})",
            at=Evidence("processes", _named(value.heavy), "none", f"top -p {pid}", node),
            nodes=tuple(busy),
            remedy=f"End what runs there (on {node}: `ps -fp {pid}`), wait for it, or leave {fold(busy)} out.",
            severity=None if odd else Severity.INFO,
        )
    stuck = {node: value for node, value in have.items() if value.stuck}
    if stuck:
        node, value = next(iter(stuck.items()))
        yield failed(
            "stuck processes",
            f"processes are stuck in the kernel (state D) on {fold(stuck)} ({node}: {_named(value.stuck)})",
            at=Evidence("processes", _named(value.stuck), "none", "ps -eo pid,stat,wchan:32,comm | grep ' D'", node),
            nodes=tuple(stuck),
            remedy=f"See what they wait for: `cat /proc/{value.stuck[0].pid}/stack`, `dmesg | grep -i 'blocked for'`.",
            severity=Severity.INFO,
        )
    loaded = {n: v for n, v in have.items() if v.load is not None and v.cores and v.load > LOAD_EACH * v.cores}
    loaded = {node: value for node, value in loaded.items() if node not in busy}
    if loaded:
        node, value = next(iter(loaded.items()))
        yield failed(
            "load",
            f"more tasks want to run than there are cores on {fold(loaded)} ({node}: load {value.load:g}, "
            f"{value.cores} cores)",
            at=Evidence("load average", f"{value.load:g}", f"below {value.cores}", "uptime", node),
            nodes=tuple(loaded),
            remedy="See what runs there; time-outs that are measured now mean less.",
            severity=Severity.INFO,
        )
    swapped = {node: used for node, value in facts.observed(machine).items() if (used := _swapped(value))}
    if swapped:
        yield failed(
            "swap",
            f"memory is swapped out on {fold(f'{node} ({size(used)})' for node, used in swapped.items())}",
            at=Evidence("swap in use", size(max(swapped.values())), "none", "free -h; vmstat 1", next(iter(swapped))),
            nodes=tuple(swapped),
            remedy="See what holds the memory; pages that ranks share with it come back slowly.",
            severity=Severity.INFO,
        )
    if have and not (busy or stuck or loaded or swapped):
        yield passed(f"activity on {len(have)} nodes")


def _taken(value: Activity) -> float:
    """The part of a node's cores that processes of others use; at least a whole core counts."""
    return value.heavy_cores / value.cores if value.cores and value.heavy_cores >= 0.9 else 0.0


def _named(processes: list[Busy]) -> str:
    return fold((f"{p.command} ({p.pid}{f', {p.cores:g} cores' if p.cores else ''})" for p in processes), 3)


def _swapped(value: Machine) -> int:
    memory = value.memory
    if not memory.swap_total_bytes or memory.swap_free_bytes is None or not memory.total_bytes:
        return 0
    used = memory.swap_total_bytes - memory.swap_free_bytes
    return used if used > SWAPPED * memory.total_bytes else 0
