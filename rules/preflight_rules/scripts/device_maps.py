"""Device maps of models in training scripts."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Launch, Scope
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, unknown
from preflight_rules.helpers import certainly_several, counted, placed, quoted, undecided
from preflight_rules.scripts.script_facts import launches_of, stated

#: Device maps that spread one model over all visible GPUs.
_SPREADING = frozenset(("auto", "balanced", "balanced_low_0", "sequential"))
_STARTERS = frozenset(("torchrun", "torch.distributed.launch", "accelerate", "deepspeed"))


@rule(
    "HFT009",
    "device-map-beside-other-ranks",
    severity=Severity.ERROR,
    otherwise="no training script loads its model with a device map",
    evidence=(
        "https://huggingface.co/docs/accelerate/concept_guides/big_model_inference",
        (
            "accelerate, Accelerator.prepare_model",
            "https://github.com/huggingface/accelerate/blob/v1.10.0/src/accelerate/accelerator.py",
        ),
        (
            "transformers, modeling_utils.py",
            "https://github.com/huggingface/transformers/blob/v4.56.0/src/transformers/modeling_utils.py",
        ),
    ),
)
def device_map_beside_other_ranks(job: Job) -> Iterator[Verdict]:
    """A script loads its model with a device map under ZeRO stage 3, or spreads it over the GPUs of other ranks.

    What it checks: A script that trains with Accelerate, or a trainer based on it, loads its model with neither a
    `device_map` nor `low_cpu_mem_usage=True` once it has set up ZeRO stage 3. With several ranks on a node it has no
    spreading map (`auto`, `balanced`, `sequential`).

    Why it matters: transformers refuses both once ZeRO stage 3 is set up. Otherwise every rank loads the whole model
    over all GPUs, which may run out of memory, and Accelerate refuses it: "You can't train a model that has been loaded
    with `device_map='auto'` in any distributed mode".

    Example: `AutoModelForCausalLM.from_pretrained(name, device_map="auto")` and `torchrun --nproc_per_node=8 train.py`.

    Fix: Remove `device_map`; for quantised models `device_map={"": local_rank}`.

    Known limits: Where no call before the model sets the trainer up, only a spreading map is reported, at warning.
    `low_cpu_mem_usage` is a warning, because releases since 4.50 ignore it. With several models, a model used only for
    inference is reported too. Ranks that see only one GPU each are not reported.
    """
    for quantity in ("device_map", "low_cpu_mem_usage"):
        for subject, given in stated(job, quantity):
            for launch in launches_of(job, given):
                yield _judged(job, launch.id, launch.scope, launch, given)
            if not job.launches:
                yield _judged(job, subject, given.scope, None, given)


def _judged(job: Job, subject: str, scope: Scope, launch: Launch | None, given: Claim) -> Verdict:
    stages, each = job.setting("zero_stage", scope), job.setting("processes_per_node", scope)
    undecided_verdict = undecided(subject, (given, *stages, *each), launch)
    if undecided_verdict is not None:
        return undecided_verdict
    maps = set(texts(given.value)) if given.quantity == "device_map" else set()
    spreads = bool(maps) and maps <= _SPREADING
    stage = numbers(job_value(stages)) if stages else ()
    if stage and min(stage) >= 3 and (spreads or given.because):
        if not _zero_is_set_up(job, scope):
            return unknown(subject, "Accelerate leaves the setup of ZeRO stage 3 to the script", at=given)
        certain = bool(given.because) and given.quantity == "device_map"
        return failed(
            subject,
            f"{quoted(given)} is used with {placed(stages[0])}: transformers "
            + ("refuses a device map" if given.quantity == "device_map" else "before 4.50 refuses low_cpu_mem_usage")
            + " under ZeRO stage 3"
            + (
                ", and stops while it loads the model."
                if given.because
                else ", or Accelerate refuses the spread model."
            ),
            at=given,
            also=((stages[0], "ZeRO stage 3"), *((before, "set up here") for before in given.because)),
            remedy=f"Remove `{given.quantity}`: DeepSpeed splits the model itself.",
            severity=None if certain else Severity.WARNING,
        )
    if not spreads:
        return passed(subject)
    if launch is None:
        return unknown(subject, f"the number of ranks that run {quoted(given)} is unknown", at=given)
    several = launch.launcher in _STARTERS and certainly_several(job_value(each))
    if several and not job.setting("env.ACCELERATE_BYPASS_DEVICE_MAP", scope):
        return failed(
            subject,
            f"{quoted(given)} spreads the model over all GPUs in each of the {max(numbers(job_value(each)))} ranks"
            f" that {placed(each[0])} starts on a node: Accelerate refuses to train it.",
            at=given,
            also=((each[0], "ranks of each node"),),
            remedy='Remove `device_map`; for a quantised model write `device_map={"": local_rank}`.',
            severity=Severity.WARNING,
            confidence=Confidence.MEDIUM,
        )
    return passed(subject)


def _zero_is_set_up(job: Job, scope: Scope) -> bool:
    """Whether nothing switches off Accelerate's setup of ZeRO stage 3 before models are loaded."""
    flags = [claim for key, claim in job.settings("accelerate", scope) if key.endswith("zero3_init_flag")]
    return not any(claim.alternatives in ((False,), ("false",)) for claim in flags)


def _after(launch: Launch, option: str) -> set[str | None]:
    """The words that follow an option on the line of a launch."""
    words = launch.arguments
    return {words[at + 1] for at, word in enumerate(words[:-1]) if word == option.partition(" ")[0]}


@rule(
    "HFT016",
    "swift-splits-model-over-visible-gpus",
    severity=Severity.ERROR,
    otherwise="no swift command asks for DeepSpeed or a device map",
    evidence=(
        "modelscope/ms-swift#5328",
        "modelscope/ms-swift#479",
        "modelscope/ms-swift#4567",
        "swift/llm/argument/base_args (_init_device, _init_deepspeed)",
    ),
)
def swift_splits_model_over_visible_gpus(job: Job) -> Iterator[Verdict]:
    """ms-swift sees several GPUs in a process, spreads the model over them, and stops because DeepSpeed is asked for.

    What it checks: A `swift` command with `--deepspeed` starts one process for each GPU that CUDA_VISIBLE_DEVICES
    lists, and one with several processes has no `--device_map auto`.

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
        deepspeed = options.get("deepspeed")
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
                f" swift spreads the model over them, and stops because of {quoted(deepspeed)}.",
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
