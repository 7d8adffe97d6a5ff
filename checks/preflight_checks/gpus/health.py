"""Checks for broken or slowed GPUs: memory errors, pending repairs, throttled clocks, requested resets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict
from preflight_checks.gpus.device_findings import Fault, NodeGpu, judge_devices
from preflight_checks.gpus.presence import gpu_check

#: docs.nvidia.com/deploy/dynamic-page-retirement: a board with this many retired pages is replaced.
MAX_RETIRED_PAGES = 60
#: nvml.h, nvmlClocksEventReasons.
HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x8, 0x20, 0x40, 0x80


@gpu_check(
    "GPU013",
    "gpu-memory-uncorrectable",
    severity=Severity.ERROR,
    evidence=(
        (
            "NVIDIA's notes on memory error management and on debugging GPUs",
            "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html",
        ),
        "https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html",
        "Meta's Llama 3 report counts memory among the main causes of interruption",
    ),
)
def gpu_memory_uncorrectable(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No GPU has had an uncorrectable memory error since its driver was loaded, or a failed repair.

    What it checks: ECC's volatile count of uncorrected errors, and whether remapping a row has failed, on every GPU.

    Why it matters: a process on such a GPU dies at the bad address, takes the whole job with it, and does so again.

    Example: GPU 3 of node2 counts two uncorrected errors since yesterday.

    Fix: drain the node; reset the GPU when it is idle, and have it replaced if errors return or a repair failed.

    Known limits: consumer cards have no ECC; errors before the last reset or reload of the driver are not counted.
    """
    yield from judge_devices(job, facts, "GPU memory", ("ecc_uncorrected", "rows_remap_failed"), _find_memory_faults)


def _find_memory_faults(devices: list[NodeGpu]) -> Iterable[Fault]:
    for item in devices:
        count = item.gpu.ecc_uncorrected
        if count:
            yield Fault(
                "uncorrectable memory errors",
                item,
                "uncorrectable memory errors since the driver was loaded",
                f"has {count}",
                "no uncorrected ECC error",
                "Drain {nodes}; when it is idle, `nvidia-smi --gpu-reset -i {index}` on {node}. Replace a card whose "
                "errors recur.",
                "nvidia-smi -q -d ECC",
            )
        if item.gpu.rows_remap_failed:
            yield Fault(
                "row remapping failed",
                item,
                "the GPU could not replace a bad row of its memory",
                "reports failed remapping",
                "no failed remapping",
                "Take {nodes} out of service and have the card replaced.",
                "nvidia-smi -q -d ROW_REMAPPER",
            )


@gpu_check(
    "GPU014",
    "gpu-repair-pending",
    severity=Severity.WARNING,
    evidence=(
        "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html",
        (
            "NVIDIA's notes on memory error management (A100 and later) and on page retirement (before)",
            "https://docs.nvidia.com/deploy/dynamic-page-retirement/index.html",
        ),
    ),
)
def gpu_repair_pending(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No GPU waits for a reset to repair its memory.

    What it checks: pending row remappings, pending page retirements, and the number of retired pages.

    Why it matters: until the reset the bad row stays in use, and the next error there ends the job.

    Example: GPU 1 of node4 has a row marked for remapping since its last error.

    Fix: reset the GPU (or reboot the node) before the job starts; nothing needs to be replaced yet.

    Known limits: the next reset repairs the memory, for whatever reason it happens.
    """
    fields = ("rows_remap_pending", "pages_retirement_pending", "pages_retired")
    yield from judge_devices(job, facts, "memory repairs", fields, _find_pending_repairs)


def _find_pending_repairs(devices: list[NodeGpu]) -> Iterable[Fault]:
    reset = "Drain {nodes} soon and reset the GPU: `nvidia-smi --gpu-reset -i {index}` on {node}, or reboot."
    for item in devices:
        gpu = item.gpu
        if gpu.rows_remap_pending:
            yield Fault(
                "row remapping pending",
                item,
                "bad memory is replaced only at the next reset",
                "has a row remapping pending",
                "no pending remapping",
                reset,
                "nvidia-smi -q -d ROW_REMAPPER",
            )
        if gpu.pages_retirement_pending:
            yield Fault(
                "page retirement pending",
                item,
                "bad pages are retired only when the driver is reloaded",
                "has page retirements pending",
                "no pending retirement",
                reset,
                "nvidia-smi -q -d PAGE_RETIREMENT",
            )
        if gpu.pages_retired is not None and gpu.pages_retired >= MAX_RETIRED_PAGES:
            yield Fault(
                "many retired pages",
                item,
                f"enough retired pages for a replacement by NVIDIA ({MAX_RETIRED_PAGES})",
                f"has {gpu.pages_retired}",
                f"fewer than {MAX_RETIRED_PAGES}",
                "Have the card of {node} replaced.",
                "nvidia-smi -q -d PAGE_RETIREMENT",
            )


@gpu_check(
    "GPU015",
    "gpu-throttled",
    severity=Severity.ERROR,
    evidence=(
        "mlfoundations/open_clip#703",
        (
            "NVML's description of the reasons",
            "https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html",
        ),
    ),
)
def gpu_throttled(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No GPU is throttled by heat or by its power supply before the job starts.

    What it checks: the reasons that NVML gives for the current clocks in several consecutive samples, and the
    temperature, compared with the throttling threshold of the card.

    Why it matters: all ranks wait for the slowest, so one card at half its clock halves the job.

    Example: the power brake of node3 is asserted because one of its power supplies has failed.

    Fix: check the node's cooling and power; a slowdown that lasts when the node is idle is a hardware fault.

    Known limits: the GPUs are idle, so faults that appear only under load are not seen. A software power cap is normal
    for a busy card and not reported. The general slowdown bit and a slowdown by the driver are warnings.
    """
    yield from judge_devices(job, facts, "GPU clocks", ("clock_reasons", "temperature_c"), _find_throttled)


def _find_throttled(devices: list[NodeGpu]) -> Iterable[Fault]:
    command = "nvidia-smi -q -d PERFORMANCE,TEMPERATURE"
    for item in devices:
        gpu, bits = item.gpu, item.gpu.clock_reasons or 0
        at = f"at {gpu.temperature_c} °C" if gpu.temperature_c is not None else ""
        threshold = gpu.temperature_slowdown_c
        hot = threshold is not None and gpu.temperature_c is not None and gpu.temperature_c >= threshold
        if bits & POWER_BRAKE:
            yield Fault(
                "power brake",
                item,
                "the power brake reduces the clocks",
                f"runs {gpu.clock_mhz} of {gpu.clock_max_mhz} MHz",
                "no power brake slowdown",
                "Check the power supplies and cabling of {nodes}; drain it until then.",
                command,
            )
        if bits & HW_THERMAL or hot:
            limit = f", its limit is {threshold} °C" if threshold is not None else ""
            yield Fault(
                "thermal slowdown",
                item,
                "heat reduces the clocks",
                f"{at}{limit}".strip(),
                "no thermal slowdown",
                "Check fans and airflow of {nodes}; drain it until then.",
                command,
            )
        elif bits & SW_THERMAL:
            yield Fault(
                "thermal slowdown by the driver",
                item,
                "the driver reduces the clocks because of heat",
                at,
                "no thermal slowdown",
                "Check fans and airflow of {nodes}.",
                command,
                Severity.WARNING,
            )
        if bits & HW_SLOWDOWN and not bits & (POWER_BRAKE | HW_THERMAL) and not hot:
            yield Fault(
                "hardware slowdown",
                item,
                "the hardware reduces the clocks",
                f"runs {gpu.clock_mhz} of {gpu.clock_max_mhz} MHz",
                "no hardware slowdown",
                "Check power and cooling of {nodes}.",
                command,
                Severity.WARNING,
                Confidence.MEDIUM,
            )


#: nvml.h, NVML_GPU_RECOVERY_ACTION_*.
RECOVERY_ACTIONS = {
    1: "a reset of the GPU",
    2: "a reboot of the node",
    3: "its peers to be drained",
    4: "to be drained and reset",
    5: "its IMEX domain to be recovered",
    6: "a reset of the bus",
    7: "a reboot of the system",
}


@gpu_check(
    "GPU028",
    "gpu-wants-recovery",
    severity=Severity.ERROR,
    evidence=(
        (
            'Xid 154, "GPU recovery action changed", in NVIDIA\'s catalogue',
            "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html",
        ),
    ),
)
def gpu_wants_recovery(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No GPU driver requests a reset or a reboot.

    What it checks: the recovery action that the driver reports for each GPU.

    Why it matters: the driver has seen an error that only this action clears; programs fail on the GPU until then.

    Example: GPU 4 of node2 has requested a reset since its firmware stopped responding (Xid 119, then 154).

    Fix: drain the node, and perform the action.

    Known limits: drivers before 565 do not report it.
    """
    yield from judge_devices(job, facts, "recovery actions", ("recovery_action",), _find_requested_recovery)


def _find_requested_recovery(devices: list[NodeGpu]) -> Iterable[Fault]:
    for item in devices:
        action = item.gpu.recovery_action
        if action:
            yield Fault(
                f"recovery action {action}",
                item,
                "the driver requests recovery",
                f"requests {RECOVERY_ACTIONS.get(action, f'action {action}')}",
                "no recovery action",
                "Drain {nodes}; then `nvidia-smi --gpu-reset -i {index}` on {node}, or reboot it.",
                "nvidia-smi -q | grep -i 'recovery action'",
            )
