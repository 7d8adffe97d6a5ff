"""Checks that the kernel settings that affect training jobs are the same on all nodes."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed
from preflight_checks.comparison import split
from preflight_checks.planning import missing_facts, multi_node, on_every_node
from preflight_checks.probes.kernel_settings import kernel_settings
from preflight_checks.requirements.hosts import fold, nodes_share_machine

#: Settings that affect jobs, with the effect. Settings that the kernel derives from the machine's size are left out.
SETTING_EFFECTS = {
    "kernel.numa_balancing": "pages move between sockets while ranks use them",
    "kernel.sched_rt_runtime_us": "processes with real-time priority get a different share of CPU time",
    "kernel.yama.ptrace_scope": "ranks may not share memory by CMA (Open MPI, UCX), and py-spy may not inspect them",
    "net.core.default_qdisc": "outgoing packets queue differently",
    "net.core.netdev_max_backlog": "packets are dropped earlier in bursts",
    "net.core.rmem_max": "sockets get smaller buffers, and one stream is slower",
    "net.core.somaxconn": "connections are refused earlier in bursts",
    "net.core.wmem_max": "sockets get smaller buffers, and one stream is slower",
    "net.ipv4.conf.all.arp_announce": "with several interfaces in one network, replies leave through the wrong one",
    "net.ipv4.conf.all.arp_ignore": "with several interfaces in one network, replies leave through the wrong one",
    "net.ipv4.conf.all.rp_filter": "with several interfaces, packets that return over another path are dropped",
    "net.ipv4.ip_local_port_range": "local ports run out earlier, or collide with fixed ones",
    "net.ipv4.tcp_congestion_control": "congestion control differs between streams",
    "net.ipv4.tcp_mtu_probing": "connections over paths with a smaller MTU may hang",
    "net.ipv4.tcp_retries2": "a dead peer is detected earlier or later",
    "net.ipv4.tcp_slow_start_after_idle": "streams are slow again after every pause",
    "net.ipv4.tcp_timestamps": "long, fast paths are slower",
    "net.ipv6.conf.all.disable_ipv6": "names resolve to addresses that others cannot use",
    "user.max_user_namespaces": "containers without root do not start",
    "vm.max_map_count": "large models that are mapped in pieces fail to load",
    "vm.nr_hugepages": "memory is reserved that ranks cannot use",
    "vm.overcommit_memory": "large allocations, and forks of large ranks, fail",
    "vm.swappiness": "ranks are swapped out earlier",
    "vm.zone_reclaim_mode": "reading files stalls while memory of one socket is freed",
}
#: Module parameters that affect jobs, with the effect.
MODULE_EFFECTS = {
    "intel_idle.max_cstate": "processors enter deeper sleep states, and small messages wait until they wake up",
    "processor.max_cstate": "processors enter deeper sleep states, and small messages wait until they wake up",
    "pcie_aspm.policy": "links to GPUs and network cards sleep between transfers",
    "nvme_core.io_timeout": "a hanging disk is given up earlier or later",
    "nvme_core.multipath": "disks have different names",
}


@check(
    "SYS006",
    "kernel-settings-differ",
    plan=on_every_node(kernel_settings, when=multi_node),
    probes=(kernel_settings,),
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
    yield from missing_facts(facts, kernel_settings, "kernel settings")
    observed = facts.observed(kernel_settings)
    if len(fleet.nodes) < 2 or nodes_share_machine(fleet):
        yield not_applicable("kernel settings", "the job has one machine")
        return
    has_finding = False
    for name, noticed in (*SETTING_EFFECTS.items(), *MODULE_EFFECTS.items()):
        of_module = name in MODULE_EFFECTS
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
