"""Whether the kernels of all nodes are set up alike, as far as training jobs notice."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Job
from preflight.judgement import Verdict, check, failed, not_applicable, passed
from preflight.outcome import Confidence, Evidence, Severity
from preflight.recording import Facts, Fleet
from preflight.request import Request, probe_name
from preflight_checks.demands import fold, stand_ins, unseen
from preflight_checks.majority import split
from preflight_checks.probes.kernel_settings import kernel_settings

#: Settings that jobs notice, and how. Those that the kernel works out from the size of the machine are not among them.
NOTICED = {
    "kernel.numa_balancing": "pages move between sockets while ranks use them",
    "kernel.sched_rt_runtime_us": "processes with real-time priority get another share",
    "kernel.yama.ptrace_scope": "ranks that share memory by CMA (Open MPI, UCX) or are looked at by py-spy are refused",
    "net.core.default_qdisc": "outgoing packets queue differently",
    "net.core.netdev_max_backlog": "packets that arrive in bursts are dropped earlier",
    "net.core.rmem_max": "sockets get smaller buffers, and one stream is slower",
    "net.core.somaxconn": "connections that arrive in bursts are refused earlier",
    "net.core.wmem_max": "sockets get smaller buffers, and one stream is slower",
    "net.ipv4.conf.all.arp_announce": "with several interfaces in one network, answers come over the wrong one",
    "net.ipv4.conf.all.arp_ignore": "with several interfaces in one network, answers come over the wrong one",
    "net.ipv4.conf.all.rp_filter": "with several interfaces, packets that take another way back are dropped",
    "net.ipv4.ip_local_port_range": "local ports run out earlier, or collide with fixed ones",
    "net.ipv4.tcp_congestion_control": "streams give way to others differently",
    "net.ipv4.tcp_mtu_probing": "paths with a smaller MTU are found, or hang",
    "net.ipv4.tcp_retries2": "a dead peer is given up earlier or later",
    "net.ipv4.tcp_slow_start_after_idle": "streams are slow again after every pause",
    "net.ipv4.tcp_timestamps": "long, fast paths are slower",
    "net.ipv6.conf.all.disable_ipv6": "names resolve to addresses that others cannot use",
    "user.max_user_namespaces": "containers without root do not start",
    "vm.max_map_count": "large models that are mapped in pieces fail to load",
    "vm.nr_hugepages": "memory is set aside that ranks cannot use",
    "vm.overcommit_memory": "large allocations, and forks of large ranks, fail",
    "vm.swappiness": "ranks are swapped out earlier",
    "vm.zone_reclaim_mode": "reading files stalls while memory of one socket is freed",
}
#: Parameters of modules that jobs notice, and how.
NOTICED_OF_MODULES = {
    "intel_idle.max_cstate": "processors sleep more deeply, and small messages wait until they wake",
    "processor.max_cstate": "processors sleep more deeply, and small messages wait until they wake",
    "pcie_aspm.policy": "links to GPUs and network cards sleep between transfers",
    "nvme_core.io_timeout": "a disk that hangs is given up earlier or later",
    "nvme_core.multipath": "disks have other names",
}


def _plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    if len(fleet.nodes) > 1 and not stand_ins(fleet):
        for node in fleet.reached:
            yield Request(probe_name(kernel_settings), node.name)


@check(
    "SYS006",
    "kernel-settings-differ",
    plan=_plan,
    probes=(kernel_settings,),
    cost="reads the files below /proc/sys and the parameters of modules below /sys; some milliseconds",
    severity=Severity.INFO,
    confidence=Confidence.MEDIUM,
    evidence=("https://docs.kernel.org/admin-guide/sysctl/", "https://docs.kernel.org/networking/ip-sysctl.html"),
)
def kernel_settings_differ(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The kernels of all nodes have the same settings, of those that jobs notice.

    What it checks: some twenty of the settings that `sysctl -a` shows, and a few parameters of kernel modules, against
    what most nodes have. The recording holds all of them.

    Why it matters: ranks work in step, and one node that was tuned differently is slower or fails alone. Settings made
    by hand are gone after the next start of a node, which then is the only one without them.

    Example: node4 came back with net.core.rmem_max = 212992 where the others have 67108864.

    Fix: put the setting into /etc/sysctl.d of the image that all nodes share, and load it with `sysctl --system`;
    parameters of modules belong into /etc/modprobe.d or onto the kernel's command line.

    Known limits: information, because it may be meant. In containers the network's settings are those of their own.

    Evidence: the kernel's documentation of /proc/sys, and of its network settings.
    """
    yield from unseen(facts, kernel_settings, "kernel settings")
    have = facts.observed(kernel_settings)
    if len(fleet.nodes) < 2 or stand_ins(fleet):
        yield not_applicable("kernel settings", "the job has one machine")
        return
    told = False
    for name, noticed in (*NOTICED.items(), *NOTICED_OF_MODULES.items()):
        of_module = name in NOTICED_OF_MODULES
        settings = {node: fact.modules if of_module else fact.values for node, fact in have.items()}
        found = split({node: values[name] for node, values in settings.items() if name in values})
        if found is None or not found.odd or not found.clear:
            continue
        told = True
        node, value = found.first_odd
        file = f"/sys/module/{name.replace('.', '/parameters/')}"
        until_then = (
            f"set `{name}={found.common}` in /etc/modprobe.d or on the kernel's command line"
            if of_module
            else f"`sysctl -w {name}='{found.common}'` until then"
        )
        yield failed(
            name,
            f"not all nodes have the same {name}: {found.spoken}; where it differs, {noticed}",
            at=Evidence(name, value, found.common, f"cat {file}" if of_module else f"sysctl {name}", node),
            nodes=tuple(found.odd),
            remedy=f"See why {fold(found.odd)} was set up differently; {until_then}.",
        )
    if len(have) > 1 and not told:
        yield passed(f"kernel settings of {len(have)} nodes")
