"""The GPU that a training script chooses for its rank, and the device maps of its models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from preflight.model.findings import Severity, Status
from preflight.model.job import Claim, Job, Launch, Plain, Unresolved, is_whole_number
from preflight.model.job.claim import job_value
from preflight.model.job.value import Scalar, numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import counted, placed, quoted, why_unresolved
from preflight_rules.launches import certainly_several, ranks_started
from preflight_rules.scripts.script_facts import launches_of, nodes_of, started_files, stated

_MASK = "env.CUDA_VISIBLE_DEVICES"


@rule(
    "TRN004",
    "physical-gpu-index-after-mask",
    severity=Severity.ERROR,
    otherwise="no script chooses a GPU under CUDA_VISIBLE_DEVICES",
)
def physical_gpu_index_after_mask(job: Job) -> Iterator[Verdict]:
    """A GPU is chosen by its physical index after CUDA_VISIBLE_DEVICES has renumbered them.

    What it checks: If a script sets CUDA_VISIBLE_DEVICES, the index given to `set_device`, `torch.device` or
    `device_ids` is not an entry of that list.

    Why it matters: The visible GPUs are renumbered from 0. Index 4 of a list of four does not exist: "invalid device
    ordinal". It goes unnoticed as long as the list is 0,1,2,3.

    Example: `os.environ["CUDA_VISIBLE_DEVICES"] = "4,5,6,7"` and `torch.cuda.set_device(int(gpus[local_rank]))`.

    Fix: Use the position in the list, which is the local rank: `torch.cuda.set_device(local_rank)`.

    Known limits: If the list is not written out, or some of its entries are small enough to exist, it is a warning.
    """
    for subject, chosen in stated(job, "device_of_masked_list"):
        mask = _mask(job, chosen)
        listed = next((tuple(value) for value in chosen.alternatives if isinstance(value, tuple)), ())
        if not listed and mask is not None:
            listed = _listed_devices(mask)
        missing = [index for index in listed if isinstance(index, int) and index >= len(listed)]
        if listed and not missing:
            yield passed(subject)
        elif isinstance(chosen.value, Unresolved) and mask is not None and mask.condition:
            yield unknown(subject, f"{quoted(chosen)} depends on the branch `{mask.condition}`", at=chosen)
        else:
            certain = bool(listed) and len(missing) == len(listed) and why_unresolved((chosen,)) is None
            yield _physical(subject, chosen, mask, listed, missing, None if certain else Severity.WARNING)
    for subject, chosen in stated(job, "device_index"):
        mask = _mask(job, chosen)
        listed, found = _listed_devices(mask) if mask is not None else (), numbers(chosen.value)
        if mask is None or not listed or len(found) != 1:
            continue
        if found[0] < len(listed):
            yield passed(subject)
        elif why_unresolved((chosen, mask)) is not None:
            yield unknown(subject, f"{quoted(chosen)} or {quoted(mask)} is under a condition", at=chosen)
        else:
            # A module may contain such a number for another kind of run.
            sure = chosen.span.path in (*started_files(job), mask.span.path)
            severity = None if sure else Severity.WARNING
            yield _physical(subject, chosen, mask, listed, [found[0]], severity)


def _mask(job: Job, chosen: Claim) -> Claim | None:
    """The CUDA_VISIBLE_DEVICES in force where a GPU is chosen: the script's own, otherwise that of its launch."""
    own = next((c for c in job.about(_MASK) if c.span.path == chosen.span.path), None)
    if own is not None:
        return own
    for launch in launches_of(job, chosen):
        found = job.setting(_MASK, launch.scope)
        if len(found) == 1:
            return found[0]
    return None


def _listed_devices(mask: Claim) -> tuple[Scalar, ...]:
    """The indices in a literal device list."""
    found = mask.alternatives
    parts = str(found[0]).split(",") if len(found) == 1 else []
    if not parts or not all(is_whole_number(part.strip()) and len(part) < 5 for part in parts):
        return ()
    return tuple(int(part) for part in parts)


def _physical(
    subject: str,
    chosen: Claim,
    mask: Claim | None,
    listed: tuple[Scalar, ...],
    missing: Sequence[Plain],
    severity: Severity | None,
) -> Verdict:
    seen = ",".join(map(str, listed))
    left = f"`{seen}` leaves {counted(len(listed), 'GPU')}, numbered from 0"
    detail = (
        f"{left}: index {' or '.join(map(str, missing))} does not exist"
        if listed
        else "the visible GPUs are renumbered from 0"
    )
    return failed(
        subject,
        f"{quoted(chosen)} uses a physical index of the list in CUDA_VISIBLE_DEVICES, but {detail}.",
        at=chosen,
        also=((mask, "renumbers the GPUs"),) if mask is not None else (),
        remedy="Use the position in the list, which is the local rank: torch.cuda.set_device(local_rank).",
        severity=severity,
    )


@rule("TRN005", "gpu-chosen-by-global-rank", severity=Severity.ERROR, otherwise="no GPU is chosen by the global rank")
def gpu_chosen_by_global_rank(job: Job) -> Iterator[Verdict]:
    """A rank uses its global rank as GPU index although the job has more than one node.

    What it checks: If several ranks run on each of several nodes, the index given to `set_device`, `torch.device` or
    `device_ids` is not the global rank.

    Why it matters: The ranks of the second node start at the number of GPUs of the first, and no GPU there has such an
    index: "invalid device ordinal" on all nodes but the first.

    Example: `torch.cuda.set_device(dist.get_rank())` and `torchrun --nnodes=2 --nproc_per_node=8`.

    Fix: Use the local rank: `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))`.

    Known limits: A rank that is passed in from another file is not judged, nor is a script on one node.
    """
    reported: set[str] = set()
    for subject, chosen in stated(job, "device_of_global_rank"):
        launches = list(launches_of(job, chosen))
        if not launches:
            yield unknown(subject, f"the number of nodes that run {quoted(chosen)} is not given", at=chosen)
            continue
        verdicts = [_global_rank_verdict(job, chosen, launch.id) for launch in launches]
        verdict = next((verdict for verdict in verdicts if verdict is not None), passed(subject))
        if verdict.status is Status.FAIL and chosen.span.path in reported:
            # The same rank is used again for the model and for DDP: one finding for each script.
            continue
        reported.update([chosen.span.path] if verdict.status is Status.FAIL else [])
        yield verdict


def _global_rank_verdict(job: Job, chosen: Claim, launch_id: str) -> Verdict | None:
    launch = job.launch(launch_id)
    nodes = nodes_of(job, launch)
    processes = job.setting("processes_per_node", launch.scope)
    world, because = ranks_started(job, launch.scope)
    if isinstance(nodes, Unresolved):
        return unknown(launch.id, f"the number of nodes that run {quoted(chosen)} is unknown: {nodes.why}", at=chosen)
    if not certainly_several(nodes):
        return None
    if not processes or not certainly_several(world):
        return unknown(launch.id, "the number of ranks on each node is unknown", at=chosen)
    if isinstance(processes[0].value, Unresolved) or chosen.condition or launch.condition:
        return unknown(launch.id, f"{quoted(chosen)} depends on a value known only at run time", at=chosen)
    stated = (*job.requiring("nodes", launch.scope), *job.setting("nodes", launch.scope), *because)
    local = "hvd.local_rank()" if job.about("horovod_started", launch.scope) else 'int(os.environ["LOCAL_RANK"])'
    return failed(
        launch.id,
        f"{quoted(chosen)} uses the global rank as GPU index, but {quoted(stated[0])} gives several"
        " nodes: on every node but the first, no GPU has that index.",
        at=chosen,
        also=((stated[0], "several nodes"),),
        remedy=f"Use the local rank: torch.cuda.set_device({local}).",
    )


#: Device maps that spread one model over all visible GPUs.
_SPREADING = frozenset(("auto", "balanced", "balanced_low_0", "sequential"))


def _after(launch: Launch, option: str) -> set[str | None]:
    """The words that follow an option on the line of a launch."""
    words = launch.arguments
    return {words[at + 1] for at, word in enumerate(words[:-1]) if word == option.partition(" ")[0]}


@rule(
    "HFT016",
    "swift-splits-model-over-visible-gpus",
    severity=Severity.ERROR,
    profile="default",
    otherwise="no swift command asks for DeepSpeed or a device map",
)
def swift_splits_model_over_visible_gpus(job: Job) -> Iterator[Verdict]:
    """ms-swift sees several GPUs in a process, spreads the model over them, and stops because of DeepSpeed or vLLM.

    What it checks: A `swift` command with `--deepspeed`, or with GRPO and `--use_vllm true`, starts one process for
    each GPU that CUDA_VISIBLE_DEVICES lists, and one with several processes has no `--device_map auto`.

    Why it matters: swift takes the number of processes from NPROC_PER_NODE, which is 1 by default. A process that sees
    two GPUs or more spreads its model over them: "DeepSpeed is not compatible with `device_map`". With a process on
    each GPU Accelerate refuses a device map.

    Example: `CUDA_VISIBLE_DEVICES=0,1,2 swift sft --deepspeed zero3 ...`.

    Fix: `NPROC_PER_NODE=3 CUDA_VISIBLE_DEVICES=0,1,2 swift sft --deepspeed zero3 ...`.

    Known limits: Without CUDA_VISIBLE_DEVICES the number of GPUs is that of the machine, which is not known.
    """
    for launch in job.launches:
        # With NPROC_PER_NODE it is a line of torchrun.
        if launch.launcher != "swift" and not (launch.program or "").startswith("swift/cli/"):
            continue
        options = dict(job.settings("transformers", launch.scope))
        by_vllm = "grpo" in _after(launch, "--rlhf_type") and "true" in _after(launch, "--use_vllm")
        deepspeed = options.get("deepspeed") or ((options.get("use_vllm") or launch) if by_vllm else None)
        spread = next((word for word in _after(launch, "--device_map") if word in _SPREADING), None)
        each = job.setting("processes_per_node", launch.scope)
        if (deepspeed is None and spread is None) or not each:
            continue
        masks = job.setting("env.CUDA_VISIBLE_DEVICES", launch.scope)
        undecided_verdict = undecided(launch.id, (*each, *masks), launch)
        if undecided_verdict is not None:
            yield undecided_verdict
            continue
        if not masks:
            yield unknown(launch.id, "how many GPUs a process sees is not given", at=each[0])
            continue
        gpus = min(len([item for item in text.split(",") if item.strip()]) for text in texts(job_value(masks)) or ("",))
        processes = max(numbers(job_value(each)) or (1,))
        if deepspeed is not None and gpus >= 2 * processes:
            yield failed(
                launch.id,
                f"{placed(masks[0])} shows {counted(gpus, 'GPU')} to {counted(processes, 'process', 'processes')}:"
                " swift spreads the model over them, and stops because of"
                f" {quoted(deepspeed) if isinstance(deepspeed, Claim) else '`--use_vllm true`'}.",
                at=deepspeed,
                also=((masks[0], "the GPUs"), (each[0], "the processes")),
                remedy=f"Put `NPROC_PER_NODE={gpus}` before the command.",
            )
        elif spread is not None and processes > 1 and gpus < 2 * processes:
            yield failed(
                launch.id,
                f"`--device_map {spread}` beside {counted(processes, 'process', 'processes')} for"
                f" {counted(gpus, 'GPU')}: each process would spread its model over all GPUs, which Accelerate "
                "refuses.",
                at=launch,
                also=((masks[0], "the GPUs"), (each[0], "the processes")),
                remedy="Remove the option, or start one process for every two GPUs or more.",
            )
        else:
            yield passed(launch.id)
