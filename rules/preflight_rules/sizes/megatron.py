"""Megatron-LM, NeMo and frameworks with configuration files: parallel degrees, batch and experts compared with
ranks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

from preflight.analysis.model_size import is_megatron
from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Launch, Strength, Unresolved, strongest
from preflight.model.job.claim import distinct, job_value
from preflight.model.job.value import known_number, numbers
from preflight.plugins.authoring import Verdict, failed, not_applicable, passed, rule, undecided, unknown
from preflight.plugins.claim_text import counted, placed, quoted, why_unresolved
from preflight.plugins.questions import LaunchQuestion, Stated, launches_with, subjects
from preflight_rules.launches import certainly_one, ranks_started
from preflight_rules.sizes.parallel_sizes import Setup, setups

_PARALLEL_SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size")
#: Options that only Megatron-LM's argument parser has in this spelling (megatron/training/arguments.py, core_r0.12).
_MEGATRON_OPTIONS = frozenset(
    ("--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--num-attention-heads", "--num-layers")
)


def _has_megatron_options(launch: Launch) -> bool:
    return any(word is not None and word.partition("=")[0] in _MEGATRON_OPTIONS for word in launch.arguments)


def _may_hide_options(arguments: tuple[str | None, ...]) -> bool:
    """Return whether an unresolved word may be an option. A word right after `--option` is that option's value."""
    return any(
        word is None and (before is None or not before.startswith("--") or "=" in before)
        for before, word in itertools.pairwise(("", *arguments))
    )


def _argument_claims(job: Job, launch: Launch, quantity: str) -> tuple[Claim, ...]:
    return strongest(c for c in job.about(quantity, launch.scope) if c.source == "arguments")


def _model_ranks(job: Job, launch: Launch) -> tuple[list[int], tuple[Claim, ...], str]:
    """Return the possible products of the parallel sizes, their claims, and the reason if a size is unknown."""
    claims: tuple[Claim, ...] = ()
    products = [1]
    for quantity in _PARALLEL_SIZES:
        size_claims = _argument_claims(job, launch, quantity)
        if not size_claims:
            if _may_hide_options(launch.arguments):
                return [], claims, f"an unresolved argument may set the {quantity.replace('_', ' ')}"
            continue
        claims = (*claims, *size_claims)
        sizes = numbers(job_value(size_claims))
        if not sizes or min(sizes) < 1:
            unresolved = why_unresolved(size_claims, launch)
            return (
                [],
                claims,
                unresolved[1] if unresolved else f"{quoted(size_claims[0])}, which is not a positive number",
            )
        products = [product * size for product in products for size in sizes]
    return products, claims, ""


def gives_one_node(job: Job, launch: Launch) -> bool:
    """Return whether the files set the number of nodes to 1, which is often a placeholder in multi-node scripts."""
    if job.setting("standalone", launch.scope):
        return False
    nodes = job.requirement_claims("nodes", launch.scope) or job.setting("nodes", launch.scope)
    return bool(nodes) and certainly_one(job_value(nodes))


@rule(
    "PAR001",
    "ranks-not-divisible-by-model-parallel-size",
    severity=Severity.ERROR,
    otherwise="no launch passes options to Megatron-LM",
)
def ranks_not_divisible_by_model_parallel_size(job: Job) -> Iterator[Verdict]:
    """The ranks cannot be divided into replicas of the model.

    What it checks: For a launch with Megatron-LM's options, tensor x pipeline x context parallel size divides the
    number of ranks that are started.

    Why it matters: An assertion in Megatron-LM fails in every rank once all of them have started.

    Example: 8 ranks with `--tensor-model-parallel-size 3 --pipeline-model-parallel-size 2`.

    Fix: Choose sizes whose product divides the ranks, or start a multiple of the product.

    Known limits: Sizes in a configuration file of another framework are not read. If the number of nodes is 1 without
    `--standalone`, and more nodes would make the sizes fit, the finding is a warning: scripts are published with
    placeholder numbers.
    """
    for launch in job.launches:
        if not _has_megatron_options(launch):
            continue
        products, sizes, reason = _model_ranks(job, launch)
        ranks, rank_claims = ranks_started(job, launch.scope)
        rank_counts = numbers(ranks)
        unresolved = why_unresolved((*sizes, *rank_claims), launch)
        if reason or unresolved is not None or not rank_counts:
            why = reason or (unresolved[1] if unresolved else ranks.why if isinstance(ranks, Unresolved) else "")
            yield unknown(launch.id, f"the number of model replicas is unknown: {why}", at=launch)
        elif all(count % product for count in rank_counts for product in products):
            count, product = rank_counts[0], products[0]
            yield failed(
                launch.id,
                f"{count} ranks are started, but one replica of the model needs {product}"
                f" ({' x '.join(quoted(c) for c in sizes)}), which does not divide {count}.",
                at=sizes[0],
                also=(*((c, "parallel size") for c in sizes[1:]), *((c, "ranks") for c in distinct(rank_claims))),
                remedy=f"Choose parallel sizes whose product divides {count}, or start a multiple of {product} ranks.",
                # Published scripts for many nodes often leave the number of nodes at 1, to be filled in.
                severity=Severity.WARNING if product % count == 0 and gives_one_node(job, launch) else None,
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

    Known limits: `--decrease-batch-size-if-needed` and `--rampup-batch-size` change the arithmetic; with these options,
    nothing is reported.
    """
    for launch in job.launches:
        total, micro = (
            _argument_claims(job, launch, "train_batch_size"),
            _argument_claims(job, launch, "micro_batch_size_per_gpu"),
        )
        if not _has_megatron_options(launch) or not total or not micro:
            continue
        if {"--decrease-batch-size-if-needed", "--rampup-batch-size"}.intersection(launch.arguments):
            yield not_applicable(launch.id, "the global batch size changes at run time")
            continue
        yield _global_batch_verdict(job, launch, total, micro)


def _global_batch_verdict(job: Job, launch: Launch, total: tuple[Claim, ...], micro: tuple[Claim, ...]) -> Verdict:
    products, sizes, reason = _model_ranks(job, launch)
    ranks, rank_claims = ranks_started(job, launch.scope)
    unresolved = why_unresolved((*total, *micro, *sizes, *rank_claims), launch)
    if reason or unresolved is not None or not numbers(ranks):
        why = reason or (unresolved[1] if unresolved else ranks.why if isinstance(ranks, Unresolved) else "")
        return unknown(launch.id, f"the number of replicas is unknown: {why}", at=total[0])
    cases = [
        (batch, micro_batch, count // product)
        for batch, micro_batch, count, product in itertools.product(
            numbers(job_value(total)), numbers(job_value(micro)), numbers(ranks), products
        )
        if count % product == 0 and micro_batch > 0
    ]
    if not cases or not all(batch % (micro_batch * replicas) for batch, micro_batch, replicas in cases):
        return passed(launch.id)
    batch, micro_batch, replicas = cases[0]
    unit = micro_batch * replicas
    return failed(
        launch.id,
        f"{quoted(total[0])} is not a multiple of {quoted(micro[0])} x {replicas} replicas = {unit}.",
        at=total[0],
        also=(
            (micro[0], "micro batch"),
            *((c, "determines the number of replicas") for c in (*sizes, *distinct(rank_claims))),
        ),
        remedy=f"Use a global batch size that is a multiple of {unit}, such as {-(-batch // unit) * unit}.",
    )


#: Sizes that divide the ranks, so that fewer of them may share experts.
_SIZES_BESIDE_EXPERTS = ("pipeline_parallel_size", "replicate_degree")
_EXPERT_TENSOR = "--expert-tensor-parallel-size"
#: Options that read the model's shape from elsewhere.
_SHAPE_ELSEWHERE = ("--use-checkpoint-args", "--yaml-cfg", "--use-mp-args-from-checkpoint-args")


def _may_share_experts(stated: Stated[Launch]) -> bool:
    counts = numbers(job_value(stated.settings[0]))
    return not counts or max(counts) > 1


@rule(
    "PAR028",
    "expert-ranks-impossible",
    severity=Severity.ERROR,
    otherwise="no launch distributes experts over ranks",
    each=launches_with("expert_parallel_size", where=_may_share_experts),
)
def expert_ranks_impossible(question: LaunchQuestion) -> Verdict | None:
    """Expert parallelism is requested, but there are no experts, or its size does not divide the ranks.

    What it checks: The expert parallel size divides the ranks of a pipeline stage (and of a replica, if the
    configuration gives a replicate degree); with Megatron-LM, its product with the expert tensor parallel size does.
    Megatron-LM's own programs are given `--num-experts` together with `--expert-model-parallel-size`.

    Why it matters: The frameworks reject both when they create their groups, after all ranks have started.

    Example: `expert_parallel_degree = 3` on 8 GPUs; `--expert-model-parallel-size 4` for a model without experts.

    Fix: Use a size that divides the ranks, or 1 for a model without experts.

    Known limits: A model whose shape comes from a checkpoint or another file is not judged for its experts.
    """
    expert_claims = question.claims
    counts = numbers(job_value(expert_claims))
    if not counts or min(counts) < 2:
        return unknown(question.subject, f"{quoted(expert_claims[0])} may be 1", at=expert_claims[0])
    job, launch = question.of.job, question.of.launch
    if (verdict := _missing_experts_verdict(job, launch, expert_claims[0])) is not None:
        return verdict
    return _expert_ranks_verdict(job, launch, expert_claims[0], counts)


def _missing_experts_verdict(job: Job, launch: Launch, expert_claim: Claim) -> Verdict | None:
    """Return the verdict on a Megatron-LM program without `--num-experts`; None for other programs."""
    if expert_claim.source != "arguments" or not is_megatron(launch) or job.about("num_experts", launch.scope):
        return None
    words = launch.arguments
    if any(word is None or word.partition("=")[0] in _SHAPE_ELSEWHERE for word in words):
        return unknown(launch.id, "the number of experts may be set elsewhere", at=expert_claim)
    return failed(
        launch.id,
        f"{quoted(expert_claim)} distributes experts over ranks, but the command has no `--num-experts`: Megatron-LM "
        "refuses expert parallelism for a model without experts.",
        at=expert_claim,
        also=((launch, "started here"),),
        remedy="Add `--num-experts`, or remove the option.",
    )


def _expert_ranks_verdict(job: Job, launch: Launch, expert_claim: Claim, counts: tuple[int, ...]) -> Verdict:
    world = job.setting("world_size", launch.scope)
    ranks = numbers(job_value(world)) if world else ()
    if len(ranks) != 1 or ranks[0] < 1 or undecided(launch.id, world) is not None:
        return unknown(launch.id, "the number of ranks is unknown", at=expert_claim)
    tensor = _expert_tensor_size(job, launch) if is_megatron(launch) else 1
    if tensor is None:
        return unknown(launch.id, "the expert tensor parallel size is unknown", at=expert_claim)
    group = ranks[0]
    dividing_claims: list[Claim] = []
    for quantity in _SIZES_BESIDE_EXPERTS:
        claims = job.setting(quantity, launch.scope)
        sizes = numbers(job_value(claims)) if claims else (1,)
        if len(sizes) != 1 or sizes[0] < 1 or group % sizes[0]:
            return unknown(launch.id, "the number of ranks that could share the experts is unknown", at=expert_claim)
        group //= sizes[0]
        dividing_claims += [claim for claim in claims if sizes[0] > 1]
    products = [count * tensor for count in counts]
    if all(group % product for product in products):
        tensor_text = f" with an expert tensor parallel size of {tensor}" if tensor > 1 else ""
        return failed(
            launch.id,
            f"{quoted(expert_claim)}{tensor_text} does not divide the {group} ranks that could share the experts.",
            at=expert_claim,
            also=((world[0], f"{ranks[0]} ranks"), *((claim, "divides the ranks") for claim in dividing_claims)),
            remedy=f"Use {'sizes whose product' if tensor > 1 else 'a size that'} divides {group}.",
            severity=Severity.WARNING if products[0] % group == 0 and gives_one_node(job, launch) else None,
        )
    return passed(launch.id)


def _expert_tensor_size(job: Job, launch: Launch) -> int | None:
    """Return the value of the option --expert-tensor-parallel-size, or else the tensor parallel size; None if
    unknown.
    """
    if any((word or "").partition("=")[0] == _EXPERT_TENSOR for word in launch.arguments):
        return _option_number(launch, _EXPERT_TENSOR)
    sizes = job.setting("tensor_parallel_size", launch.scope)
    size = known_number(job_value(sizes)) if sizes else 1
    return size if size is not None and size > 0 else None


def _option_number(launch: Launch, name: str) -> int | None:
    """Return the whole number that an option sets; None if the option is missing or its value unknown."""
    for index, word in enumerate(launch.arguments):
        option, equals, value = (word or "").partition("=")
        if option == name:
            following = launch.arguments[index + 1] if index + 1 < len(launch.arguments) else None
            text = value if equals else following or ""
            return int(text) if text.isdigit() and len(text) < 9 else None
    return None


@rule("BAT024", "hugectr-batch-not-for-gpus", severity=Severity.ERROR, otherwise="no script creates a HugeCTR solver")
def hugectr_batch_not_for_gpus(job: Job) -> Iterator[Verdict]:
    """The batch size of a HugeCTR solver is not a multiple of its number of GPUs.

    What it checks: `batchsize` of `CreateSolver` is a multiple of the number of GPUs in `vvgpu`.

    Why it matters: Each GPU gets an equal share of the batch; the solver stops if the batch does not divide evenly.

    Example: `CreateSolver(batchsize=1000, vvgpu=[[0, 1, 2]])`.

    Fix: Round the batch size to a multiple of the number of GPUs.

    Known limits: Solvers on several nodes are not judged, because the nodes may have different numbers of GPUs.
    """
    for batch in job.about("train_batch_size"):
        if batch.source != "hugectr":
            continue
        claims_by_quantity = {
            quantity: [c for c in job.about(quantity) if c.source == "hugectr" and c.span.path == batch.span.path]
            for quantity in ("gpus_per_node", "world_size")
        }
        gpus, nodes = claims_by_quantity["gpus_per_node"], claims_by_quantity["world_size"]
        if len(gpus) != 1 or len(nodes) != 1:
            continue
        sizes = [numbers(claim.value) for claim in (batch, gpus[0], nodes[0])]
        verdict = undecided(batch.span.path, (batch, gpus[0]))
        if verdict is None and (any(len(counts) != 1 for counts in sizes) or not sizes[1][0] or sizes[2] != (1,)):
            verdict = unknown(batch.span.path, "not all of the solver's GPUs are known", at=gpus[0])
        elif verdict is None and sizes[0][0] % sizes[1][0]:
            verdict = failed(
                batch.span.path,
                f"{quoted(batch)} is not a multiple of the {sizes[1][0]} GPUs of {placed(gpus[0])}: HugeCTR gives "
                "each GPU an equal share of the batch.",
                at=batch,
                also=((gpus[0], "the GPUs"),),
                remedy=f"Use a batch size that is a multiple of {sizes[1][0]}.",
            )
        yield verdict or passed(batch.span.path)


# Frameworks configured by a file, NeMo among them: parallel degrees, batch and sequence compared with the ranks that
# are started.


class Degrees(NamedTuple):
    """The quantities into which a framework divides its ranks.

    The product of `parts` is the number of ranks; a missing part counts as 1. `computed` is the part that the framework
    computes if it is missing; empty if all parts are required.
    """

    parts: tuple[str, ...]
    computed: str


_DEGREES_BY_FRAMEWORK = {
    "torchtitan": Degrees(("replicate_degree", "shard_degree", *_PARALLEL_SIZES), "shard_degree"),
    "nanotron": Degrees(("data_parallel_size", *_PARALLEL_SIZES, "expert_parallel_size"), ""),
    "paddlefleetx": Degrees(
        ("data_parallel_size", "sharding_degree", "tensor_parallel_size", "pipeline_parallel_size"),
        "data_parallel_size",
    ),
    "automodel": Degrees(("data_parallel_size", *_PARALLEL_SIZES), "data_parallel_size"),
    "veomni": Degrees(("data_parallel_size", "context_parallel_size"), "data_parallel_size"),
    # In newer versions, the ranks that share a sequence are a part of the sharding ranks.
    "trainer": Degrees(
        ("data_parallel_size", "sharding_degree", "tensor_parallel_size", "pipeline_parallel_size"),
        "data_parallel_size",
    ),
    "megatron-bridge": Degrees(("data_parallel_size", *_PARALLEL_SIZES), "data_parallel_size"),
}
#: Frameworks that divide a global batch into micro batches for all replicas and reject a remainder.
_BATCH_DIVIDING_FRAMEWORKS = ("torchtitan", "megatron-bridge", "automodel", "veomni")


class FrameworkRun(NamedTuple):
    """A launch of a framework, with its ranks and the degrees that its configuration gives.

    `open` is whether the framework computes one of the degrees.
    """

    setup: Setup
    degrees: Degrees
    ranks: tuple[int, ...]
    started: tuple[Claim, ...]
    claims: tuple[Claim, ...]
    product: int | None
    open: bool

    def undecided(self, *claims: Claim) -> Verdict | None:
        """Return the verdict if this run cannot be judged; None if everything is known."""
        given = (c for c in self.claims if c.quantity != self.degrees.computed)
        if verdict := undecided(self.setup.subject, (*claims, *given, *self.started), self.setup.launch):
            return verdict
        launch = self.setup.launch
        if self.setup.may_have_more_options and launch is not None:
            return unknown(self.setup.subject, "an unresolved argument may change the parallel degrees", at=launch)
        if len(self.ranks) != 1 or self.product is None:
            return unknown(self.setup.subject, "the number of ranks is unknown", at=self.claims[0])
        return None


def _runs(job: Job) -> Iterator[FrameworkRun]:
    for subject, scope, launch in subjects(job):
        for source, degrees in _DEGREES_BY_FRAMEWORK.items() if launch is not None else ():
            setup = Setup(job, subject, scope, launch, source)
            claims = tuple(c for name in degrees.parts for c in setup.claims(name))
            if not (claims and _are_of_framework(setup, claims)):
                continue
            sizes = [setup.number(name) for name in degrees.parts if setup.claims(name) and name != degrees.computed]
            computed = setup.number(degrees.computed) if degrees.computed else None
            product = None if None in sizes else math.prod(size for size in sizes if size is not None)
            ranks, started = ranks_started(job, scope)
            if product is not None and computed is not None:
                product *= computed
            is_open = bool(degrees.computed) and computed is None
            yield FrameworkRun(setup, degrees, numbers(ranks), started, claims, product, is_open)


def _are_of_framework(setup: Setup, claims: tuple[Claim, ...]) -> bool:
    """Return whether the degrees belong to the setup's framework. Of the trainers, only Paddle's has such degrees."""
    if setup.source == "trainer":
        return setup.launch is not None and setup.launch.launcher.startswith("paddle")
    return any(claim.source == setup.source for claim in claims)


def _reads_nnodes_variable(run: FrameworkRun, nodes: Claim) -> bool:
    """Return whether Paddle's launcher reads the number of nodes from PADDLE_NNODES, whose default is 1."""
    launch = run.setup.launch
    return launch is not None and launch.launcher.startswith("paddle") and nodes.strength is Strength.DEFAULT


@rule(
    "PAR020",
    "parallel-degrees-unlike-ranks",
    severity=Severity.ERROR,
    otherwise="no launch names a configuration with parallel degrees",
)
def parallel_degrees_unlike_ranks(job: Job) -> Iterator[Verdict]:
    """The product of a configuration's parallel degrees is not the number of ranks that are started.

    What it checks: For a launch that names a configuration of torchtitan, nanotron, PaddleFleetX, Megatron-Bridge,
    Automodel or VeOmni, or has the arguments of PaddleNLP's trainer: the product of all degrees is the number of ranks.
    If the framework computes one degree, the product of the others divides the ranks.

    Why it matters: Every rank compares the product with the world size when it creates its groups, and stops.

    Example: `torchrun --nproc_per_node=8` with `dp: 4`, `tp: 4` and `pp: 1` of nanotron.

    Fix: Change a degree, or start as many ranks as the product of the degrees.

    Known limits: If only one node is started and more nodes would make the degrees fit, the finding is a warning: such
    scripts are published with placeholder numbers. With Paddle's launcher and no `--nnodes`, nothing is reported in
    this case: the cluster sets PADDLE_NNODES for a script that is started on each node.
    """
    for run in _runs(job):
        verdict = run.undecided()
        if verdict is not None:
            yield verdict
            continue
        count, product = run.ranks[0], run.product or 1
        if count == product or (run.open and count % product == 0):
            yield passed(run.setup.subject)
            continue
        claims = tuple(c for c in run.claims if not (run.open and c.quantity == run.degrees.computed))
        nodes = job.requirement_claims("nodes", run.setup.scope) or job.setting("nodes", run.setup.scope)
        is_single_node = bool(nodes) and certainly_one(job_value(nodes)) and product % count == 0
        if is_single_node and _reads_nnodes_variable(run, nodes[0]):
            why = f"the number of nodes comes from PADDLE_NNODES; the degrees need {product // count}"
            yield unknown(run.setup.subject, why, at=claims[0])
            continue
        fault = f"do not divide {counted(count, 'rank')}" if run.open else f"make {product}, not {count}"
        yield failed(
            run.setup.subject,
            f"{counted(count, 'rank')} are started, but the degrees {' x '.join(quoted(c) for c in claims)} {fault}.",
            at=claims[0],
            also=(*((c, "degree") for c in claims[1:]), *((c, "ranks") for c in distinct(run.started))),
            remedy=f"Choose degrees that fit {counted(count, 'rank')}, or start "
            + (f"a multiple of {product} ranks." if run.open else f"{counted(product, 'rank')}."),
            severity=Severity.WARNING if is_single_node else None,
        )


@rule(
    "BAT022",
    "configured-batch-not-divisible",
    severity=Severity.ERROR,
    otherwise="no launch names a configuration with a global and a micro batch size",
)
def configured_batch_not_divisible(job: Job) -> Iterator[Verdict]:
    """The global batch of a framework's configuration cannot be divided into micro batches for all replicas.

    What it checks: For a launch that names a configuration of torchtitan, Megatron-Bridge, Automodel or VeOmni: micro
    batch x replicas divides the global batch, where replicas are ranks divided by tensor, pipeline and context parallel
    sizes.

    Why it matters: The framework stops in every rank, once all of them have started.

    Example: `global_batch_size = 20` and `local_batch_size = 8` on 8 ranks.

    Fix: Use a global batch that is a multiple of micro batch x replicas.

    Known limits: A batch size that only the recipe sets is unknown.
    """
    for run in _runs(job):
        setup = run.setup
        total, micro = setup.claims("train_batch_size"), setup.claims("micro_batch_size_per_gpu")
        if setup.source not in _BATCH_DIVIDING_FRAMEWORKS or not total or not micro:
            continue
        verdict = run.undecided(*micro)
        batch, micro_batch = setup.number("train_batch_size"), setup.number("micro_batch_size_per_gpu")
        model_ranks = math.prod(setup.number(name) or 1 for name in _PARALLEL_SIZES)
        if verdict is not None:
            yield verdict
        elif batch is None or micro_batch is None or run.ranks[0] % model_ranks:
            # A batch that the framework computes fits. PAR020 reports degrees that do not fit the ranks.
            yield passed(setup.subject)
        elif batch % (unit := micro_batch * (run.ranks[0] // model_ranks)):
            yield failed(
                setup.subject,
                f"{quoted(total[0])} is not a multiple of {placed(micro[0])} x"
                f" {counted(run.ranks[0] // model_ranks, 'replica')} = {unit}.",
                at=total[0],
                also=(
                    (micro[0], "micro batch"),
                    *((c, "determines the number of replicas") for c in distinct(run.started)),
                ),
                remedy=f"Use a global batch size that is a multiple of {unit}, such as {-(-batch // unit) * unit}.",
            )
        else:
            yield passed(setup.subject)


@rule(
    "PAR021",
    "sequence-not-divisible-by-its-parts",
    severity=Severity.ERROR,
    otherwise="no launch sets both a sequence length and a number of ranks that share it",
)
def sequence_not_divisible_by_its_parts(job: Job) -> Iterator[Verdict]:
    """The sequence cannot be split into two equal pieces for each rank that shares it.

    What it checks: 2 x context parallel size divides the sequence length, for Megatron-LM's options and for
    configurations of Megatron-Bridge and torchtitan; in torchtitan, tensor x 2 x context parallel size does.

    Why it matters: Causal attention gives each rank a piece from the front and one from the back. An assertion in the
    framework fails in every rank.

    Example: `seq_len = 4100` with `context_parallel_degree = 4`.

    Fix: Use a sequence length that is a multiple, or fewer ranks per sequence.

    Known limits: A length that only the recipe sets is unknown.
    """
    for subject, scope, launch in subjects(job):
        for source in ("arguments", "megatron-bridge", "torchtitan"):
            setup = Setup(job, subject, scope, launch, source)
            length, context = setup.claims("sequence_length"), setup.claims("context_parallel_size")
            tensor = setup.claims("tensor_parallel_size") if source == "torchtitan" else ()
            parts = (*context, *tensor)
            if not length or not parts or not any(c.source == source for c in (*length, *parts)):
                continue
            if source == "arguments" and (launch is None or not is_megatron(launch)):
                continue
            # A degree that the framework computes is at least 1.
            sizes = [numbers(job_value(claims)) for claims in (context, tensor) if claims]
            if undecided_verdict := undecided(subject, (*length, *parts), launch):
                yield undecided_verdict
                continue
            if setup.may_have_more_options and launch is not None:
                yield unknown(
                    subject, "an unresolved argument may change the sequence length or its divisors", at=launch
                )
                continue
            product = math.prod(min(size) for size in sizes if size)
            if product < 1:
                yield unknown(subject, "a degree is below 1", at=parts[0])
                continue
            unit = product * (1 if product == 1 else 2)
            sequence = setup.number("sequence_length")
            if sequence is not None and all(len(size) == 1 for size in sizes) and sequence % unit:
                yield failed(
                    subject,
                    f"{quoted(length[0])} is not a multiple of 2 x {' x '.join(placed(c) for c in parts)} = {unit}.",
                    at=length[0],
                    also=tuple((c, "splits it") for c in parts),
                    remedy=f"Use a length that is a multiple of {unit}, such as {-(-sequence // unit) * unit}.",
                )
            else:
                yield passed(subject)


def _trainer_world(setup: Setup) -> tuple[int | None, tuple[Claim, ...]]:
    """Return devices x nodes of a trainer (None if unknown), and the claims."""
    nodes = tuple(c for c in setup.job.requirement_claims("nodes", setup.scope) if c.source == setup.source)
    devices = tuple(
        c for c in setup.job.requirement_claims("processes_per_node", setup.scope) if c.source == setup.source
    )
    node_counts, device_counts = (
        numbers(job_value(nodes)) if nodes else (1,),
        numbers(job_value(devices)) if devices else (),
    )
    claims = (*devices, *nodes)
    return (node_counts[0] * device_counts[0] if len(node_counts) == len(device_counts) == 1 else None), claims


def _trainers(job: Job) -> Iterator[tuple[Setup, int | None, tuple[Claim, ...], tuple[Claim, ...], int]]:
    """Yield each configuration with a trainer: the setup, its ranks (None if unknown) and their claims, the claims
    about parallel sizes, and the product of these sizes.
    """
    for setup in setups(job):
        if setup.source != "lightning":
            continue
        ranks, rank_claims = _trainer_world(setup)
        parts = tuple(c for name in _PARALLEL_SIZES for c in setup.claims(name))
        product = math.prod(setup.number(name) or 1 for name in _PARALLEL_SIZES)
        if rank_claims and parts:
            yield setup, ranks, rank_claims, parts, product


@rule(
    "PAR013",
    "trainer-ranks-not-divisible",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no configuration sets both devices and parallel sizes",
)
def trainer_ranks_not_divisible(job: Job) -> Iterator[Verdict]:
    """The devices of a trainer cannot be divided evenly into replicas of the model.

    What it checks: In a NeMo configuration: tensor x pipeline x context parallel size divides devices x num_nodes.

    Why it matters: NeMo stops when it creates the groups of ranks, after all of them have started.

    Example: `devices: 8`, `num_nodes: 1` and `tensor_model_parallel_size: 3`.

    Fix: Choose sizes whose product divides the devices.

    Known limits: Such files are templates whose numbers are overridden on the command line, so this is a warning, or
    informational if only ranks are missing.
    """
    for setup, ranks, rank_claims, parts, product in _trainers(job):
        verdict = undecided(setup.subject, (*rank_claims, *parts), setup.launch)
        if verdict is None and ranks is not None and ranks % product:
            verdict = failed(
                setup.subject,
                f"{counted(ranks, 'rank')} ({', '.join(quoted(c) for c in rank_claims)}) cannot be divided by "
                f"{product} ({' x '.join(quoted(c) for c in parts)}).",
                at=parts[0],
                also=tuple((c, "ranks") for c in rank_claims),
                remedy=f"Choose sizes whose product divides {ranks}, or a multiple of {product} ranks.",
                # More devices or nodes on the command line would make the sizes fit.
                severity=Severity.INFO if product % ranks == 0 else None,
            )
        yield verdict or passed(setup.subject)


@rule(
    "BAT020",
    "trainer-global-batch-not-divisible",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no configuration sets both devices and batch sizes",
)
def trainer_global_batch_not_divisible(job: Job) -> Iterator[Verdict]:
    """The global batch of a configuration cannot be divided into micro batches for all replicas.

    What it checks: In a NeMo configuration: micro_batch_size x replicas divides global_batch_size, where replicas are
    devices x num_nodes divided by tensor, pipeline and context parallel sizes.

    Why it matters: NeMo stops before the first step.

    Example: `global_batch_size: 10`, `micro_batch_size: 4` on 2 devices.

    Fix: A global batch that is a multiple of micro batch x replicas.

    Known limits: The numbers may be overridden on the command line.
    """
    for setup, ranks, rank_claims, parts, product in _trainers(job):
        total, micro = setup.claims("train_batch_size"), setup.claims("micro_batch_size_per_gpu")
        if not total or not micro:
            continue
        verdict = undecided(setup.subject, (*total, *micro, *rank_claims, *parts), setup.launch)
        batch, micro_batch = setup.number("train_batch_size"), setup.number("micro_batch_size_per_gpu")
        if (
            verdict is None
            and batch
            and micro_batch
            and ranks
            and ranks % product == 0
            and batch % (micro_batch * (ranks // product))
        ):
            unit = micro_batch * (ranks // product)
            verdict = failed(
                setup.subject,
                f"{quoted(total[0])} is not a multiple of {placed(micro[0])} x {ranks // product} replicas = {unit}.",
                at=total[0],
                also=(
                    (micro[0], "micro batch"),
                    *((c, "determines the number of replicas") for c in (*rank_claims, *parts)),
                ),
                remedy=f"Use a global batch size that is a multiple of {unit}, such as {-(-batch // unit) * unit}.",
            )
        yield verdict or passed(setup.subject)
