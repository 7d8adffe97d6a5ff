"""Megatron-LM: ranks, parallel sizes and the global batch; the ranks that share the experts of a model, and HugeCTR's
batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from preflight.analysis.model_size import is_megatron
from preflight.model.findings import Severity
from preflight.model.job import Claim, Job, Launch, Unresolved, strongest
from preflight.model.job.claim import distinct, job_value
from preflight.model.job.value import known_number, numbers
from preflight.plugins.authoring import Verdict, failed, not_applicable, passed, rule, undecided, unknown
from preflight.plugins.claim_text import placed, quoted, why_unresolved
from preflight.plugins.questions import LaunchQuestion, Stated, launches_with
from preflight_rules.launches import certainly_one, ranks_started

_PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size")
#: Options that only Megatron-LM's argument parser has in this spelling (megatron/training/arguments.py, core_r0.12).
_MEGATRON_OPTIONS = frozenset(
    (
        "--tensor-model-parallel-size",
        "--pipeline-model-parallel-size",
        "--num-attention-heads",
        "--num-layers",
    )
)


def _is_megatron(launch: Launch) -> bool:
    return any(word is not None and word.partition("=")[0] in _MEGATRON_OPTIONS for word in launch.arguments)


def _may_hide_options(arguments: tuple[str | None, ...]) -> bool:
    """Whether an unresolved word may be an option; right after `--option` it is that option's value."""
    return any(
        word is None and (before is None or not before.startswith("--") or "=" in before)
        for before, word in itertools.pairwise(("", *arguments))
    )


def _stated(job: Job, launch: Launch, quantity: str) -> tuple[Claim, ...]:
    return strongest(c for c in job.about(quantity, launch.scope) if c.source == "arguments")


def _model_ranks(job: Job, launch: Launch) -> tuple[list[int], tuple[Claim, ...], str]:
    """Every possible product of the parallel sizes, the claims, and why one of them is unknown."""
    claims: tuple[Claim, ...] = ()
    products = [1]
    for quantity in _PARALLEL:
        found = _stated(job, launch, quantity)
        if not found:
            if _may_hide_options(launch.arguments):
                return [], claims, f"whether an unresolved argument gives the {quantity.replace('_', ' ')}"
            continue
        claims = (*claims, *found)
        sizes = numbers(job_value(found))
        if not sizes or min(sizes) < 1:
            why = why_unresolved(found, launch)
            return [], claims, why[1] if why else f"{quoted(found[0])}, which is not a positive number"
        products = [product * size for product in products for size in sizes]
    return products, claims, ""


def on_one_node(job: Job, launch: Launch) -> bool:
    """Whether the files give one node as a number: scripts for many nodes often have it as a placeholder."""
    if job.setting("standalone", launch.scope):
        return False
    nodes = job.requiring("nodes", launch.scope) or job.setting("nodes", launch.scope)
    return bool(nodes) and certainly_one(job_value(nodes))


@rule(
    "PAR001",
    "ranks-not-divisible-by-model-parallel-size",
    severity=Severity.ERROR,
    otherwise="no launch has Megatron-LM's options",
)
def ranks_not_divisible_by_model_parallel_size(job: Job) -> Iterator[Verdict]:
    """The ranks cannot be divided into replicas of the model.

    What it checks: For a launch with Megatron-LM's options, that tensor x pipeline x context parallel size divides the
    number of ranks that are started.

    Why it matters: An assertion in Megatron-LM fails in every rank once all of them have started.

    Example: 8 ranks with `--tensor-model-parallel-size 3 --pipeline-model-parallel-size 2`.

    Fix: Choose sizes whose product divides the ranks, or start a multiple of the product.

    Known limits: Sizes in a configuration file of another framework are not read. If the number of nodes is 1 without
    `--standalone`, and more nodes would make the sizes fit, it is a warning: scripts are published with placeholder
    numbers.
    """
    for launch in job.launches:
        if not _is_megatron(launch):
            continue
        products, sizes, hidden = _model_ranks(job, launch)
        ranks, because = ranks_started(job, launch.scope)
        started = numbers(ranks)
        undecided_verdict = why_unresolved((*sizes, *because), launch)
        if hidden or undecided_verdict is not None or not started:
            why = hidden or (
                undecided_verdict[1] if undecided_verdict else ranks.why if isinstance(ranks, Unresolved) else ""
            )
            yield unknown(launch.id, f"ranks by model parallel size: {why}", at=launch)
        elif all(count % product for count in started for product in products):
            count, product = started[0], products[0]
            yield failed(
                launch.id,
                f"{count} ranks are started, but one replica of the model needs {product}"
                f" ({' x '.join(quoted(c) for c in sizes)}), which does not divide {count}.",
                at=sizes[0],
                also=(*((c, "parallel size") for c in sizes[1:]), *((c, "ranks") for c in distinct(because))),
                remedy=f"Choose parallel sizes whose product divides {count}, or start a multiple of {product} ranks.",
                # Published scripts for many nodes often leave the number of nodes at 1, to be filled in.
                severity=Severity.WARNING if product % count == 0 and on_one_node(job, launch) else None,
            )
        else:
            yield passed(launch.id)


@rule(
    "BAT004",
    "global-batch-not-divisible",
    severity=Severity.ERROR,
    otherwise="no launch sets a global and a micro batch size for Megatron-LM",
)
def global_batch_not_divisible(job: Job) -> Iterator[Verdict]:
    """Megatron-LM's global batch cannot be divided into micro batches for all replicas.

    What it checks: micro batch x data-parallel replicas divides the global batch, where replicas are ranks divided by
    tensor, pipeline and context parallel sizes.

    Why it matters: An assertion in Megatron-LM fails in every rank once all of them have started.

    Example: `--micro-batch-size 4 --global-batch-size 30` on 8 ranks.

    Fix: Use a global batch that is a multiple of micro batch x replicas.

    Known limits: `--decrease-batch-size-if-needed` and `--rampup-batch-size` change the arithmetic; with them nothing
    is reported.
    """
    for launch in job.launches:
        total, micro = _stated(job, launch, "train_batch_size"), _stated(job, launch, "micro_batch_size_per_gpu")
        if not _is_megatron(launch) or not total or not micro:
            continue
        if {"--decrease-batch-size-if-needed", "--rampup-batch-size"}.intersection(launch.arguments):
            yield not_applicable(launch.id, "the global batch is changed at run time")
            continue
        yield _global_batch(job, launch, total, micro)


def _global_batch(job: Job, launch: Launch, total: tuple[Claim, ...], micro: tuple[Claim, ...]) -> Verdict:
    products, sizes, hidden = _model_ranks(job, launch)
    ranks, because = ranks_started(job, launch.scope)
    undecided_verdict = why_unresolved((*total, *micro, *sizes, *because), launch)
    if hidden or undecided_verdict is not None or not numbers(ranks):
        why = hidden or (
            undecided_verdict[1] if undecided_verdict else ranks.why if isinstance(ranks, Unresolved) else ""
        )
        return unknown(launch.id, f"global batch by replicas: {why}", at=total[0])
    cases = [
        (batch, one, count // product)
        for batch, one, count, product in itertools.product(
            numbers(job_value(total)), numbers(job_value(micro)), numbers(ranks), products
        )
        if count % product == 0 and one > 0
    ]
    if not cases or not all(batch % (one * replicas) for batch, one, replicas in cases):
        return passed(launch.id)
    batch, one, replicas = cases[0]
    unit = one * replicas
    return failed(
        launch.id,
        f"{quoted(total[0])} is not a multiple of {quoted(micro[0])} x {replicas} replicas = {unit}.",
        at=total[0],
        also=(
            (micro[0], "micro batch"),
            *((c, "determines the replicas") for c in (*sizes, *distinct(because))),
        ),
        remedy=f"Use a global batch size that is a multiple of {unit}, such as {-(-batch // unit) * unit}.",
    )


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
