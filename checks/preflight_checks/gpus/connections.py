"""Checks how GPUs are connected: narrow or slow PCIe links, NVLinks that are down, an NVSwitch fabric that is not set
up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Claim, Job
from preflight.model.recording import Facts, Fleet, Observed
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, root_command, unknown
from preflight_checks.gpus.device_findings import Fault, NodeGpu, all_devices, judge_devices, most_common_by_model
from preflight_checks.gpus.presence import gpu_check, plan_gpus
from preflight_checks.plans import combined, known_facts, on_every_node
from preflight_checks.probes.devices import Fabric, fabric
from preflight_checks.probes.gpus import gpus
from preflight_checks.requirements import fold, gpu_claims


@gpu_check(
    "GPU016",
    "gpu-pcie-narrow",
    severity=Severity.WARNING,
    evidence=(
        ("checks of imbue-ai/cluster-health and AMD-AGI/Primus", "https://github.com/imbue-ai/cluster-health"),
        "AMD-AGI/Primus",
    ),
)
def gpu_pcie_narrow(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every GPU has the PCIe lanes, and the fastest generation, that the others of its model have.

    What it checks: the current link width, compared with the maximum of card and slot and with other GPUs of the
    model, and the fastest generation, compared with the others'.

    Why it matters: a card on 4 of 16 lanes moves data at a quarter of the speed, and all ranks wait for it.

    Example: GPU 5 of node2 runs on 8 lanes, and the other 31 on 16.

    Fix: reseat the card or riser, and check the slot's setting in the firmware.

    Known limits: the current speed (generation) is not judged, because an idle link slows down to save power. If all
    GPUs of a model are equally narrow, the machines are built that way, and it is only noted.
    """
    yield from judge_devices(job, facts, "PCIe links", ("pcie_width",), _find_narrow_pcie)


def _find_narrow_pcie(devices: list[NodeGpu]) -> Iterable[Fault]:
    widths = most_common_by_model(devices, lambda gpu: gpu.pcie_width)
    fastest = most_common_by_model(devices, lambda gpu: gpu.pcie_generation_max)
    for item in devices:
        gpu = item.gpu
        width, usual, most = gpu.pcie_width, widths.get(gpu.name), gpu.pcie_width_max
        generation, common = gpu.pcie_generation_max, fastest.get(gpu.name)
        narrower = width is not None and usual is not None and width < usual
        # Without a majority, compare with the card's own maximum.
        below_own = width is not None and most is not None and width < most and usual != width
        if narrower or below_own:
            yield Fault(
                "PCIe width",
                item,
                "PCIe links are narrower than supported",
                f"has {width} of {max(most or 0, usual or 0)} lanes",
                f"{max(most or 0, usual or 0)} lanes",
                "Reseat the card of {node}, and check its riser and slot.",
                "nvidia-smi -q -d PCIE || nvidia-smi -q | grep -A8 'Link Width'",
            )
        elif width is not None and most is not None and width < most:
            yield Fault(
                "PCIe width of all",
                item,
                "all GPUs of the model use fewer PCIe lanes than they support",
                f"has {width} of {most} lanes",
                f"{most} lanes",
                "Nothing, if the machines are built this way.",
                severity=Severity.INFO,
            )
        if generation is not None and common is not None and generation < common:
            yield Fault(
                "PCIe generation",
                item,
                "the slot supports a slower PCIe generation than those of the other GPUs",
                f"at most generation {generation}",
                f"generation {common}",
                "Check which slot of {node} the card is in, and that slot's firmware setting.",
            )


@gpu_check(
    "GPU017",
    "gpu-nvlink-down",
    severity=Severity.ERROR,
    evidence=(
        ("Xid 74 in NVIDIA's catalogue", "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"),
        "leptonai/gpud",
    ),
)
def gpu_nvlink_down(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every GPU has the NVLinks up that the others of its model have.

    What it checks: the number of links that are up on each GPU compared with the other GPUs of the model, and the
    links' counts of recoveries.

    Why it matters: traffic between GPUs of the node moves to PCIe or fails, and a link that recovers again and again
    is about to be lost.

    Example: GPU 2 of node1 has 11 links up, all others 12.

    Fix: reset all GPUs of the node (and its NVSwitches) or reboot; when the link stays down, replace the hardware.

    Known limits: links that are down on all GPUs of a model (cards without bridges) are assumed to be built that way.
    A card without links among others with links is a warning, because it may lack a bridge.
    """
    yield from judge_devices(job, facts, "NVLinks", ("nvlinks",), _find_down_nvlinks)


def _find_down_nvlinks(devices: list[NodeGpu]) -> Iterable[Fault]:
    usual = most_common_by_model(devices, lambda gpu: None if gpu.nvlinks is None else sum(gpu.nvlinks))
    for item in devices:
        links = item.gpu.nvlinks or []
        common = usual.get(item.gpu.name, 0)
        if sum(links) < common:
            down = [index for index, up in enumerate(links) if not up]
            # A card without any link may simply have no bridge.
            some = any(links)
            yield Fault(
                "NVLinks down" if some else "no NVLink is up",
                item,
                "NVLinks are down",
                f"has {sum(links)} of {common} up (down: {fold_numbers(down)})",
                f"{common} links up",
                "Drain {nodes}; reset its GPUs together (`nvidia-smi --gpu-reset`) or reboot, and replace the "
                "hardware if links stay down.",
                "nvidia-smi nvlink --status",
                None if some else Severity.WARNING,
                None if some else Confidence.MEDIUM,
            )
        recoveries = item.gpu.nvlink_errors.get("recovery", 0)
        if recoveries:
            yield Fault(
                "NVLink recoveries",
                item,
                "NVLinks had errors since the driver was loaded",
                f"counts {recoveries}",
                "no recovery",
                "Watch `nvidia-smi nvlink --errorcounters` on {node}; drain it when the count grows.",
                "nvidia-smi nvlink --errorcounters",
                Severity.WARNING,
                Confidence.MEDIUM,
            )


def fold_numbers(numbers: list[int]) -> str:
    """A few numbers, or how many there are."""
    return ", ".join(map(str, numbers)) if len(numbers) <= 6 else f"{len(numbers)} links"


#: nvml.h, NVML_GPU_FABRIC_STATE_*: 0 is "not supported".
STATES = {1: "not started", 2: "in progress", 3: "completed"}
_COMPLETED = 3


@check(
    "GPU023",
    "gpu-fabric-not-ready",
    plan=combined(plan_gpus, on_every_node(fabric, needed_by=gpu_claims, deadline_s=5.0)),
    cost="looks for NVSwitches in /proc and /sys and, if there are any, for the Fabric Manager and its version",
    severity=Severity.ERROR,
    evidence=(
        "pytorch/pytorch#35710",
        "dstackai/dstack#2348",
        "nanoporetech/dorado#1214",
        "hiyouga/LLaMA-Factory#8968",
        (
            "NVIDIA's Fabric Manager user guide",
            "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html",
        ),
    ),
)
def gpu_fabric_not_ready(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """On nodes with NVSwitches the Fabric Manager runs, matches the driver's version, and has set up every GPU.

    What it checks: NVML's fabric state of each GPU where it has one (H100 and later); else whether the Fabric
    Manager's process or service exists; in both cases, whether its version is the driver's.

    Why it matters: without it every CUDA program on the node ends with error 802, "system not yet initialized".

    Example: the driver of node2 was updated to 550.90 and the Fabric Manager, still 550.54, refuses to start.

    Fix: install the Fabric Manager of exactly the driver's version and `systemctl restart nvidia-fabricmanager`.

    Known limits: in a container that sees no host processes, and on virtual machines whose switches are managed
    outside, only NVML's state is judged.
    """
    claims = gpu_claims(job)
    if not claims:
        yield not_applicable("NVSwitch fabric", "nothing in the job requests GPUs")
        return
    states: dict[str, list[tuple[int, int, int | None, str]]] = {}
    for item in all_devices(job, facts):
        state = item.gpu.fabric_state
        if state:
            states.setdefault(item.node, []).append((item.gpu.index, state, item.gpu.fabric_status, item.label))
    yield from _unregistered_gpus(states, claims)
    broken = {
        node for node, found in states.items() if any(_is_not_ready(state, status) for _, state, status, _ in found)
    }
    absent: dict[str, Fabric] = {}
    other: dict[tuple[str, str], list[str]] = {}
    well, without = 0, 0
    observed = yield from known_facts(facts, fabric, "NVSwitch fabric")
    for node, value in observed.items():
        fact = facts.of(gpus, node)
        driver = fact.value.driver if isinstance(fact, Observed) else ""
        if node in broken:
            continue
        if not value.switches and node not in states:
            # Only a driver that responds can report that its GPUs have no fabric.
            if isinstance(fact, Observed) and not fact.value.problem:
                without += 1
            else:
                yield unknown(f"NVSwitch fabric on {node}", "blocked by GPU011: its GPUs are not known", nodes=(node,))
            continue
        ready = node in states
        stopped = value.running is False or value.service in ("failed", "inactive")
        if not ready and stopped and value.running is not True:
            absent[node] = value
        elif not ready and value.running is None and value.service != "active":
            yield unknown(
                f"NVSwitch fabric on {node}", "whether its Fabric Manager runs cannot be seen from here", nodes=(node,)
            )
        elif value.version and driver and value.version != driver:
            other.setdefault((value.version, driver), []).append(node)
        else:
            well += 1
    yield from _missing_manager(absent, facts, claims)
    for (version, driver), nodes in other.items():
        yield failed(
            f"Fabric Manager {version}",
            f"the Fabric Manager on {fold(nodes)} is {version}, and the driver {driver}: it will not restart",
            at=Evidence("nv-fabricmanager --version", version, driver, "nv-fabricmanager --version", nodes[0]),
            also=claims,
            nodes=nodes,
            remedy=f"Install the Fabric Manager of version {driver} on {fold(nodes)} and restart it.",
            severity=Severity.WARNING,
        )
    if well:
        yield passed(f"NVSwitch fabric on {well} nodes")
    elif without and not broken and not absent and not other:
        yield not_applicable("NVSwitch fabric", f"{without} nodes have no NVSwitch")


def _is_not_ready(state: int, status: int | None) -> bool:
    return state != _COMPLETED or bool(status)


def _unregistered_gpus(
    states: dict[str, list[tuple[int, int, int | None, str]]], claims: tuple[Claim, ...]
) -> Iterator[Verdict]:
    found = [
        (node, label, f"{STATES.get(state, state)}" + (f", status {status}" if status else ""))
        for node, devices in states.items()
        for _, state, status, label in devices
        if _is_not_ready(state, status)
    ]
    if not found:
        return
    nodes = tuple(dict.fromkeys(node for node, _, _ in found))
    shown = fold((f"{label}: {text}" for _, label, text in found), 4)
    yield failed(
        "fabric state",
        f"GPUs are not registered with their NVSwitch fabric: {shown}",
        at=Evidence("NVML", f"{found[0][1]}: {found[0][2]}", "completed", "nvidia-smi -q | grep -A4 Fabric", nodes[0]),
        also=claims,
        nodes=nodes,
        remedy=f"`systemctl restart nvidia-fabricmanager` on {fold(nodes)} (its version must be the driver's), and "
        "reset GPUs whose state does not change.",
        run=(root_command("systemctl", "restart", "nvidia-fabricmanager", on=nodes),),
    )


def _missing_manager(fabrics: dict[str, Fabric], facts: Facts, claims: tuple[Claim, ...]) -> Iterator[Verdict]:
    if not fabrics:
        return
    node, value = next(iter(fabrics.items()))
    fact = facts.of(gpus, node)
    driver = fact.value.driver if isinstance(fact, Observed) else ""
    differs = value.version and driver and value.version != driver
    reason = f"; its version {value.version} is not the driver's, {driver}" if differs else ""
    yield failed(
        "Fabric Manager",
        f"{fold(fabrics)} {'has' if len(fabrics) == 1 else 'have'} NVSwitches and no running Fabric Manager{reason}",
        at=Evidence(
            "Fabric Manager",
            value.service or "no process",
            "active, of the driver's version",
            "systemctl status nvidia-fabricmanager",
            node,
        ),
        also=claims,
        nodes=tuple(fabrics),
        remedy=f"Install nvidia-fabricmanager {driver or 'of the driver version'} on {fold(fabrics)} and "
        "`systemctl enable --now nvidia-fabricmanager`.",
        run=(root_command("systemctl", "enable", "--now", "nvidia-fabricmanager", on=fabrics),),
    )
