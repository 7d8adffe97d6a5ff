"""Checks that nodes are alike, are not busy, keep time, and do not kill processes when the session that started them
ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from statistics import median

from preflight._util.sequences import grouped
from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, check, command, failed, not_applicable, passed, root_command, unknown
from preflight_checks.plans import (
    Split,
    combine_plans,
    has_several_nodes,
    known_facts,
    no_requests,
    on_every_node,
    only_if,
    runs_on_several_machines,
    size,
    split,
    table,
    warning_check,
)
from preflight_checks.probes.devices import Activity, Busy, activity
from preflight_checks.probes.limits import kernel_settings
from preflight_checks.probes.liveness import ANSWER_S, Liveness, network_mounts
from preflight_checks.probes.machine import Machine, clock, machine
from preflight_checks.requirements import fold, nodes_share_machine

#: Above this difference, logs and file times of different nodes contradict each other (make, resuming, caches).
WARN_S = 1.0
#: No time daemon lets a clock drift this far: the clock is unsynchronized and keeps drifting. Signed requests, tokens
#: and new certificates are refused at about this difference (munge and Kerberos: five minutes).
ERROR_S = 30.0
#: torchrun's dynamic rendezvous declares a node dead if its last heartbeat is older than three intervals of five
#: seconds, and compares the clocks of two different nodes (torch/distributed/elastic/rendezvous/
#: dynamic_rendezvous.py, keep_alive_interval and keep_alive_max_attempt).
HEARTBEAT_LIMIT_S = 15.0
C10D_BACKENDS = ("c10d", "etcd-v2")


@check("CLK001", "clock-spread", plan=no_requests, severity=Severity.ERROR)
@only_if(has_several_nodes, "clocks", "the job has one node")
def clock_spread(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The clocks of all nodes agree to within a second.

    What it checks: each node's clock offset, taken from its agent's messages, beyond an uncertainty of half the round
    trip. More than a second is a warning; more than 30 s is an error, as is more than 15 s with torchrun's c10d
    rendezvous.

    Why it matters: timestamps of logs and checkpoints cannot be ordered, and caches rebuild forever. With larger
    differences, certificates, tokens and leases are rejected, and torchrun's c10d rendezvous considers a node dead if
    its clock is 15 s behind.

    Example: node3 is five minutes ahead, because its time daemon is not running.

    Fix: start chronyd (or ntpd) on the node.

    Known limits: differences of milliseconds, which matter to traces, are not detected.
    """
    offsets: dict[str, float] = {}
    doubt: dict[str, float] = {}
    for record in fleet.records:
        if record.problem:
            continue
        if record.clock_offset_s is None:
            yield unknown(record.node.name, "its clock was not compared")
        else:
            offsets[record.node.name] = record.clock_offset_s
            # The two directions may take unequal times.
            doubt[record.node.name] = (record.round_trip_s or 0.0) / 2
    if len(offsets) < 2:
        return
    # Of two clocks, the one that agrees with the machine that runs preflight is assumed to be right.
    centre = median(offsets.values()) if len(offsets) > 2 else min(offsets.values(), key=abs)
    far = {node: offset - centre for node, offset in offsets.items() if abs(offset - centre) - doubt[node] > WARN_S}
    if not far:
        yield passed(f"clocks of {len(offsets)} nodes")
        return
    worst = max(far, key=lambda node: abs(far[node]))
    certain = abs(far[worst]) - doubt[worst]
    dynamic = next(
        (claim for claim in job.about("rendezvous_backend") if set(claim.alternatives) & set(C10D_BACKENDS)), None
    )
    drops = dynamic is not None and certain > HEARTBEAT_LIMIT_S
    grave = certain > ERROR_S
    text = fold(f"{node} is {abs(by):.1f} s {'ahead' if by > 0 else 'behind'}" for node, by in far.items())
    reason = " (certificates, tokens and leases may be rejected)" if grave else ""
    if drops and dynamic is not None:
        late = f"{HEARTBEAT_LIMIT_S:g} s behind"
        reason = f" (the rendezvous of {dynamic.spelling or 'torchrun'} considers a node that is {late} dead)"
    yield failed(
        "clocks",
        f"clocks differ: {text} from the median of all nodes{reason}",
        at=Evidence(
            "clock offset", f"{far[worst]:+.1f} s ± {doubt[worst]:.2f} s", f"within {WARN_S:g} s", "date +%s.%N", worst
        ),
        also=(dynamic,) if drops and dynamic is not None else (),
        nodes=tuple(far),
        remedy=f"Check the time daemon on {fold(far)} (`systemctl status chronyd`, `chronyc tracking`) and start it "
        "if it is down; `chronyc makestep` corrects the clock immediately.",
        run=(root_command("chronyc", "makestep", on=far),),
        certain=grave or drops,
    )


@warning_check("CLK002", "clock-not-kept", plan=on_every_node(clock, when=has_several_nodes))
@only_if(has_several_nodes, "time daemons", "the job has one node")
@only_if(runs_on_several_machines, "time daemons", "the nodes are one machine, with one clock")
def clock_not_kept(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The clock of every node is synchronized if those of the others are.

    What it checks: whether the kernel considers its clock synchronized (adjtimex), and the status of chronyd.

    Why it matters: an unsynchronized clock is right when the job starts, but wrong by seconds a week later; timeouts,
    leases and logs then fail in the middle of a run.

    Example: chronyd of node3 has not reached its servers since the last reboot.

    Fix: start the time daemon, or make sure that it reaches its servers.

    Known limits: if no node is synchronized, this is only informational: some clouds synchronize the clock in the
    hypervisor.
    """
    observed = yield from known_facts(facts, clock, "time daemons")
    synchronised = {node: value for node, value in observed.items() if value.synchronised}
    free = {node: value for node, value in observed.items() if value.synchronised is False}
    blind = grouped((value.problem, node) for node, value in observed.items() if value.synchronised is None)
    for reason, nodes in blind.items():
        yield unknown(
            f"time daemons on {fold(nodes)}", f"the kernel does not report whether the clock is synchronized: {reason}"
        )
    if synchronised and not free:
        yield passed(f"the clocks of {len(synchronised)} nodes are synchronized")
    if not free:
        return
    node, value = next(iter(free.items()))
    runs = f"{', '.join(value.daemons)} runs there" if value.daemons else "no time daemon was found on the node"
    daemon = f" and reports: {value.daemon_says}" if value.daemon_says else ""
    others = f", as {fold(synchronised, 4)} {'are' if len(synchronised) > 1 else 'is'}" if synchronised else ""
    yield failed(
        "time daemons",
        f"the clock of {fold(free)} is not synchronized{others} ({node}: {runs}{daemon})",
        at=Evidence("clock state", "not synchronised", "synchronised", "timedatectl; chronyc tracking", node),
        nodes=tuple(free),
        remedy=f"Start a time daemon on {fold(free)} and make sure that it reaches its servers: `chronyc sources`.",
        severity=None if len(synchronised) > len(free) else Severity.INFO,
    )


#: Reading one of these takes microseconds and a lock; the kernel falls back to them when it finds the processors' own
#: counters out of step, which is a fault of the machine.
SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "refined-jiffies")
#: Governors that keep or allow low clock frequencies on processors that they control directly.
SLOW_GOVERNORS = ("powersave", "conservative", "userspace")
#: At most this many missing features are named.
_MAX_NAMED = 6


plan_machines = on_every_node(machine)


@warning_check("SYS001", "system-differs", plan=plan_machines)
def system_differs(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """All nodes run the same operating system on the same kind of processor.

    What it checks: architecture, distribution and C library (a warning), and kernel, processor model and processor
    features (informational), compared with most nodes.

    Why it matters: one environment in a shared home directory cannot serve two C libraries or architectures: an
    extension that was compiled on one node does not load on another, or dies with an illegal instruction if the
    processor, or the hypervisor's view of it, lacks a feature. A node that missed an update fails alone.

    Example: node7 was reinstalled with glibc 2.31, but the others have 2.35.

    Fix: install the other nodes' image on the node, or exclude it.

    Known limits: this is the agent's view: in containers, ranks use the C library of the image.
    """
    observed = yield from known_facts(facts, machine, "systems")
    if len(fleet.nodes) < 2 or nodes_share_machine(fleet):
        yield not_applicable("systems", "the job has one machine")
        return
    has_finding = False
    for what, read, how, severity in (
        ("architecture", lambda m: m.architecture, "uname -m", None),
        ("distribution", lambda m: m.system, "cat /etc/os-release", None),
        ("C library", lambda m: m.c_library, "ldd --version", None),
        ("kernel", lambda m: m.kernel, "uname -r", Severity.INFO),
        ("processor", lambda m: m.processor, "lscpu", Severity.INFO),
        ("processor features", partial(_lacking_features, _features(observed)), "lscpu", Severity.INFO),
    ):
        found = _split(observed, read)
        if found is not None and found.odd:
            has_finding = True
            yield _difference_finding(what, found, how, severity)
    if len(observed) > 1 and not has_finding:
        yield passed(f"systems of {len(observed)} nodes")


def _features(observed: Mapping[str, Machine]) -> frozenset[str]:
    """Return all features of the nodes' processors; empty if there are several processor models."""
    if len({value.processor for value in observed.values()}) > 1:
        return frozenset()
    return frozenset(name for value in observed.values() for name in value.features)


def _lacking_features(required_flags: frozenset[str], value: Machine) -> str:
    """Return the known features that a node lacks; empty if its features are unknown."""
    missing = sorted(required_flags.difference(value.features))
    if not required_flags or not value.features:
        return ""
    return f"all except {', '.join(missing[:_MAX_NAMED])}{', ...' * (len(missing) > _MAX_NAMED)}" if missing else "all"


def _split(observed: Mapping[str, Machine], read: Callable[[Machine], str]) -> Split[str] | None:
    return split({node: text for node, value in observed.items() if (text := read(value))})


def _difference_finding(quantity: str, split: Split[str], how: str, severity: Severity | None) -> Verdict:
    node, value = split.first_odd
    return failed(
        quantity,
        f"not all nodes have the same {quantity}: {split.description}",
        at=Evidence(quantity, value, split.common, how, node),
        nodes=tuple(split.odd),
        remedy=f"Check whether {fold(split.odd)} missed an update or uses a different image.",
        severity=severity,
    )


@warning_check("CPU003", "slow-processor-setting", plan=plan_machines)
def slow_processor_setting(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No node differs by throttled or disabled processors or a slow clock source.

    What it checks: frequency governors, processors that are present but not online, and the kernel's clock source,
    compared with most nodes. What all nodes have in common is informational.

    Why it matters: ranks work in lockstep, so one node in a power-saving mode sets the pace of all. A kernel that fell
    back from the processors' counters (TSC) to hpet has found them out of sync, and reads the time slowly.

    Example: after a firmware update, node5 uses the powersave governor.

    Fix: `cpupower frequency-set -g performance`; the power profile of the firmware; `dmesg | grep -i tsc`.

    Known limits: with intel_pstate and amd_pstate the powersave governor is the normal one. Virtual machines rarely
    show their governors.
    """
    observed = yield from known_facts(facts, machine, "processor settings")
    if not observed:
        return
    has_finding = False
    for what, read, slow, how in (
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
            + (f", but the other nodes have {usual}" if bad else ""),
            at=Evidence(what, value, usual if bad else "tsc or a paravirtual clock", how, node),
            nodes=tuple(nodes),
            remedy=f"Configure {fold(nodes)} like the others: the firmware's power profile, `cpupower frequency-set "
            "-g performance`, `dmesg | grep -i -e tsc -e offline`.",
            severity=None if bad and len(observed) > 1 else Severity.INFO,
        )
    if not has_finding:
        yield passed(f"processor settings of {len(observed)} nodes")


def _governor(value: Machine) -> str:
    return max(value.governors, key=lambda name: value.governors[name]) if value.governors else ""


def _offline(value: Machine) -> str:
    if value.online_cpus is None or value.present_cpus is None:
        return ""
    off = value.present_cpus - value.online_cpus
    return f"{off} of {value.present_cpus}" if off > 0 else "none"


@check(
    "SYS006",
    "kernel-settings-differ",
    plan=on_every_node(kernel_settings, when=runs_on_several_machines),
    severity=Severity.INFO,
    confidence=Confidence.MEDIUM,
    profile="pedantic",
)
@only_if(runs_on_several_machines, "kernel settings", "the job has one machine")
def kernel_settings_differ(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The kernel settings that affect jobs are the same on all nodes.

    What it checks: some twenty of the settings that `sysctl -a` shows, and a few parameters of kernel modules,
    compared with the values of most nodes. The recording contains all of them.

    Why it matters: ranks work in lockstep, and one node that was tuned differently is slower or fails alone. Manual
    settings are lost when a node restarts, which is then the only one without them.

    Example: after a restart, node4 has net.core.rmem_max = 212992, but the others have 67108864.

    Fix: put the setting into /etc/sysctl.d of the image that all nodes share, and load it with `sysctl --system`;
    module parameters belong in /etc/modprobe.d or on the kernel command line.

    Known limits: informational only, because it may be intended. Containers have their own network settings.
    """
    observed = yield from known_facts(facts, kernel_settings, "kernel settings")
    has_finding = False
    effects = table("kernel_settings")
    for name, noticed in (*effects["settings"].items(), *effects["modules"].items()):
        of_module = name in effects["modules"]
        settings = {node: fact.modules if of_module else fact.values for node, fact in observed.items()}
        division = split({node: values[name] for node, values in settings.items() if name in values})
        if division is None or not division.odd or not division.has_majority:
            continue
        has_finding = True
        node, value = division.first_odd
        file = f"/sys/module/{name.replace('.', '/parameters/')}"
        until_then = (
            f"set `{name}={division.common}` in /etc/modprobe.d or on the kernel command line"
            if of_module
            else f"`sysctl -w {name}='{division.common}'` until the next reboot"
        )
        yield failed(
            name,
            f"not all nodes have the same {name}: {division.description}; where it differs, {noticed}",
            at=Evidence(name, value, division.common, f"cat {file}" if of_module else f"sysctl {name}", node),
            nodes=tuple(division.odd),
            remedy=f"Find out why {fold(division.odd)} is configured differently; {until_then}.",
        )
    if len(observed) > 1 and not has_finding:
        yield passed(f"kernel settings of {len(observed)} nodes")


#: Foreign processes that use this share of a node's cores slow its ranks compared with idle nodes.
BUSY_SHARE = 0.25
#: Runnable tasks per core above which a node counts as overloaded.
LOAD_PER_CORE = 1.5
#: Swap use above this share of the memory is more than rarely used pages.
SWAP_SHARE = 0.1


_plan = combine_plans(plan_machines, on_every_node(activity))


@warning_check("SYS002", "node-busy", plan=_plan)
def node_busy(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No node is busy with other work while the others are idle.

    What it checks: foreign processes that use a quarter of a node's cores or more while most nodes have none (a
    warning); load beyond the cores, processes stuck in the kernel, and swap in use (informational).

    Why it matters: ranks work in lockstep. A forgotten run, an indexer or a backup on one node slows all of them down,
    and processes that are stuck in the kernel wait for a disk, server or driver that the ranks will also need.

    Example: node2 still runs yesterday's preprocessing on 48 of its 64 cores.

    Fix: end it, wait for it, or exclude the node.

    Known limits: the sample lasts half a second; tasks that run once a minute are not seen. In a process namespace,
    only load and pressure show foreign work.
    """
    observed = yield from known_facts(facts, activity, "activity")
    if nodes_share_machine(fleet):
        yield not_applicable("activity", "all nodes are one machine, which the check itself keeps busy")
        return
    busy = {node: value for node, value in observed.items() if _foreign_share(value) >= BUSY_SHARE}
    odd = len(busy) * 2 < len(observed)
    if busy:
        node, value = max(busy.items(), key=lambda found: _foreign_share(found[1]))
        pid = value.heavy[0].pid if value.heavy else 0
        yield failed(
            "other processes",
            f"other processes are using cores of {fold(busy)} ({node}: {value.heavy_cores:g} of {value.cores} cores, "
            f"{_processes_text(value.heavy)})",
            at=Evidence("processes", _processes_text(value.heavy), "none", f"top -p {pid}", node),
            nodes=tuple(busy),
            remedy=f"End these processes (on {node}: `ps -fp {pid}`), wait for them, or exclude {fold(busy)}.",
            severity=None if odd else Severity.INFO,
        )
    stuck = {node: value for node, value in observed.items() if value.stuck}
    if stuck:
        node, value = next(iter(stuck.items()))
        yield failed(
            "stuck processes",
            f"processes are stuck in the kernel (state D) on {fold(stuck)} ({node}: {_processes_text(value.stuck)})",
            at=Evidence(
                "processes", _processes_text(value.stuck), "none", "ps -eo pid,stat,wchan:32,comm | grep ' D'", node
            ),
            nodes=tuple(stuck),
            remedy=f"Check what they are waiting for: `cat /proc/{value.stuck[0].pid}/stack`, `dmesg | grep -i "
            "'blocked for'`.",
            severity=Severity.INFO,
        )
    loaded = {n: v for n, v in observed.items() if v.load is not None and v.cores and v.load > LOAD_PER_CORE * v.cores}
    loaded = {node: value for node, value in loaded.items() if node not in busy}
    if loaded:
        node, value = next(iter(loaded.items()))
        yield failed(
            "load",
            f"there are more runnable tasks than cores on {fold(loaded)} ({node}: load {value.load:g}, {value.cores} "
            "cores)",
            at=Evidence("load average", f"{value.load:g}", f"below {value.cores}", "uptime", node),
            nodes=tuple(loaded),
            remedy="Check what is running there; current measurements are less reliable.",
            severity=Severity.INFO,
        )
    swapped = {node: used for node, value in facts.observed(machine).items() if (used := _swapped(value))}
    if swapped:
        yield failed(
            "swap",
            f"memory is swapped out on {fold(f'{node} ({size(used)})' for node, used in swapped.items())}",
            at=Evidence("swap in use", size(max(swapped.values())), "none", "free -h; vmstat 1", next(iter(swapped))),
            nodes=tuple(swapped),
            remedy="Find the process that uses the memory; reading swapped pages slows the ranks down.",
            severity=Severity.INFO,
        )
    if observed and not (busy or stuck or loaded or swapped):
        yield passed(f"activity on {len(observed)} nodes")


def _foreign_share(value: Activity) -> float:
    """Return the share of a node's cores that foreign processes use; 0 if they use less than one core."""
    return value.heavy_cores / value.cores if value.cores and value.heavy_cores >= 0.9 else 0.0


def _processes_text(processes: list[Busy]) -> str:
    return fold((f"{p.command} ({p.pid}{f', {p.cores:g} cores' if p.cores else ''})" for p in processes), 3)


def _swapped(value: Machine) -> int:
    memory = value.memory
    if not memory.swap_total_bytes or memory.swap_free_bytes is None or not memory.total_bytes:
        return 0
    used = memory.swap_total_bytes - memory.swap_free_bytes
    return used if used > SWAP_SHARE * memory.total_bytes else 0


#: A response this late is not a hang, but checkpoints and small files will be slow.
SLOW_S = 1.0


@warning_check("SYS004", "network-mount-hangs", plan=on_every_node(network_mounts))
def network_mount_hangs(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every network file system that a node has mounted responds.

    What it checks: NFS, Lustre, GPFS, Ceph, FUSE and the like are queried for their free space; a finding is no
    response within 2.5 s, an error (a stale handle), or more than a second on one node if others are quick.

    Why it matters: whatever touches a hung mount waits forever and cannot be killed: `df`, a shell that looks for a
    program on its PATH, an import that walks sys.path, the cleanup of the job.

    Example: /home2 of node5 has been hanging since its server was replaced, and the job's users have it in their PATH.

    Fix: `umount -l` it, or bring the server back.

    Known limits: file systems that mount on access (autofs) are skipped. DAT011 and CKP011 check the job's own paths.
    """
    observed = yield from known_facts(facts, network_mounts, "network file systems")
    ill: dict[tuple[str, str], list[str]] = {}
    slow: dict[str, list[Liveness]] = {}
    for node, mounts in observed.items():
        for mount in mounts:
            if mount.problem:
                ill.setdefault((mount.point, mount.problem), []).append(node)
            elif mount.took_s > SLOW_S:
                slow.setdefault(node, []).append(mount)
    for (point, problem), nodes in ill.items():
        what = f"does not respond within {ANSWER_S:g} s" if problem == "timeout" else f"fails: {problem}"
        mount = next(m for m in observed[nodes[0]] if m.point == point)
        yield failed(
            f"{point}: {problem}",
            f"{point} ({mount.kind} of {mount.source}) {what} on {fold(nodes)}",
            at=Evidence("network file system", what, "an answer", f"timeout 3 stat -f {point}", nodes[0]),
            nodes=tuple(nodes),
            remedy=f"`umount -l {point}` on {fold(nodes)}, or make {mount.source} reachable again.",
            run=(root_command("umount", "-l", point, on=nodes),),
        )
    if slow and len(slow) * 2 < len(observed):
        node, mounts = next(iter(slow.items()))
        worst = max(mounts, key=lambda mount: mount.took_s)
        yield failed(
            "slow",
            f"{worst.point} took {worst.took_s:.1f} s to respond on {node}, but less on most nodes",
            at=Evidence(
                "network file system", f"{worst.took_s:.1f} s", f"below {SLOW_S:g} s", f"stat -f {worst.point}", node
            ),
            nodes=tuple(slow),
            remedy=f"Check how {fold(slow)} reaches {worst.source}.",
            severity=Severity.INFO,
        )
    elif observed and not ill:
        yield passed(f"network file systems of {len(observed)} nodes")


@check(
    "SYS005",
    "session-ends-processes",
    plan=plan_machines,
    severity=Severity.INFO,
    confidence=Confidence.MEDIUM,
    profile="pedantic",
)
def session_ends_processes(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Logging out does not end ranks that were started in the session.

    What it checks: whether KillUserProcesses is enabled in logind.conf.

    Why it matters: `ssh node nohup torchrun ... &` then ends with the ssh session, even with nohup, tmux or setsid, and
    the other nodes wait.

    Example: `KillUserProcesses=yes` on a site's nodes, and a launcher that exits after starting the ranks.

    Fix: `loginctl enable-linger USER`, `systemd-run --user --scope`, or a scheduler.

    Known limits: drop-ins outside /etc are not read. Ranks that a scheduler starts are not affected.
    """
    observed = yield from known_facts(facts, machine, "sessions")
    kills = [
        node for node, value in observed.items() if value.logind.get("KillUserProcesses") in ("yes", "true", "1", "on")
    ]
    if kills:
        yield failed(
            "sessions",
            f"logging out ends all processes of the session on {fold(kills)}",
            at=Evidence(
                "KillUserProcesses", "yes", "no", "loginctl show-user $USER; cat /etc/systemd/logind.conf", kills[0]
            ),
            nodes=tuple(kills),
            remedy="`loginctl enable-linger $USER`, or start ranks through a scheduler.",
            run=(command("loginctl", "enable-linger", on=kills),),
        )
    elif observed:
        yield passed(f"sessions of {len(observed)} nodes")
