"""Where a training script lets Accelerate put a model, against the ranks and the sharding it is trained with."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Claim, Job, Launch, Scope
from preflight.judgement import Verdict, failed, not_applicable, passed, rule, unknown
from preflight.outcome import Confidence, Severity
from preflight_rules.reading import certainly_several, job_value, numbers, placed, quoted, texts, undecided
from preflight_rules.scripts.script_reading import launches_of, stated

#: Maps that put one model over all the GPUs that a process sees.
_SPREADING = frozenset(("auto", "balanced", "balanced_low_0", "sequential"))
_STARTERS = frozenset(("torchrun", "torch.distributed.launch", "accelerate", "deepspeed"))


@rule(
    "HFT009",
    "device-map-beside-other-ranks",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=(
        "https://huggingface.co/docs/accelerate/concept_guides/big_model_inference",
        "https://github.com/huggingface/accelerate/blob/v1.10.0/src/accelerate/accelerator.py",
        "https://github.com/huggingface/transformers/blob/v4.56.0/src/transformers/modeling_utils.py",
    ),
)
def device_map_beside_other_ranks(job: Job) -> Iterator[Verdict]:
    """A script spreads its model over all GPUs, and is started with a rank for each of them.

    What it checks:
        A script that trains with Accelerate, or with a trainer over it, and loads its model with a `device_map` that
        spreads it (`auto`, `balanced`, `sequential`): not under ZeRO stage 3, nor with several ranks on a node.

    Why it matters:
        transformers refuses a device map once ZeRO stage 3 is set up. Otherwise every rank loads the whole model over
        all GPUs, which may run out of memory, and Accelerate refuses it: "You can't train a model that has been
        loaded with `device_map='auto'` in any distributed mode".

    Example:
        `AutoModelForCausalLM.from_pretrained(name, device_map="auto")` and `torchrun --nproc_per_node=8 train.py`.

    Fix:
        Leave `device_map` out; for quantised models `device_map={"": local_rank}`.

    Known limits:
        A map to one device, `{"": rank}`, is let be: whether ZeRO is set up when the model is loaded is not known.
        Which of several models is trained is not looked into: one that is only asked for answers may be spread, too.
        Ranks that a scheduler shows one GPU each load the model there, and are let be.

    Evidence:
        transformers, modeling_utils.py; accelerate, Accelerator.prepare_model.
    """
    met = False
    for subject, given in stated(job, "device_map"):
        met = True
        for launch in launches_of(job, given):
            yield _judged(job, launch.id, launch.scope, launch, given)
        if not job.launches:
            yield _judged(job, subject, given.scope, None, given)
    if not met:
        yield not_applicable(job.name, "no training script loads its model with a device map")


def _judged(job: Job, subject: str, scope: Scope, launch: Launch | None, given: Claim) -> Verdict:
    stages, each = job.setting("zero_stage", scope), job.setting("processes_per_node", scope)
    open_end = undecided(subject, (given, *stages, *each), launch)
    if open_end is not None:
        return open_end
    spreads = set(texts(given.value)) <= _SPREADING and bool(texts(given.value))
    if not spreads:
        return passed(subject)
    stage = numbers(job_value(stages)) if stages else ()
    if stage and min(stage) >= 3:
        return failed(
            subject,
            f"{quoted(given)} beside {placed(stages[0])}: transformers refuses a device map under ZeRO stage 3, or"
            " Accelerate the spread model.",
            at=given,
            also=((stages[0], "ZeRO stage 3"),),
            remedy="Leave `device_map` out: DeepSpeed splits the model itself.",
        )
    if launch is None:
        return unknown(subject, f"with how many ranks {quoted(given)} is run is not known", at=given)
    several = launch.launcher in _STARTERS and certainly_several(job_value(each))
    if several and not job.setting("env.ACCELERATE_BYPASS_DEVICE_MAP", scope):
        return failed(
            subject,
            f"{quoted(given)} spreads the model over all GPUs in each of the {max(numbers(job_value(each)))} ranks that"
            f" {placed(each[0])} starts on a node: Accelerate refuses to train it.",
            at=given,
            also=((each[0], "ranks of each node"),),
            remedy='Leave `device_map` out; for a quantised model write `device_map={"": local_rank}`.',
        )
    return passed(subject)
