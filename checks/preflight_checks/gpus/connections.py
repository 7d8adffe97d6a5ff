"""Checks how GPUs are connected: narrow or slow PCIe links, and NVLinks that are down."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, check
from preflight_checks.gpus.device_findings import Fault, NodeGpu, judge_devices, most_common_by_model
from preflight_checks.gpus.presence import COST, LOST_WITHOUT_ROOT, plan_gpus
from preflight_checks.probes.gpus import gpus


@check(
    "GPU016",
    "gpu-pcie-narrow",
    plan=plan_gpus,
    probes=(gpus,),
    cost=COST,
    without_root=LOST_WITHOUT_ROOT,
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


@check(
    "GPU017",
    "gpu-nvlink-down",
    plan=plan_gpus,
    probes=(gpus,),
    cost=COST,
    without_root=LOST_WITHOUT_ROOT,
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
