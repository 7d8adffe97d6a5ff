"""How GPUs are connected: PCIe links narrower or slower than those of their like, NVLinks that are down."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from preflight.job import Job
from preflight.judgement import Verdict, check
from preflight.outcome import Confidence, Severity
from preflight.recording import Facts, Fleet
from preflight_checks.gpus.devices import Fault, Placed, commonest, judge_devices
from preflight_checks.gpus.gpus import COST, LOST_WITHOUT_ROOT, plan_gpus
from preflight_checks.probes.gpus import gpus


@check(
    "GPU016",
    "gpu-pcie-narrow",
    plan=plan_gpus,
    probes=(gpus,),
    cost=COST,
    without_root=LOST_WITHOUT_ROOT,
    severity=Severity.WARNING,
    evidence=("https://github.com/imbue-ai/cluster-health", "AMD-AGI/Primus"),
)
def gpu_pcie_narrow(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every GPU has the PCIe lanes, and the fastest generation, that the others of its model have.

    What it checks: the present link width against the widest the card and its slot allow and against the other GPUs
    of the model, and the fastest generation against the others'.

    Why it matters: a card on 4 of 16 lanes moves data at a quarter of the speed and everybody waits for it.

    Example: GPU 5 of node2 runs on 8 lanes, and the other 31 on 16.

    Fix: reseat the card or riser, and look at the slot's setting in the firmware.

    Known limits: the present speed (generation) is not judged, because an idle link slows down to save power. Where
    all GPUs of a model are as narrow it is how the machines are built, and only noted.

    Evidence: checks of imbue-ai/cluster-health and AMD-AGI/Primus.
    """
    yield from judge_devices(job, facts, "PCIe links", ("pcie_width",), _narrow)


def _narrow(devices: list[Placed]) -> Iterable[Fault]:
    widths = commonest(devices, lambda gpu: gpu.pcie_width)
    fastest = commonest(devices, lambda gpu: gpu.pcie_generation_max)
    for item in devices:
        gpu = item.gpu
        width, usual, most = gpu.pcie_width, widths.get(gpu.name), gpu.pcie_width_max
        generation, common = gpu.pcie_generation_max, fastest.get(gpu.name)
        narrower = width is not None and usual is not None and width < usual
        # With no majority, the card's own possibilities decide.
        below_own = width is not None and most is not None and width < most and usual != width
        if narrower or below_own:
            yield Fault(
                "PCIe width",
                item,
                "PCIe links are narrower than they could be",
                f"has {width} of {max(most or 0, usual or 0)} lanes",
                f"{max(most or 0, usual or 0)} lanes",
                "Reseat the card of {node}, and look at its riser and slot.",
                "nvidia-smi -q -d PCIE || nvidia-smi -q | grep -A8 'Link Width'",
            )
        elif width is not None and most is not None and width < most:
            yield Fault(
                "PCIe width of all",
                item,
                "all GPUs of the model have fewer PCIe lanes than they could",
                f"has {width} of {most} lanes",
                f"{most} lanes",
                "Nothing, if the machines are built so.",
                severity=Severity.INFO,
            )
        if generation is not None and common is not None and generation < common:
            yield Fault(
                "PCIe generation",
                item,
                "the slot allows a slower PCIe generation than that of the other GPUs",
                f"at most generation {generation}",
                f"generation {common}",
                "Look at the slot of {node} and its setting in the firmware.",
            )


@check(
    "GPU017",
    "gpu-nvlink-down",
    plan=plan_gpus,
    probes=(gpus,),
    cost=COST,
    without_root=LOST_WITHOUT_ROOT,
    severity=Severity.ERROR,
    evidence=("https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html", "leptonai/gpud"),
)
def gpu_nvlink_down(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every GPU has the NVLinks up that the others of its model have.

    What it checks: the number of links that are up on each GPU against the other GPUs of the model, and the links'
    counts of recoveries.

    Why it matters: traffic between GPUs of the node moves to PCIe or fails, and a link that recovers again and again
    is about to be lost.

    Example: GPU 2 of node1 has 11 links up, all others 12.

    Fix: reset all GPUs of the node (and its NVSwitches) or reboot; when the link stays down, exchange the hardware.

    Known limits: links that are down on all GPUs of a model (cards without bridges) are taken for how they are built; a
    card with no link at all among others that have some is a warning, because it may be the one without a bridge.

    Evidence: Xid 74 in NVIDIA's catalogue; leptonai/gpud.
    """
    yield from judge_devices(job, facts, "NVLinks", ("nvlinks",), _down)


def _down(devices: list[Placed]) -> Iterable[Fault]:
    usual = commonest(devices, lambda gpu: None if gpu.nvlinks is None else sum(gpu.nvlinks))
    for item in devices:
        links = item.gpu.nvlinks or []
        common = usual.get(item.gpu.name, 0)
        if sum(links) < common:
            down = [index for index, up in enumerate(links) if not up]
            # A card with no link at all may be one that nobody bridged to another.
            some = any(links)
            yield Fault(
                "NVLinks down" if some else "no NVLink up",
                item,
                "NVLinks are down",
                f"has {sum(links)} of {common} up (down: {fold_numbers(down)})",
                f"{common} links up",
                "Drain {nodes}; reset its GPUs together (`nvidia-smi --gpu-reset`) or reboot, and exchange what stays "
                "down.",
                "nvidia-smi nvlink --status",
                None if some else Severity.WARNING,
                None if some else Confidence.MEDIUM,
            )
        recoveries = item.gpu.nvlink_errors.get("recovery", 0)
        if recoveries:
            yield Fault(
                "NVLink recoveries",
                item,
                "NVLinks had to recover since the driver was loaded",
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
