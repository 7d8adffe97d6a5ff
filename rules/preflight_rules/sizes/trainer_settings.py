"""Settings that Hugging Face's trainer gets from two places, and arguments that it, or llamafactory-cli, rejects or
ignores.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Known, Launch, Relation, Scope, Unresolved, is_whole_number, strongest
from preflight.model.job.claim import distinct, job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, make_fix, passed, replace_text, rule, undecided, unknown
from preflight.plugins.claim_text import placed, quoted
from preflight.plugins.questions import (
    LaunchQuestion,
    SubjectQuestion,
    launches_with,
    required,
    subjects,
    subjects_with,
)
from preflight.sources.tables import load_table
from preflight_rules.launches import certainly_several
from preflight_rules.rendezvous.variables import closest
from preflight_rules.settings.given import given, is_compared
from preflight_rules.sizes.batch import configured, data_parallel_ranks, given_to_trainer, uses_hugging_face

_TRAINER = ("arguments", "trainer", "python", "dataclass")
#: What the trainer compares with DeepSpeed's configuration beside batch sizes (transformers/integrations/deepspeed.py,
#: `trainer_config_process`, 5.23), the trainer's name and the configuration's.
_COMPARED = {
    "learning_rate": ("learning_rate", "the learning rate of optimizer or scheduler"),
    "weight_decay": ("weight_decay", "optimizer.params.weight_decay"),
    "gradient_clipping": ("max_grad_norm", "gradient_clipping"),
    "warmup_steps": ("warmup_steps", "scheduler.params.warmup_num_steps"),
}


def trainer_claims(job: Job, quantity: str, scope: Scope) -> tuple[Claim, ...]:
    """The trainer's claims from arguments, a file or the script, without defaults of the script's options."""
    return strongest(
        claim
        for claim in job.about(quantity, scope)
        if claim.source in _TRAINER
        and claim.relation is Relation.SETS
        and not (claim.source == "python" and claim.spelling.startswith("--"))
    )


def numbers_of(claims: tuple[Claim, ...]) -> tuple[float, ...]:
    """Every number that the claims may have; empty if one of them is not a number."""
    found: list[float] = []
    for claim in claims:
        for item in claim.alternatives:
            try:
                found.append(float(item))  # type: ignore[arg-type]
            except (TypeError, ValueError):
                return ()
    return tuple(found)


@rule(
    "HFT001",
    "trainer-setting-differs-from-deepspeed",
    severity=Severity.ERROR,
    otherwise="no setting is given both to a trainer and to DeepSpeed",
)
def trainer_setting_differs_from_deepspeed(job: Job) -> Iterator[Verdict]:
    """The trainer and the DeepSpeed configuration differ in learning rate, decay, warm-up or clipping.

    What it checks: learning_rate, weight_decay, warmup_steps and max_grad_norm of the trainer equal the values of the
    DeepSpeed configuration, where both are given and the configuration does not have "auto".

    Why it matters: Hugging Face's trainer compares them and stops with "Please correct the following DeepSpeed config
    values that mismatch TrainingArguments values". Other programs train with one and log the other.

    Example: `--learning_rate 5e-5` with `"optimizer": {"params": {"lr": 1e-4}}`.

    Fix: Write "auto" in the configuration, so that the argument is the only place.

    Known limits: For a program that is not known to be Hugging Face's trainer it is a warning. The trainer's own
    defaults are not compared, because the script may set others.
    """
    for subject, scope, launch in subjects(job):
        if is_compared(job, launch):
            yield passed(subject)
            continue
        for quantity, (ours_name, theirs_name) in _COMPARED.items():
            ours = trainer_claims(job, quantity, scope)
            theirs = strongest(c for c in job.about(quantity, scope) if c.source == "deepspeed")
            if not ours or not theirs:
                continue
            verdict = undecided(subject, (*ours, *theirs), launch)
            first, other = numbers_of(ours), numbers_of(theirs)
            if verdict is None and first and other and not set(first) & set(other):
                verdict = failed(
                    subject,
                    f"{quoted(ours[0])}, but {placed(theirs[0])} in DeepSpeed's configuration.",
                    at=ours[0],
                    also=((theirs[0], "DeepSpeed's value"),),
                    remedy=f'Write "auto" for {theirs_name} in {theirs[0].span.path}, or set it to {ours_name}.',
                    severity=None if uses_hugging_face(job, launch, scope) else Severity.WARNING,
                )
            yield verdict or passed(subject)


def _trainer_precision(job: Job, scope: Scope) -> tuple[Claim, ...]:
    return trainer_claims(job, "mixed_precision", scope)


def _accelerate_precision(job: Job, scope: Scope) -> tuple[Claim, ...]:
    return strongest(claim for claim in job.about("mixed_precision", scope) if claim.source == "accelerate")


@rule(
    "HFT006",
    "precision-differs-between-accelerate-and-trainer",
    severity=Severity.WARNING,
    otherwise="the precision is not given both to Accelerate and to a trainer",
    each=subjects_with(_trainer_precision, _accelerate_precision),
)
def precision_differs_between_accelerate_and_trainer(question: SubjectQuestion) -> Verdict | None:
    """Accelerate and the trainer are given different half precisions.

    What it checks: mixed_precision of `accelerate launch` and its configuration is not bf16 where the trainer, or the
    script's own `Accelerator(...)`, uses fp16, nor the other way round.

    Why it matters: The trainer's value wins, silently: fp16 with its loss scaling where bf16 was meant, or bf16 on a
    GPU that has none.

    Example: `accelerate launch --mixed_precision bf16 train.py --fp16`.

    Fix: Set it once, or the same in both places.

    Known limits: What the script itself decides is not seen. PRC001 reports a trainer that is given both fp16 and bf16.
    """
    trainer, outer = question.of
    inner, around = set(texts(job_value(trainer))), set(texts(job_value(outer)))
    if inner <= _HALF and around <= _HALF and inner and around and not inner & around:
        return failed(
            question.subject,
            f"{quoted(trainer[0])} sets the trainer to {min(inner)}, but {placed(outer[0])} sets the launcher to "
            f"{min(around)}; the trainer's value is used.",
            at=trainer[0],
            also=((outer[0], "Accelerate's"),),
            remedy="Set the precision once, or the same in both places.",
        )
    return None


_HALF = frozenset({"fp16", "bf16"})


@rule(
    "HFT008",
    "deepspeed-and-fsdp-together",
    severity=Severity.ERROR,
    otherwise="no trainer is configured for DeepSpeed or FSDP",
    each=subjects_with(lambda job, scope: strongest(job.about("sharding_library", scope))),
)
def deepspeed_and_fsdp_together(question: SubjectQuestion) -> Verdict | None:
    """The trainer is configured for both DeepSpeed and FSDP.

    What it checks: A file of training arguments, or a command line, gives deepspeed a configuration and fsdp its
    options.

    Why it matters: Hugging Face's trainer stops: "Using --fsdp xxx together with --deepspeed is not possible". So does
    axolotl.

    Example: `deepspeed: ds.json` and `fsdp: full_shard auto_wrap` in one file.

    Fix: Remove one of the two.

    Known limits: If one is in the file and the other on the command line, nothing is reported.
    """
    libraries = question.claims
    by_name = {text: claim for claim in libraries for text in texts(claim.value)}
    if len(by_name) > 1 and by_name["deepspeed"].span.path == by_name["fsdp"].span.path:
        return failed(
            question.subject,
            f"{quoted(by_name['fsdp'])} and {placed(by_name['deepspeed'])} are both given; the trainer accepts"
            f" only one.",
            at=by_name["fsdp"],
            also=((by_name["deepspeed"], "DeepSpeed"),),
            remedy="Remove one of the two.",
        )
    return None


#: Usual names of scripts' own options: samples of one rank, and accumulated steps.
_OF_ONE_RANK = re.compile(
    r"--(?:per[-_](?:device|gpu|replica|rank|card)[-_](?:train[-_])?batch[-_]?size"
    r"|(?:train[-_]|micro[-_])*batch[-_]?size[-_]per[-_](?:device|gpu|replica|rank|card))"
)
_ADDED_UP = re.compile(
    r"--(?:grad(?:ient)?s?[-_]acc(?:um(?:ulat(?:e|ion))?)?[-_]?(?:steps?|iters?|batches)?"
    r"|accum(?:ulat(?:e|ion))?[-_](?:grad(?:ient)?s?[-_])?(?:steps?|iters?|batches))"
)


@rule(
    "HFT002",
    "total-batch-differs-from-its-factors",
    severity=Severity.ERROR,
    profile="default",
    otherwise="no launch passes a total batch size to DeepSpeed and its factors to the trainer",
)
def total_batch_differs_from_its_factors(job: Job) -> Iterator[Verdict]:
    """DeepSpeed's train_batch_size does not equal the trainer's batch x accumulation x ranks.

    What it checks: If the DeepSpeed configuration gives train_batch_size alone, and the command line (or a file of
    arguments) gives the batch of one rank, accumulation steps, or both: the number equals batch of one rank x
    accumulation x ranks.

    Why it matters: DeepSpeed divides its number by the ranks and uses the result as the batch of each, whatever the
    trainer loads. Hugging Face's trainer compares the two and stops.

    Example: `"train_batch_size": 8` on 8 GPUs with `--batch-size-per-replica=2 --grad-acc-steps=8`, which is 128.

    Fix: Write `"train_batch_size": "auto"` for Hugging Face's trainer, otherwise the product.

    Known limits: A script's own options are recognised by their names, and then it is a warning. BAT001 and BAT003
    judge a configuration that also gives the factors.
    """
    for launch in job.launches:
        scope = launch.scope
        total = configured(job, "train_batch_size", scope)
        if not total or configured(job, "micro_batch_size_per_gpu", scope):
            continue
        if configured(job, "gradient_accumulation_steps", scope):
            continue
        micro = given_to_trainer(job, "micro_batch_size_per_gpu", scope)
        steps = given_to_trainer(job, "gradient_accumulation_steps", scope)
        own = {} if micro and steps else _script_factors(launch)
        factors = {
            "samples of one rank": (numbers(job_value(micro)) if micro else own.get("micro", ())),
            "accumulation steps": (numbers(job_value(steps)) if steps else own.get("steps", ())),
        }
        if not micro and not steps and not own:
            continue
        ranks, because = _ranks(job, launch, scope)
        if undecided_verdict := undecided(launch.id, (*total, *micro, *steps), launch):
            yield undecided_verdict
        elif len(ranks) != 1 or any(len(found) > 1 for found in factors.values()):
            yield unknown(launch.id, "cannot determine how many ranks share the batch", at=total[0])
        else:
            yield _judged(job, launch, total[0], (*micro, *steps, *because), factors, ranks[0], guessed=bool(own))


def _script_factors(launch: Launch) -> dict[str, tuple[int, ...]]:
    """The factors among the script's own options."""
    found: dict[str, tuple[int, ...]] = {}
    words = [*launch.arguments, None]
    for word, following in itertools.pairwise(words):
        name, equals, value = (word or "").partition("=")
        text = value if equals else (following or "")
        for kind, pattern in (("micro", _OF_ONE_RANK), ("steps", _ADDED_UP)):
            if pattern.fullmatch(name) and is_whole_number(text):
                found[kind] = (int(text),)
    return found


def _ranks(job: Job, launch: Launch, scope: Scope) -> tuple[tuple[int, ...], tuple[Claim, ...]]:
    """The data-parallel ranks; deepspeed with a number of GPUs and no hosts runs on one node."""
    ranks, because = data_parallel_ranks(job, scope)
    if isinstance(ranks, Unresolved) and launch.launcher == "deepspeed" and not job.about("nodes", scope):
        because = job.setting("processes_per_node", scope)
        ranks = job_value(because) if because else ranks
    return numbers(ranks), because


def _judged(
    job: Job,
    launch: Launch,
    total: Claim,
    claims: tuple[Claim, ...],
    factors: dict[str, tuple[int, ...]],
    ranks: int,
    *,
    guessed: bool,
) -> Verdict:
    known = {name: found[0] for name, found in factors.items() if found}
    product = ranks
    for factor in known.values():
        product *= factor
    (size, *_) = numbers(total.value) or (0,)
    both = len(known) == len(factors)
    if size == product or (not both and product > 0 and size % product == 0) or size < 1:
        return passed(launch.id)
    spelled = " x ".join(f"{count} {name}" for name, count in known.items())
    certain = both and not guessed and uses_hugging_face(job, launch, launch.scope)
    return failed(
        launch.id,
        f"{placed(total)} is the batch of all ranks, but {spelled} x {ranks} ranks"
        f" {'is' if both else 'is already'} {product}{'' if both else ', which does not divide it'}.",
        at=total,
        also=((launch, f"{spelled} x {ranks} ranks"), *((claim, "a factor") for claim in claims[:6])),
        remedy=f'Write "auto" for Hugging Face\'s trainer, else "train_batch_size": {product}.',
        severity=None if certain else Severity.WARNING,
        confidence=Confidence.MEDIUM if guessed else None,
    )


@rule(
    "HFT003",
    "llamafactory-rank-of-the-node-ignored",
    severity=Severity.WARNING,
    fix="unsafe",
    otherwise="the job does not start llamafactory-cli on several nodes",
    each=launches_with(required("nodes"), where=lambda stated: stated.launch.launcher == "llamafactory-cli"),
)
def llamafactory_rank_of_the_node_ignored(question: LaunchQuestion) -> Verdict | None:
    """llamafactory-cli is given RANK, but reads NODE_RANK.

    What it checks: A `llamafactory-cli train` over several nodes that sets RANK also sets NODE_RANK.

    Why it matters: Without NODE_RANK every node takes rank 0. Each starts a group of its own, prints "Initializing ...
    distributed tasks", and waits for the others until it times out.

    Example: `FORCE_TORCHRUN=1 NNODES=2 RANK=1 MASTER_ADDR=... llamafactory-cli train a.yaml`.

    Fix: Set NODE_RANK, counting from 0, each value once.

    Known limits: Versions before 0.9.2 looked for RANK; which version is installed is not known.
    """
    nodes = question.claims
    job, launch = question.of.job, question.of.launch
    ranks = job.setting("env.RANK", launch.scope)
    if ranks and certainly_several(job_value(nodes)) and not job.about("env.NODE_RANK", launch.scope):
        return failed(
            question.subject,
            f"{quoted(ranks[0])} is ignored: llamafactory-cli reads the rank of a node from NODE_RANK, which"
            " is not set, so every node is node 0.",
            at=ranks[0],
            also=((nodes[0], "several nodes"),),
            remedy="Set NODE_RANK instead, starting at 0 and different on each node.",
            fix=make_fix("set NODE_RANK", replace_text(ranks[0], "RANK", "NODE_RANK"), safe=False),
        )
    return None


_MIN_LENGTH = 8


_LONG = 12


@rule(
    "HFT004",
    "trainer-argument-misspelt",
    severity=Severity.WARNING,
    fix="unsafe",
    confidence=Confidence.MEDIUM,
    otherwise="no file with training arguments",
)
def trainer_argument_misspelt(job: Job) -> Iterator[Verdict]:
    """A file of training arguments contains a misspelt argument.

    What it checks: Keys of files for Hugging Face's trainer (LLaMA-Factory, TRL and the like) that are not its
    arguments but almost the same as one.

    Why it matters: The trainer's parser rejects a key that it does not know; where a script ignores unknown keys, the
    default stays in force.

    Example: `gradient_acumulation_steps: 8`.

    Fix: Write the argument as the trainer spells it.

    Known limits: A script's own arguments that resemble none of the trainer's are left alone, and so are those that
    only an older or newer version has.
    """
    # CFG003 judges what nothing but TrainingArguments is parsed from.
    strict = {
        claim.span.path
        for place in given(job, "transformers")
        if place.parser is not None and place.parser.alternatives == (True,)
        for claim in place.keys.values()
    }
    for claim in distinct(job.about("trainer_argument")):
        if claim.span.path in strict:
            continue
        (name,) = texts(claim.value) or ("",)
        if isinstance(claim.value, Unresolved):
            yield unknown(claim.span.path, f"{quoted(claim)}: {claim.value.why}", at=claim)
            continue
        if not _is_hugging_face_file(job, claim):
            continue
        near = "" if name in load_table("training_arguments").names() else _similar_argument(name)
        if near:
            yield failed(
                claim.span.path,
                f"{quoted(claim)} is not an argument of the trainer; {near} is probably meant.",
                at=claim,
                remedy=f"Write {near}.",
                fix=make_fix(f"rename {name} to {near}", replace_text(claim, name, near), safe=False),
            )
        else:
            yield passed(claim.span.path)


def _is_hugging_face_file(job: Job, key: Claim) -> bool:
    return any(
        "transformers" in claim.alternatives and claim.source == "trainer" and claim.span.path == key.span.path
        for claim in job.about("training_framework")
    )


def _similar_argument(name: str) -> str:
    if len(name) < _MIN_LENGTH:
        return ""
    return closest(name, load_table("training_arguments").names(), 2 if len(name) >= _LONG else 1)


@rule(
    "HFT005",
    "best-model-needs-equal-strategies",
    severity=Severity.ERROR,
    profile="default",
    otherwise="no trainer loads its best checkpoint",
)
def best_model_needs_equal_strategies(job: Job) -> Iterator[Verdict]:
    """The trainer loads the best checkpoint at the end, but its save and evaluation settings differ.

    What it checks: With load_best_model_at_end, save_strategy and eval_strategy are the same (or save_strategy is
    `best`), and with `steps` save_steps is a multiple of eval_steps.

    Why it matters: Otherwise the trainer refuses to start, after the job has been queued and the model has been loaded.

    Example: `load_best_model_at_end: true` with `save_strategy: epoch` and no eval_strategy (whose default is `no`).

    Fix: Give both the same strategy, and save at a multiple of the steps between evaluations.

    Known limits: Only where load_best_model_at_end and a strategy are in a file of arguments or on one command line;
    axolotl and scripts set further defaults. On a command line alone it is a warning for that reason, unless the
    program parses it with HfArgumentParser.
    """
    for subject, scope, launch in subjects(job):
        best = trainer_claims(job, "load_best_model", scope)
        saving, evaluating = (trainer_claims(job, f"{name}_strategy", scope) for name in ("save", "eval"))
        # Only `TrainingArguments` has that argument in a script.
        known = uses_hugging_face(job, launch, scope) or any(claim.source in ("python", "dataclass") for claim in best)
        if not best or not (saving or evaluating) or not known:
            continue
        if undecided_verdict := undecided(subject, (*best, *saving, *evaluating), launch):
            yield undecided_verdict
            continue
        save = (texts(job_value(saving)) or ("",)) if saving else ("steps",)
        check = (texts(job_value(evaluating)) or ("",)) if evaluating else ("no",)
        if best[0].value != Known(True) or save == ("best",) or (set(save) & set(check) and save != ("steps",)):
            yield passed(subject)
        elif not set(save) & set(check):
            strategy = quoted(saving[0]) if saving else "save_strategy is `steps` by default"
            other = quoted(evaluating[0]) if evaluating else "eval_strategy is `no` by default"
            yield failed(
                subject,
                f"{quoted(best[0])} needs the same strategy for saving and evaluating, but {strategy} and {other}: the"
                " trainer refuses to start.",
                at=best[0],
                also=tuple((claim, "its strategy") for claim in (*saving[:1], *evaluating[:1])),
                remedy="Give save_strategy and eval_strategy the same value.",
                severity=_severity(job, best[0], launch),
            )
        else:
            yield _steps(job, subject, scope, launch, best[0])


def _severity(job: Job, best: Claim, launch: Launch | None) -> Severity | None:
    if launch is None:
        return Severity.WARNING
    parsed = any(place.launch is launch and place.parser is not None for place in given(job, "transformers"))
    return Severity.WARNING if best.source == "arguments" and not parsed else None


def _steps(job: Job, subject: str, scope: Scope, launch: Launch | None, best: Claim) -> Verdict:
    saved, checked = (trainer_claims(job, f"{name}_steps", scope) for name in ("save", "eval"))
    every, each = numbers_of(saved), numbers_of(checked)
    if undecided_verdict := undecided(subject, (*saved, *checked), launch):
        return undecided_verdict
    if not saved or not checked or len(every) != 1 or len(each) != 1 or each[0] < 1 or every[0] < 1:
        return passed(subject)
    if every[0] % each[0] == 0:
        return passed(subject)
    return failed(
        subject,
        f"{quoted(best)} needs a checkpoint at evaluations only, but {quoted(saved[0])} is not a multiple of"
        f" {quoted(checked[0])}: the trainer refuses to start.",
        at=saved[0],
        also=((checked[0], "evaluates"), (best, "needs both together")),
        remedy=f"Give save_steps a multiple of {each[0]:g}.",
        severity=_severity(job, best, launch),
    )
