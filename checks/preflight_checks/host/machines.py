"""Checks that the nodes are equal machines: operating system, kernel settings, processors, and what slows one of them
down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed
from preflight_checks.comparison import Split, split
from preflight_checks.data_tables import table
from preflight_checks.plans import known_facts, multi_node, on_every_node
from preflight_checks.probes.kernel_settings import kernel_settings
from preflight_checks.probes.machine import Machine, machine
from preflight_checks.requirements import fold, nodes_share_machine

#: Reading one of these takes microseconds and a lock; the kernel falls back to them when it finds the processors' own
#: counters out of step, which is a fault of the machine.
SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "refined-jiffies")
#: Governors that keep or allow low clock frequencies on processors that they control directly.
SLOW_GOVERNORS = ("powersave", "conservative", "userspace")
#: At most this many missing features are named.
_MAX_NAMED = 6


plan_machines = on_every_node(machine)


_COST = "reads some files below /proc, /sys and /etc; milliseconds"


@check(
    "SYS001",
    "system-differs",
    plan=plan_machines,
    cost=_COST,
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("PaddlePaddle/Paddle#17558", ("the node checks of Primus", "https://github.com/AMD-AGI/Primus")),
)
def system_differs(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """All nodes run the same operating system on the same kind of processor.

    What it checks: architecture, distribution and C library (a warning), kernel, model and features of the processors
    (information) compared with what most nodes have.

    Why it matters: one environment in a shared home directory cannot serve two C libraries or architectures: an
    extension that was compiled on one node does not load on another, or dies of an illegal instruction if the
    processor, or the hypervisor's view of it, lacks a feature. A node that missed an update fails alone.

    Example: node7 was reinstalled with glibc 2.31 while the others have 2.35.

    Fix: install the image of the others on the node, or exclude it.

    Known limits: this is the agent's view: in containers, ranks use the C library of the image.
    """
    observed = yield from known_facts(facts, machine, "systems")
    if len(fleet.nodes) < 2 or nodes_share_machine(fleet):
        yield not_applicable("systems", "the job has one machine")
        return
    has_finding = False
    for what, read, command, severity in (
        ("architecture", lambda m: m.architecture, "uname -m", None),
        ("distribution", lambda m: m.system, "cat /etc/os-release", None),
        ("C library", lambda m: m.c_library, "ldd --version", None),
        ("kernel", lambda m: m.kernel, "uname -r", Severity.INFO),
        ("processor", lambda m: m.processor, "lscpu", Severity.INFO),
        ("features of the processors", partial(_lacking, _features(observed)), "lscpu", Severity.INFO),
    ):
        found = _split(observed, read)
        if found is not None and found.odd:
            has_finding = True
            yield _differs(what, found, command, severity)
    if len(observed) > 1 and not has_finding:
        yield passed(f"systems of {len(observed)} nodes")


def _features(observed: Mapping[str, Machine]) -> frozenset[str]:
    """All features of the nodes' processors, if they are of one model."""
    if len({value.processor for value in observed.values()}) > 1:
        return frozenset()
    return frozenset(name for value in observed.values() for name in value.features)


def _lacking(known: frozenset[str], value: Machine) -> str:
    """The known features that a node lacks; empty if its features are unknown."""
    missing = sorted(known.difference(value.features))
    if not known or not value.features:
        return ""
    return f"all except {', '.join(missing[:_MAX_NAMED])}{', ...' * (len(missing) > _MAX_NAMED)}" if missing else "all"


def _split(observed: Mapping[str, Machine], read: Callable[[Machine], str]) -> Split[str] | None:
    return split({node: text for node, value in observed.items() if (text := read(value))})


def _differs(quantity: str, split: Split[str], command: str, severity: Severity | None) -> Verdict:
    node, value = split.first_odd
    return failed(
        quantity,
        f"not all nodes have the same {quantity}: {split.description}",
        at=Evidence(quantity, value, split.common, command, node),
        nodes=tuple(split.odd),
        remedy=f"Check whether {fold(split.odd)} missed an update or was installed from a different image.",
        severity=severity,
    )


@check(
    "CPU003",
    "slow-processor-setting",
    plan=plan_machines,
    cost=_COST,
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=(
        ("the kernel's guide to CPU frequency scaling", "https://docs.kernel.org/admin-guide/pm/cpufreq.html"),
        "scylladb/scylladb#1895",
        "sozu-proxy/sozu#500",
        "nanocurrency/nano-node#2844",
    ),
)
def slow_processor_setting(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No single node has throttled or disabled processors, or a slow clock source.

    What it checks: frequency governors, processors that are present and not online, and the kernel's clock source,
    compared with most nodes. What all nodes have in common is information.

    Why it matters: ranks work in lockstep, so one node in a power-saving mode sets the pace of all. A kernel that fell
    back from the processors' counters (TSC) to hpet found them out of sync, and reads the time slowly.

    Example: node5 came back from the firmware update with the powersave governor.

    Fix: `cpupower frequency-set -g performance`; the power profile of the firmware; `dmesg | grep -i tsc`.

    Known limits: with intel_pstate and amd_pstate the powersave governor is the normal one. Virtual machines rarely
    show their governors.
    """
    observed = yield from known_facts(facts, machine, "processor settings")
    if not observed:
        return
    has_finding = False
    for what, read, slow, command in (
        ("frequency governor", _governor, SLOW_GOVERNORS, "cpupower frequency-info"),
        ("clock source", lambda m: m.clock_source, SLOW_CLOCKS, "cat /sys/devices/system/clocksource/*/current_*"),
        ("processors disabled", _offline, (), "lscpu --all --extended"),
    ):
        found = _split(observed, read)
        if found is None:
            continue
        bad = {n: v for n, v in found.odd.items() if (v in slow if slow else v != "none")}
        if not bad and not (found.common in slow and slow is SLOW_CLOCKS):
            continue
        has_finding = True
        usual = found.common
        nodes = bad or dict.fromkeys(found.agreeing, usual)
        node, value = next(iter(nodes.items()))
        yield failed(
            what,
            f"{fold(nodes)} {'has' if len(nodes) == 1 else 'have'} {what}: {value}"
            + (f", where the other nodes have {usual}" if bad else ""),
            at=Evidence(what, value, usual if bad else "tsc or a paravirtual clock", command, node),
            nodes=tuple(nodes),
            remedy=f"Configure {fold(nodes)} like the others: the power profile of the firmware, `cpupower "
            "frequency-set -g performance`, `dmesg | grep -i -e tsc -e offline`.",
            severity=None if bad and len(observed) > 1 else Severity.INFO,
        )
    if not has_finding:
        yield passed(f"processor settings of {len(observed)} nodes")


def _governor(value: Machine) -> str:
    """The governor of most CPUs."""
    return max(value.governors, key=lambda name: value.governors[name]) if value.governors else ""


def _offline(value: Machine) -> str:
    if value.online_cpus is None or value.present_cpus is None:
        return ""
    off = value.present_cpus - value.online_cpus
    return f"{off} of {value.present_cpus}" if off > 0 else "none"


@check(
    "SYS006",
    "kernel-settings-differ",
    plan=on_every_node(kernel_settings, when=multi_node),
    cost="reads the files below /proc/sys and the parameters of modules below /sys; some milliseconds",
    severity=Severity.INFO,
    confidence=Confidence.MEDIUM,
    profile="pedantic",
    evidence=(
        "https://docs.kernel.org/admin-guide/sysctl/",
        (
            "the kernel's documentation of /proc/sys, and of its network settings",
            "https://docs.kernel.org/networking/ip-sysctl.html",
        ),
    ),
)
def kernel_settings_differ(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The kernel settings that affect jobs are the same on all nodes.

    What it checks: some twenty of the settings that `sysctl -a` shows, and a few parameters of kernel modules,
    compared with the values of most nodes. The recording contains all of them.

    Why it matters: ranks work in lockstep, and one node that was tuned differently is slower or fails alone. Settings
    made manually are lost when a node restarts, which then is the only one without them.

    Example: node4 came back with net.core.rmem_max = 212992 where the others have 67108864.

    Fix: put the setting into /etc/sysctl.d of the image that all nodes share, and load it with `sysctl --system`;
    module parameters belong in /etc/modprobe.d or on the kernel command line.

    Known limits: information only, because it may be intended. Containers have their own network settings.
    """
    observed = yield from known_facts(facts, kernel_settings, "kernel settings")
    if len(fleet.nodes) < 2 or nodes_share_machine(fleet):
        yield not_applicable("kernel settings", "the job has one machine")
        return
    has_finding = False
    effects = table("kernel_settings")
    for name, noticed in (*effects["settings"].items(), *effects["modules"].items()):
        of_module = name in effects["modules"]
        settings = {node: fact.modules if of_module else fact.values for node, fact in observed.items()}
        found = split({node: values[name] for node, values in settings.items() if name in values})
        if found is None or not found.odd or not found.has_majority:
            continue
        has_finding = True
        node, value = found.first_odd
        file = f"/sys/module/{name.replace('.', '/parameters/')}"
        until_then = (
            f"set `{name}={found.common}` in /etc/modprobe.d or on the kernel's command line"
            if of_module
            else f"`sysctl -w {name}='{found.common}'` until then"
        )
        yield failed(
            name,
            f"not all nodes have the same {name}: {found.description}; where it differs, {noticed}",
            at=Evidence(name, value, found.common, f"cat {file}" if of_module else f"sysctl {name}", node),
            nodes=tuple(found.odd),
            remedy=f"Find out why {fold(found.odd)} is configured differently; {until_then}.",
        )
    if len(observed) > 1 and not has_finding:
        yield passed(f"kernel settings of {len(observed)} nodes")
