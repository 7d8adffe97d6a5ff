"""Whether the nodes are alike as machines: system, processors, and what slows one of them down."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from preflight.job import Job
from preflight.judgement import Verdict, check, failed, not_applicable, passed
from preflight.outcome import Confidence, Evidence, Severity
from preflight.recording import Facts, Fleet
from preflight.request import Request, probe_name
from preflight_checks.demands import fold, stand_ins, unseen
from preflight_checks.majority import Split, split
from preflight_checks.probes.machine import Machine, machine

#: Reading one of these takes microseconds and a lock; the kernel falls back to them when it finds the processors' own
#: counters out of step, which is a fault of the machine.
SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "refined-jiffies")
#: Governors that keep or let clock frequencies low on processors that they drive themselves.
SLOW_GOVERNORS = ("powersave", "conservative", "userspace")
#: So many features that a node lacks are named.
_MOST_NAMED = 6


def plan_machines(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    """Ask every node what machine it is."""
    for node in fleet.reached:
        yield Request(probe_name(machine), node.name)


_ASKS = "reads some files below /proc, /sys and /etc; milliseconds"


@check(
    "SYS001",
    "system-differs",
    plan=plan_machines,
    probes=(machine,),
    cost=_ASKS,
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("PaddlePaddle/Paddle#17558", "https://github.com/AMD-AGI/Primus"),
)
def system_differs(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """All nodes run the same system on the same kind of processor.

    What it checks: architecture, distribution and C library (a warning), kernel, model and features of the processors
    (information) against what most nodes have.

    Why it matters: one environment in a shared home directory cannot serve two C libraries or architectures: an
    extension that was compiled on one node does not load on another, or ends with an illegal instruction where the
    processor, or what a hypervisor shows of it, lacks a feature. A node that missed an update fails by itself.

    Example: node7 was installed anew with glibc 2.31 where the others have 2.35.

    Fix: bring the node to the image of the others, or leave it out.

    Known limits: the agent's own view: in containers the ranks' C library is that of the image.

    Evidence: PaddlePaddle/Paddle#17558; the node checks of Primus.
    """
    have = facts.observed(machine)
    yield from unseen(facts, machine, "systems")
    if len(fleet.nodes) < 2 or stand_ins(fleet):
        yield not_applicable("systems", "the job has one machine")
        return
    told = False
    for what, read, command, severity in (
        ("architecture", lambda m: m.architecture, "uname -m", None),
        ("distribution", lambda m: m.system, "cat /etc/os-release", None),
        ("C library", lambda m: m.c_library, "ldd --version", None),
        ("kernel", lambda m: m.kernel, "uname -r", Severity.INFO),
        ("processor", lambda m: m.processor, "lscpu", Severity.INFO),
        ("features of the processors", partial(_lacking, _features(have)), "lscpu", Severity.INFO),
    ):
        found = _split(have, read)
        if found is not None and found.odd:
            told = True
            yield _differs(what, found, command, severity)
    if len(have) > 1 and not told:
        yield passed(f"systems of {len(have)} nodes")


def _features(have: Mapping[str, Machine]) -> frozenset[str]:
    """What any of the nodes' processors can, where they are of one model; other models have others."""
    if len({value.processor for value in have.values()}) > 1:
        return frozenset()
    return frozenset(name for value in have.values() for name in value.features)


def _lacking(known: frozenset[str], value: Machine) -> str:
    """Which of the known features it lacks; empty where nothing is known."""
    lacking = sorted(known.difference(value.features))
    if not known or not value.features:
        return ""
    return f"all but {', '.join(lacking[:_MOST_NAMED])}{', ...' * (len(lacking) > _MOST_NAMED)}" if lacking else "all"


def _split(have: Mapping[str, Machine], read: Callable[[Machine], str]) -> Split[str] | None:
    return split({node: text for node, value in have.items() if (text := read(value))})


def _differs(what: str, found: Split[str], command: str, severity: Severity | None) -> Verdict:
    node, value = found.first_odd
    return failed(
        what,
        f"not all nodes have the same {what}: {found.spoken}",
        at=Evidence(what, value, found.common, command, node),
        nodes=tuple(found.odd),
        remedy=f"See whether {fold(found.odd)} missed an update or was installed from another image.",
        severity=severity,
    )


@check(
    "CPU003",
    "slow-processor-setting",
    plan=plan_machines,
    probes=(machine,),
    cost=_ASKS,
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=(
        "https://docs.kernel.org/admin-guide/pm/cpufreq.html",
        "scylladb/scylladb#1895",
        "sozu-proxy/sozu#500",
        "nanocurrency/nano-node#2844",
    ),
)
def slow_processor_setting(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No node's processors are held at low clocks, switched off, or timed by a slow clock, where others are not.

    What it checks: frequency governors, processors that are present and not online, and the kernel's clock source,
    against what most nodes have. What all nodes have in common is information.

    Why it matters: ranks work in step, so one node in a power-saving mode sets the pace of all. A kernel that gave up
    the processors' own counters (TSC) for hpet makes every look at the time slow, and found them out of step.

    Example: node5 came back from the firmware update with the powersave governor.

    Fix: `cpupower frequency-set -g performance`; the power profile of the firmware; `dmesg | grep -i tsc`.

    Known limits: with intel_pstate and amd_pstate the powersave governor is the ordinary one. Virtual machines seldom
    show their governors.

    Evidence: the kernel's guide to CPU frequency scaling; scylladb/scylladb#1895, sozu-proxy/sozu#500,
    nanocurrency/nano-node#2844.
    """
    have = facts.observed(machine)
    yield from unseen(facts, machine, "processor settings")
    if not have:
        return
    told = False
    for what, read, slow, command in (
        ("frequency governor", _governor, SLOW_GOVERNORS, "cpupower frequency-info"),
        ("clock source", lambda m: m.clock_source, SLOW_CLOCKS, "cat /sys/devices/system/clocksource/*/current_*"),
        ("processors switched off", _offline, (), "lscpu --all --extended"),
    ):
        found = _split(have, read)
        if found is None:
            continue
        bad = {n: v for n, v in found.odd.items() if (v in slow if slow else v != "none")}
        if not bad and not (found.common in slow and slow is SLOW_CLOCKS):
            continue
        told = True
        usual = found.common
        nodes = bad or dict.fromkeys(found.agreeing, usual)
        node, value = next(iter(nodes.items()))
        yield failed(
            what,
            f"{fold(nodes)} {'has' if len(nodes) == 1 else 'have'} {what}: {value}"
            + (f", where the other nodes have {usual}" if bad else ""),
            at=Evidence(what, value, usual if bad else "tsc or a paravirtual clock", command, node),
            nodes=tuple(nodes),
            remedy=f"Set {fold(nodes)} up like the others: the power profile of the firmware, `cpupower "
            "frequency-set -g performance`, `dmesg | grep -i -e tsc -e offline`.",
            severity=None if bad and len(have) > 1 else Severity.INFO,
        )
    if not told:
        yield passed(f"processor settings of {len(have)} nodes")


def _governor(value: Machine) -> str:
    """The governor of most CPUs."""
    return max(value.governors, key=lambda name: value.governors[name]) if value.governors else ""


def _offline(value: Machine) -> str:
    if value.online_cpus is None or value.present_cpus is None:
        return ""
    off = value.present_cpus - value.online_cpus
    return f"{off} of {value.present_cpus}" if off > 0 else "none"
