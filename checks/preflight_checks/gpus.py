"""Whether every node has the GPUs the job counts on."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Claim, Job
from preflight.judgement import Verdict, check, failed, not_applicable, passed, unknown
from preflight.outcome import Confidence, Evidence, Severity
from preflight.recording import Facts, Fleet, Unavailable
from preflight.request import Request, probe_name
from preflight_checks.demands import fold, gpu_claims, largest, unseen
from preflight_checks.majority import split
from preflight_checks.probes.gpus import Gpus, gpus


def plan_gpus(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    """The GPUs of every node, when the job needs any."""
    claims = gpu_claims(job)
    if claims:
        for node in fleet.reached:
            yield Request(probe_name(gpus), node.name, because=claims, required=True)


#: What a driver that does not work looks like, and what to do about it.
_BROKEN = {
    "no-library": (
        "has no NVIDIA driver library (libnvidia-ml.so.1)",
        "Install the NVIDIA driver on {nodes}.",
    ),
    "no-driver": ("has the driver's kernel module not loaded", "`modprobe nvidia` on {nodes}, or reboot."),
    "mismatch": (
        "has a driver library of another version than the loaded kernel module",
        "Reboot {nodes}, or reload the nvidia modules: the driver was updated underneath.",
    ),
    "other": ("has a driver that does not answer", "Look at `nvidia-smi` and `dmesg` on {nodes}."),
}


def expected_gpus(job: Job) -> tuple[int, tuple[Claim, ...]] | None:
    """GPUs each node must have: those the job holds, else one for each rank on the node."""
    held, ranks = largest(job, "gpus_per_node"), largest(job, "processes_per_node")
    return held if held is not None and held[0] > 0 else ranks


@check(
    "GPU011",
    "gpu-count-short",
    plan=plan_gpus,
    severity=Severity.ERROR,
    evidence=("NVIDIA/aicr#1858", "pytorch/pytorch#28257", "deepspeedai/DeepSpeed#1481"),
)
def gpu_count(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every node has as many working GPUs as the job uses on it.

    What it checks: the devices NVML lists, against the job's GPUs (or ranks) per node.

    Why it matters: ranks without a GPU fail with an invalid device ordinal while the other nodes wait for them.

    Example: eight ranks per node, and one GPU of node3 has fallen off the bus.

    Fix: replace the node, or lower the number everywhere.

    Known limits: a scheduler may show the agent other devices than the job; MIG instances count as their GPU.

    Evidence: NVIDIA/aicr#1858, pytorch/pytorch#28257, deepspeedai/DeepSpeed#1481.
    """
    needed = gpu_claims(job)
    if not needed:
        yield not_applicable("GPUs", "nothing in the job asks for GPUs")
        return
    wanted = expected_gpus(job)
    broken: dict[str, dict[str, Gpus]] = {}
    short: dict[int, list[str]] = {}
    for seen in facts.each(gpus):
        if isinstance(seen.fact, Unavailable):
            yield unknown(seen.node, f"its GPUs are not known: {seen.fact.reason}", required=True)
            continue
        value = seen.fact.value
        working = sum(not item.problem for item in value.gpus)
        if value.problem:
            broken.setdefault(value.problem, {})[seen.node] = value
        elif working == 0 or (wanted is not None and working < wanted[0]):
            short.setdefault(working, []).append(seen.node)
        else:
            yield passed(seen.node)
    for problem, found in broken.items():
        what, remedy = _BROKEN[problem]
        node, value = next(iter(found.items()))
        yield failed(
            f"driver: {problem}",
            f"{fold(found)} {what} ({value.detail}), and the job needs GPUs",
            at=Evidence("NVML", value.detail, "a driver that answers", "nvidia-smi", node),
            also=needed,
            nodes=tuple(found),
            remedy=remedy.format(nodes=fold(found)),
        )
    have = facts.observed(gpus)
    for working, nodes in sorted(short.items()):
        lost = [f"{item.index}: {item.problem}" for item in have[nodes[0]].gpus if item.problem]
        because = f" (GPU {fold(lost, 3)})" if lost else ""
        count = wanted[0] if wanted else 1
        yield failed(
            f"{working} GPUs",
            f"{fold(nodes)} {'has' if len(nodes) == 1 else 'have'} {working} of the {count} GPUs the job uses on "
            f"each node{because}",
            at=Evidence("NVML", f"{working} GPUs{because}", f"{count} GPUs", "nvidia-smi -L", nodes[0]),
            also=wanted[1] if wanted else needed,
            nodes=nodes,
            remedy=f"Replace {fold(nodes)}, or reset the lost GPU; or let the job use {working} on every node.",
        )


@check(
    "GPU012",
    "gpu-model-differs",
    plan=plan_gpus,
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("NVIDIA/aicr#1858",),
)
def gpu_model(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """All nodes have GPUs of one model and memory size.

    What it checks: model and memory of every GPU on every node.

    Why it matters: the slowest GPU sets the pace of all, and the smallest memory the batch size.

    Example: seven nodes with 80 GB cards and one with 40 GB: that one runs out of memory at the first step.

    Fix: ask the scheduler for one type of node.

    Known limits: says nothing of clocks or of how GPUs are connected.

    Evidence: NVIDIA/aicr#1858.
    """
    if not gpu_claims(job):
        yield not_applicable("GPU models", "nothing in the job asks for GPUs")
        return
    blind = tuple(unseen(facts, gpus, "GPU models"))
    yield from blind
    models = {
        node: fold(sorted({_model(item.name, item.memory_bytes) for item in value.gpus if not item.problem}))
        for node, value in facts.observed(gpus).items()
        if value.gpus
    }
    found = split(models)
    if found is None:
        if not blind:
            yield unknown("GPU models", "no node shows a GPU (see GPU011)")
    elif not found.odd:
        yield passed(f"{found.common} on {len(models)} nodes")
    else:
        node, model = found.first_odd
        yield failed(
            "GPU models",
            f"GPUs differ between nodes: {found.spoken}",
            at=Evidence("NVML", model, found.common, "nvidia-smi -L", node),
            also=gpu_claims(job),
            nodes=tuple(found.odd),
            remedy="Ask for nodes of one type, or size the batch for the smallest GPU.",
        )


def _model(name: str, memory_bytes: int | None) -> str:
    return f"{name} {memory_bytes / 2**30:.0f} GiB" if memory_bytes else name
