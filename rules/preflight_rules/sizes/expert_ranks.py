"""The ranks that share the experts of a model, and the batch that HugeCTR shares among its GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.analysis.model_size import is_megatron
from preflight.model.findings import Severity
from preflight.model.job import Claim, Job, Launch
from preflight.model.job.claim import job_value
from preflight.model.job.value import known_number, numbers
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import placed, quoted
from preflight.plugins.questions import LaunchQuestion, Stated, launches_with
from preflight_rules.sizes.megatron import on_one_node

#: Sizes that take ranks away from those that may share experts.
_BESIDE = ("pipeline_parallel_size", "replicate_degree")
_EXPERT_TENSOR = "--expert-tensor-parallel-size"
#: Options that take the shape of the model from elsewhere.
_SHAPE_ELSEWHERE = ("--use-checkpoint-args", "--yaml-cfg", "--use-mp-args-from-checkpoint-args")


def _may_share_experts(stated: Stated[Launch]) -> bool:
    counts = numbers(job_value(stated.settings[0]))
    return not counts or max(counts) > 1


@rule(
    "PAR028",
    "expert-ranks-impossible",
    severity=Severity.ERROR,
    otherwise="no launch shares experts among ranks",
    each=launches_with("expert_parallel_size", where=_may_share_experts),
)
def expert_ranks_impossible(question: LaunchQuestion) -> Verdict | None:
    """Experts are to be shared by ranks, but there are no experts, or not the ranks.

    What it checks: The expert parallel size divides the ranks of a pipeline stage (and of a replica, where the
    configuration gives a replicate degree); with Megatron-LM, its product with the expert tensor parallel size does.
    Megatron-LM's own programs get `--num-experts` beside `--expert-model-parallel-size`.

    Why it matters: The frameworks refuse both while they make their groups, after all ranks have started.

    Example: `expert_parallel_degree = 3` on 8 GPUs; `--expert-model-parallel-size 4` for a model without experts.

    Fix: Take a size that divides the ranks, or 1 for a model without experts.

    Known limits: A model whose shape comes from a checkpoint or another file is not judged for its experts.
    """
    shared = question.claims
    counts = numbers(job_value(shared))
    if not counts or min(counts) < 2:
        return unknown(question.subject, f"{quoted(shared[0])} may be 1", at=shared[0])
    job, launch = question.of.job, question.of.launch
    if (verdict := _without_experts(job, launch, shared[0])) is not None:
        return verdict
    return _divided(job, launch, shared[0], counts)


def _without_experts(job: Job, launch: Launch, shared: Claim) -> Verdict | None:
    """The verdict on a program of Megatron-LM that gets no number of experts."""
    if shared.source != "arguments" or not is_megatron(launch) or job.about("num_experts", launch.scope):
        return None
    given = launch.arguments
    if any(word is None or word.partition("=")[0] in _SHAPE_ELSEWHERE for word in given):
        return unknown(launch.id, "the number of experts may be given elsewhere", at=shared)
    return failed(
        launch.id,
        f"{quoted(shared)} shares experts among ranks, and the command gives no `--num-experts`: Megatron-LM refuses"
        " expert parallelism for a model without experts.",
        at=shared,
        also=((launch, "started here"),),
        remedy="Add `--num-experts`, or remove the option.",
    )


def _divided(job: Job, launch: Launch, shared: Claim, counts: tuple[int, ...]) -> Verdict:
    world = job.setting("world_size", launch.scope)
    ranks = numbers(job_value(world)) if world else ()
    if len(ranks) != 1 or ranks[0] < 1 or undecided(launch.id, world) is not None:
        return unknown(launch.id, "the number of ranks is unknown", at=shared)
    tensor = _expert_tensor_size(job, launch) if is_megatron(launch) else 1
    if tensor is None:
        return unknown(launch.id, "the expert tensor parallel size is unknown", at=shared)
    group = ranks[0]
    beside: list[Claim] = []
    for quantity in _BESIDE:
        found = job.setting(quantity, launch.scope)
        sizes = numbers(job_value(found)) if found else (1,)
        if len(sizes) != 1 or sizes[0] < 1 or group % sizes[0]:
            return unknown(launch.id, "how many ranks may share experts is unknown", at=shared)
        group //= sizes[0]
        beside += [claim for claim in found if sizes[0] > 1]
    products = [count * tensor for count in counts]
    if all(group % product for product in products):
        times = f" with an expert tensor parallel size of {tensor}" if tensor > 1 else ""
        return failed(
            launch.id,
            f"{quoted(shared)}{times} does not divide the {group} ranks that could share the experts.",
            at=shared,
            also=((world[0], f"{ranks[0]} ranks"), *((claim, "taken away") for claim in beside)),
            remedy=f"Take {'sizes whose product' if tensor > 1 else 'a size that'} divides {group}.",
            severity=Severity.WARNING if products[0] % group == 0 and on_one_node(job, launch) else None,
        )
    return passed(launch.id)


def _expert_tensor_size(job: Job, launch: Launch) -> int | None:
    """The expert tensor parallel size of Megatron-LM: its option, else the tensor parallel size; None if unknown."""
    if any((word or "").partition("=")[0] == _EXPERT_TENSOR for word in launch.arguments):
        return _option(launch, _EXPERT_TENSOR)
    sizes = job.setting("tensor_parallel_size", launch.scope)
    size = known_number(job_value(sizes)) if sizes else 1
    return size if size is not None and size > 0 else None


def _option(launch: Launch, name: str) -> int | None:
    """The whole number that an option of the program has; None if it is not given or unknown."""
    for index, word in enumerate(launch.arguments):
        option, equals, value = (word or "").partition("=")
        if option == name:
            following = launch.arguments[index + 1] if index + 1 < len(launch.arguments) else None
            text = value if equals else following or ""
            return int(text) if text.isdigit() and len(text) < 9 else None
    return None


@rule(
    "BAT024", "hugectr-batch-not-for-gpus", severity=Severity.ERROR, otherwise="no script sets up a solver of HugeCTR"
)
def hugectr_batch_not_for_gpus(job: Job) -> Iterator[Verdict]:
    """The batch of a HugeCTR solver is not a multiple of its GPUs.

    What it checks: `batchsize` of `CreateSolver` is a multiple of the GPUs that `vvgpu` lists.

    Why it matters: Each GPU gets an equal share of the batch; the solver stops where there is none.

    Example: `CreateSolver(batchsize=1000, vvgpu=[[0, 1, 2]])`.

    Fix: Round the batch to a multiple of the GPUs.

    Known limits: Solvers on several nodes are not judged, because the nodes may have different numbers of GPUs.
    """
    for batch in job.about("train_batch_size"):
        if batch.source != "hugectr":
            continue
        beside = {
            quantity: [c for c in job.about(quantity) if c.source == "hugectr" and c.span.path == batch.span.path]
            for quantity in ("gpus_per_node", "world_size")
        }
        gpus, nodes = beside["gpus_per_node"], beside["world_size"]
        if len(gpus) != 1 or len(nodes) != 1:
            continue
        sizes = [numbers(claim.value) for claim in (batch, gpus[0], nodes[0])]
        verdict = undecided(batch.span.path, (batch, gpus[0]))
        if verdict is None and (any(len(each) != 1 for each in sizes) or not sizes[1][0] or sizes[2] != (1,)):
            verdict = unknown(batch.span.path, "the GPUs of the solver are not known one by one", at=gpus[0])
        elif verdict is None and sizes[0][0] % sizes[1][0]:
            verdict = failed(
                batch.span.path,
                f"{quoted(batch)} is not a multiple of the {sizes[1][0]} GPUs of {placed(gpus[0])}: HugeCTR"
                " gives every GPU an equal share of the batch.",
                at=batch,
                also=((gpus[0], "the GPUs"),),
                remedy=f"Take a multiple of {sizes[1][0]}.",
            )
        yield verdict or passed(batch.span.path)
