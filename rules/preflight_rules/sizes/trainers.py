"""Settings of trainers: Hugging Face's, llamafactory-cli's and Lightning's."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Known, Launch, Relation, Scope, Unresolved, is_whole_number, strongest
from preflight.model.job.claim import distinct, job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import (
    Verdict,
    failed,
    make_fix,
    not_applicable,
    passed,
    replace_text,
    rule,
    undecided,
    unknown,
)
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
from preflight_rules.settings.places import compares_with_deepspeed, place_settings
from preflight_rules.sizes.deepspeed import configured, data_parallel_ranks, given_to_trainer, uses_hugging_face

_TRAINER_SOURCES = ("arguments", "trainer", "python", "dataclass")
#: Values besides batch sizes that the trainer compares with DeepSpeed's configuration, with the trainer's name and the
#: configuration's name (transformers/integrations/deepspeed.py, `trainer_config_process`, 5.23).
_COMPARED_QUANTITIES = {
    "learning_rate": ("learning_rate", "the learning rate of the optimizer or scheduler"),
    "weight_decay": ("weight_decay", "optimizer.params.weight_decay"),
    "gradient_clipping": ("max_grad_norm", "gradient_clipping"),
    "warmup_steps": ("warmup_steps", "scheduler.params.warmup_num_steps"),
}


def trainer_claims(job: Job, quantity: str, scope: Scope) -> tuple[Claim, ...]:
    """Return the trainer's claims from arguments, a file or the script, without the defaults of script options."""
    return strongest(
        claim
        for claim in job.about(quantity, scope)
        if claim.source in _TRAINER_SOURCES
        and claim.relation is Relation.SETS
        and not (claim.source == "python" and claim.spelling.startswith("--"))
    )


def numbers_of(claims: tuple[Claim, ...]) -> tuple[float, ...]:
    """Return every number that the claims may have; empty if a claim may have a value that is not a number."""
    values: list[float] = []
    for claim in claims:
        for item in claim.alternatives:
            try:
                values.append(float(item))  # type: ignore[arg-type]
            except (TypeError, ValueError):
                return ()
    return tuple(values)


@rule(
    "HFT001",
    "trainer-setting-differs-from-deepspeed",
    severity=Severity.ERROR,
    otherwise="no setting is set both for a trainer and for DeepSpeed",
)
def trainer_setting_differs_from_deepspeed(job: Job) -> Iterator[Verdict]:
    """The trainer and the DeepSpeed configuration differ in learning rate, decay, warm-up or clipping.

    What it checks: learning_rate, weight_decay, warmup_steps and max_grad_norm of the trainer equal the values in the
    DeepSpeed configuration, if both are given and the configuration does not have "auto".

    Why it matters: Hugging Face's trainer compares them and stops with "Please correct the following DeepSpeed config
    values that mismatch TrainingArguments values". Other programs train with one and log the other.

    Example: `--learning_rate 5e-5` with `"optimizer": {"params": {"lr": 1e-4}}`.

    Fix: Write "auto" in the configuration, so that only the argument sets the value.

    Known limits: For a program that is not known to be Hugging Face's trainer the finding is a warning. The trainer's
    own defaults are not compared, because the script may set other values.
    """
    for subject, scope, launch in subjects(job):
        if compares_with_deepspeed(job, launch):
            yield passed(subject)
            continue
        for quantity, (trainer_name, deepspeed_name) in _COMPARED_QUANTITIES.items():
            trainer_values = trainer_claims(job, quantity, scope)
            deepspeed_values = strongest(c for c in job.about(quantity, scope) if c.source == "deepspeed")
            if not trainer_values or not deepspeed_values:
                continue
            verdict = undecided(subject, (*trainer_values, *deepspeed_values), launch)
            values, other_values = numbers_of(trainer_values), numbers_of(deepspeed_values)
            if verdict is None and values and other_values and not set(values) & set(other_values):
                verdict = failed(
                    subject,
                    f"{quoted(trainer_values[0])}, but {placed(deepspeed_values[0])} in DeepSpeed's configuration.",
                    at=trainer_values[0],
                    also=((deepspeed_values[0], "DeepSpeed's value"),),
                    remedy=f'Write "auto" for {deepspeed_name} in {deepspeed_values[0].span.path}, or set it to'
                    f" {trainer_name}.",
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
    otherwise="the precision is not set both for Accelerate and for a trainer",
    each=subjects_with(_trainer_precision, _accelerate_precision),
)
def precision_differs_between_accelerate_and_trainer(question: SubjectQuestion) -> Verdict | None:
    """Accelerate and the trainer are given different half precisions.

    What it checks: mixed_precision of `accelerate launch` and its configuration is not bf16 if the trainer, or the
    script's own `Accelerator(...)`, uses fp16, or vice versa.

    Why it matters: The trainer's value wins silently: fp16 with its loss scaling instead of bf16, or bf16 on a GPU that
    does not support it.

    Example: `accelerate launch --mixed_precision bf16 train.py --fp16`.

    Fix: Set the precision once, or to the same value in both places.

    Known limits: A precision that the script itself chooses is not seen. PRC001 reports a trainer that is given both
    fp16 and bf16.
    """
    trainer, outer = question.of
    precisions, outer_precisions = set(texts(job_value(trainer))), set(texts(job_value(outer)))
    if (
        precisions <= _HALF_PRECISIONS
        and outer_precisions <= _HALF_PRECISIONS
        and precisions
        and outer_precisions
        and not precisions & outer_precisions
    ):
        return failed(
            question.subject,
            f"{quoted(trainer[0])} sets the trainer to {min(precisions)}, but {placed(outer[0])} sets the launcher to "
            f"{min(outer_precisions)}; the trainer's value is used.",
            at=trainer[0],
            also=((outer[0], "Accelerate's"),),
            remedy="Set the precision in one place, or to the same value in both.",
        )
    return None


_HALF_PRECISIONS = frozenset({"fp16", "bf16"})


@rule(
    "HFT008",
    "deepspeed-and-fsdp-together",
    severity=Severity.ERROR,
    otherwise="no trainer is configured for DeepSpeed or FSDP",
    each=subjects_with(lambda job, scope: strongest(job.about("sharding_library", scope))),
)
def deepspeed_and_fsdp_together(question: SubjectQuestion) -> Verdict | None:
    """The trainer is configured for both DeepSpeed and FSDP.

    What it checks: A file of training arguments, or a command line, does not set both `deepspeed` and `fsdp`.

    Why it matters: Hugging Face's trainer stops: "Using --fsdp xxx together with --deepspeed is not possible". So does
    axolotl.

    Example: `deepspeed: ds.json` and `fsdp: full_shard auto_wrap` in one file.

    Fix: Remove one of them.

    Known limits: If one is in the file and the other on the command line, nothing is reported.
    """
    libraries = question.claims
    by_name = {text: claim for claim in libraries for text in texts(claim.value)}
    if len(by_name) > 1 and by_name["deepspeed"].span.path == by_name["fsdp"].span.path:
        return failed(
            question.subject,
            f"{quoted(by_name['fsdp'])} and {placed(by_name['deepspeed'])} are both set; the trainer accepts only one.",
            at=by_name["fsdp"],
            also=((by_name["deepspeed"], "DeepSpeed"),),
            remedy="Remove one of them.",
        )
    return None


#: Usual names of scripts' own options for the samples of one rank and for accumulation steps.
_RANK_OPTION_NAMES = re.compile(
    r"--(?:per[-_](?:device|gpu|replica|rank|card)[-_](?:train[-_])?batch[-_]?size"
    r"|(?:train[-_]|micro[-_])*batch[-_]?size[-_]per[-_](?:device|gpu|replica|rank|card))"
)
_ACCUMULATION_OPTION_NAMES = re.compile(
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
    arguments) gives the batch size per rank, accumulation steps, or both: the number equals batch size per rank x
    accumulation x ranks.

    Why it matters: DeepSpeed divides its number by the ranks and uses the result as the batch size per rank, regardless
    of what the trainer loads. Hugging Face's trainer compares the two and stops.

    Example: `"train_batch_size": 8` on 8 GPUs with `--batch-size-per-replica=2 --grad-acc-steps=8`, which is 128.

    Fix: Write `"train_batch_size": "auto"` for Hugging Face's trainer, otherwise the product.

    Known limits: A script's own options are recognized by their names, and the finding is then a warning. BAT001 and
    BAT003 judge a configuration that also gives the factors.
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
        script_factors = {} if micro and steps else _script_factors(launch)
        factors = {
            "samples per rank": (numbers(job_value(micro)) if micro else script_factors.get("micro", ())),
            "accumulation steps": (numbers(job_value(steps)) if steps else script_factors.get("steps", ())),
        }
        if not micro and not steps and not script_factors:
            continue
        ranks, rank_claims = _data_parallel_ranks(job, launch, scope)
        if undecided_verdict := undecided(launch.id, (*total, *micro, *steps), launch):
            yield undecided_verdict
        elif len(ranks) != 1 or any(len(counts) > 1 for counts in factors.values()):
            yield unknown(launch.id, "cannot determine how many ranks share the batch", at=total[0])
        else:
            yield _batch_verdict(
                job, launch, total[0], (*micro, *steps, *rank_claims), factors, ranks[0], is_guess=bool(script_factors)
            )


def _script_factors(launch: Launch) -> dict[str, tuple[int, ...]]:
    """Return the factors `micro` and `steps` that the script's own options set."""
    factors: dict[str, tuple[int, ...]] = {}
    words = [*launch.arguments, None]
    for word, following in itertools.pairwise(words):
        name, equals, value = (word or "").partition("=")
        text = value if equals else (following or "")
        for kind, pattern in (("micro", _RANK_OPTION_NAMES), ("steps", _ACCUMULATION_OPTION_NAMES)):
            if pattern.fullmatch(name) and is_whole_number(text):
                factors[kind] = (int(text),)
    return factors


def _data_parallel_ranks(job: Job, launch: Launch, scope: Scope) -> tuple[tuple[int, ...], tuple[Claim, ...]]:
    """Return the data-parallel ranks. deepspeed with a number of GPUs and no hosts runs on one node."""
    ranks, claims = data_parallel_ranks(job, scope)
    if isinstance(ranks, Unresolved) and launch.launcher == "deepspeed" and not job.about("nodes", scope):
        claims = job.setting("processes_per_node", scope)
        ranks = job_value(claims) if claims else ranks
    return numbers(ranks), claims


def _batch_verdict(
    job: Job,
    launch: Launch,
    total: Claim,
    claims: tuple[Claim, ...],
    factors: dict[str, tuple[int, ...]],
    ranks: int,
    *,
    is_guess: bool,
) -> Verdict:
    factor_counts = {name: counts[0] for name, counts in factors.items() if counts}
    product = ranks * math.prod(factor_counts.values())
    (size, *_) = numbers(total.value) or (0,)
    has_all_factors = len(factor_counts) == len(factors)
    if size == product or (not has_all_factors and product > 0 and size % product == 0) or size < 1:
        return passed(launch.id)
    product_text = " x ".join(f"{count} {name}" for name, count in factor_counts.items())
    is_certain = has_all_factors and not is_guess and uses_hugging_face(job, launch, launch.scope)
    return failed(
        launch.id,
        f"{placed(total)} is the batch size of all ranks, but {product_text} x {ranks} ranks "
        f"{'is' if has_all_factors else 'is already'} "
        f"{product}{'' if has_all_factors else ', which does not divide it'}.",
        at=total,
        also=((launch, f"{product_text} x {ranks} ranks"), *((claim, "a factor") for claim in claims[:6])),
        remedy=f'Write "auto" with Hugging Face\'s trainer, otherwise "train_batch_size": {product}.',
        severity=None if is_certain else Severity.WARNING,
        confidence=Confidence.MEDIUM if is_guess else None,
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

    Why it matters: Without NODE_RANK every node uses rank 0. Each starts its own group, prints "Initializing ...
    distributed tasks", and waits for the others until it times out.

    Example: `FORCE_TORCHRUN=1 NNODES=2 RANK=1 MASTER_ADDR=... llamafactory-cli train a.yaml`.

    Fix: Set NODE_RANK to 0, 1, ..., each once.

    Known limits: Versions before 0.9.2 read RANK; which version is installed is unknown.
    """
    nodes = question.claims
    job, launch = question.of.job, question.of.launch
    ranks = job.setting("env.RANK", launch.scope)
    if ranks and certainly_several(job_value(nodes)) and not job.about("env.NODE_RANK", launch.scope):
        return failed(
            question.subject,
            f"{quoted(ranks[0])} is ignored: llamafactory-cli reads the node rank from NODE_RANK, which is not set, "
            "so every node is node 0.",
            at=ranks[0],
            also=((nodes[0], "several nodes"),),
            remedy="Set NODE_RANK instead: a different value on each node, starting at 0.",
            fix=make_fix("set NODE_RANK", replace_text(ranks[0], "RANK", "NODE_RANK"), safe=False),
        )
    return None


_MIN_LENGTH = 8


_LONG_NAME_LENGTH = 12


@rule(
    "HFT004",
    "trainer-argument-misspelt",
    severity=Severity.WARNING,
    fix="unsafe",
    confidence=Confidence.MEDIUM,
    otherwise="no file has training arguments",
)
def trainer_argument_misspelt(job: Job) -> Iterator[Verdict]:
    """A file of training arguments contains a misspelt argument.

    What it checks: Files with Hugging Face training arguments (LLaMA-Factory, TRL and the like) have no key that is not
    a trainer argument but closely resembles one.

    Why it matters: The trainer's parser rejects a key that it does not know; if a script ignores unknown keys, the
    default stays effective.

    Example: `gradient_acumulation_steps: 8`.

    Fix: Use the trainer's spelling of the argument.

    Known limits: A script's own arguments that resemble no argument of the trainer are not judged, and neither are
    arguments that exist only in an older or newer version.
    """
    # CFG003 judges files that are parsed for TrainingArguments alone.
    strict_paths = {
        claim.span.path
        for place in place_settings(job, "transformers")
        if place.parser is not None and place.parser.alternatives == (True,)
        for claim in place.keys.values()
    }
    for claim in distinct(job.about("trainer_argument")):
        if claim.span.path in strict_paths:
            continue
        (name,) = texts(claim.value) or ("",)
        if isinstance(claim.value, Unresolved):
            yield unknown(claim.span.path, f"{quoted(claim)}: {claim.value.why}", at=claim)
            continue
        if not _is_hugging_face_file(job, claim):
            continue
        similar = "" if name in load_table("training_arguments").names() else _similar_argument(name)
        if similar:
            yield failed(
                claim.span.path,
                f"{quoted(claim)} is not an argument of the trainer; {similar} is probably meant.",
                at=claim,
                remedy=f"Write {similar}.",
                fix=make_fix(f"rename {name} to {similar}", replace_text(claim, name, similar), safe=False),
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
    return closest(name, load_table("training_arguments").names(), 2 if len(name) >= _LONG_NAME_LENGTH else 1)


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

    Fix: Use the same strategy for both, and save at a multiple of the evaluation steps.

    Known limits: Judged only if load_best_model_at_end and a strategy are in one file of arguments or on one command
    line; axolotl and scripts set other defaults. On a command line, the finding is therefore a warning unless the
    program parses it with HfArgumentParser.
    """
    for subject, scope, launch in subjects(job):
        best = trainer_claims(job, "load_best_model", scope)
        saving, evaluating = (trainer_claims(job, f"{name}_strategy", scope) for name in ("save", "eval"))
        # In a script, only `TrainingArguments` has this argument.
        is_known = uses_hugging_face(job, launch, scope) or any(
            claim.source in ("python", "dataclass") for claim in best
        )
        if not best or not (saving or evaluating) or not is_known:
            continue
        if undecided_verdict := undecided(subject, (*best, *saving, *evaluating), launch):
            yield undecided_verdict
            continue
        save_strategies = (texts(job_value(saving)) or ("",)) if saving else ("steps",)
        eval_strategies = (texts(job_value(evaluating)) or ("",)) if evaluating else ("no",)
        if (
            best[0].value != Known(True)
            or save_strategies == ("best",)
            or (set(save_strategies) & set(eval_strategies) and save_strategies != ("steps",))
        ):
            yield passed(subject)
        elif not set(save_strategies) & set(eval_strategies):
            strategy = quoted(saving[0]) if saving else "save_strategy is `steps` by default"
            other = quoted(evaluating[0]) if evaluating else "eval_strategy is `no` by default"
            yield failed(
                subject,
                f"{quoted(best[0])} requires the same strategy for saving and evaluating, but {strategy} and "
                f"{other}: the trainer refuses to start.",
                at=best[0],
                also=tuple((claim, "its strategy") for claim in (*saving[:1], *evaluating[:1])),
                remedy="Set save_strategy and eval_strategy to the same value.",
                severity=_best_model_severity(job, best[0], launch),
            )
        else:
            yield _steps_verdict(job, subject, scope, launch, best[0])


def _best_model_severity(job: Job, best: Claim, launch: Launch | None) -> Severity | None:
    if launch is None:
        return Severity.WARNING
    is_parsed = any(
        place.launch is launch and place.parser is not None for place in place_settings(job, "transformers")
    )
    return Severity.WARNING if best.source == "arguments" and not is_parsed else None


def _steps_verdict(job: Job, subject: str, scope: Scope, launch: Launch | None, best: Claim) -> Verdict:
    saved, checked = (trainer_claims(job, f"{name}_steps", scope) for name in ("save", "eval"))
    save_steps, eval_steps = numbers_of(saved), numbers_of(checked)
    if undecided_verdict := undecided(subject, (*saved, *checked), launch):
        return undecided_verdict
    if (
        not saved
        or not checked
        or len(save_steps) != 1
        or len(eval_steps) != 1
        or eval_steps[0] < 1
        or save_steps[0] < 1
    ):
        return passed(subject)
    if save_steps[0] % eval_steps[0] == 0:
        return passed(subject)
    return failed(
        subject,
        f"{quoted(best)} requires an evaluation at every checkpoint, but {quoted(saved[0])} is not a multiple of "
        f"{quoted(checked[0])}: the trainer refuses to start.",
        at=saved[0],
        also=((checked[0], "evaluates"), (best, "requires both at the same steps")),
        remedy=f"Set save_steps to a multiple of {eval_steps[0]:g}.",
        severity=_best_model_severity(job, best, launch),
    )


# Lightning: precisions and strategies that exclude each other.


#: Precisions that each family of strategies accepts (`_PRECISION_INPUT` in
#: lightning/fabric/plugins/precision/{deepspeed,fsdp}.py, `mp_precision_supported` in fabric/connector.py), in
#: lightning 2.6.6.
_SUPPORTED_PRECISIONS = {
    "deepspeed": ("32-true", "16-true", "bf16-true", "16-mixed", "bf16-mixed"),
    "fsdp": ("32-true", "16-true", "bf16-true", "16-mixed", "bf16-mixed"),
    "modelparallel": ("32-true", "16-true", "bf16-true", "bf16-mixed"),
}
#: Precisions that are new in 2.1.0; 2.0.0 to 2.0.9 reject them with DeepSpeed.
_SINCE_2_1 = ("16-true", "bf16-true")
#: Older spellings of precisions (lightning/fabric/connector.py, `_convert_precision_to_unified_args`).
_OLD_PRECISIONS = {"16": "16-mixed", "bf16": "bf16-mixed", "32": "32-true", "64": "64-true", "None": "32-true"}
_VERSION = re.compile(r"(?:lightning|pytorch-lightning)(?:==|>=|~=|>)(\d{1,9})\.(\d{1,9})")


@rule(
    "LIT001",
    "lightning-precision-not-for-strategy",
    severity=Severity.ERROR,
    otherwise="no script passes both a strategy and a precision to Lightning",
)
def lightning_precision_not_for_strategy(job: Job) -> Iterator[Verdict]:
    """Lightning is given a precision that its strategy does not support.

    What it checks: The precision of a `Fabric(...)` or `Trainer(...)` fits its strategy: DeepSpeed and FSDP accept
    32-true, 16-true, bf16-true, 16-mixed and bf16-mixed; model parallelism does not accept 16-mixed.

    Why it matters: Lightning fails at startup: "precision=... is not supported in DeepSpeed".

    Example: `Fabric(strategy="deepspeed", precision="64-true")`, or before Lightning 2.1 with `precision="bf16-true"`.

    Fix: Use one of the precisions that the message lists: bf16-mixed works with all of them in every version.

    Known limits: 16-true and bf16-true with DeepSpeed are new in Lightning 2.1, so they are a warning, and not reported
    if the job's files pin 2.1 or a later version. Precision plugins are not checked.
    """
    strategies = {claim.span.path: claim for claim in job.about("lightning_strategy")}
    for precision in job.about("lightning_precision"):
        strategy = strategies.get(precision.span.path)
        is_ambiguous = sum(claim.span.path == precision.span.path for claim in job.about("lightning_strategy")) > 1
        if strategy is None or is_ambiguous:
            continue
        undecided_verdict = undecided(precision.span.path, (precision, strategy))
        yield undecided_verdict if undecided_verdict is not None else _precision_verdict(job, precision, strategy)


def _precision_verdict(job: Job, precision: Claim, strategy: Claim) -> Verdict:
    names = [_OLD_PRECISIONS.get(text, text) for text in texts(precision.value)]
    family = next(iter(texts(strategy.value)), "")
    supported = _SUPPORTED_PRECISIONS.get(family, ())
    subject = precision.span.path
    if not supported or not names:
        return passed(subject)
    if all(name not in supported for name in names):
        return failed(
            subject,
            f"{quoted(precision)} is not supported with {placed(strategy)}: Lightning fails at startup.",
            at=precision,
            also=((strategy, "the strategy"),),
            remedy=f"Use one of {', '.join(supported)}.",
        )
    if family == "deepspeed" and all(name in _SINCE_2_1 for name in names) and not _is_lightning_2_1(job):
        return failed(
            subject,
            f"{quoted(precision)} with {placed(strategy)} requires Lightning 2.1; earlier versions stop with 'not "
            "supported in DeepSpeed', and no file of the job pins a version.",
            at=precision,
            also=((strategy, "the strategy"),),
            remedy="Pin lightning>=2.1, or use bf16-mixed, which every version supports.",
            severity=Severity.WARNING,
        )
    return passed(subject)


def _is_lightning_2_1(job: Job) -> bool:
    """Return whether a file of the job requests Lightning 2.1 or later."""
    for claim in job.about("package"):
        for text in texts(claim.value):
            match = _VERSION.match(text)
            if match is not None and (int(match[1]), int(match[2])) >= (2, 1):
                return True
    return False


@rule("LIT002", "lightning-accumulation-in-deepspeed-file", severity=Severity.ERROR)
def lightning_accumulation_in_deepspeed_file(job: Job) -> Iterator[Verdict]:
    """Lightning's Trainer is given a DeepSpeed configuration with gradient_accumulation_steps.

    What it checks: A DeepSpeed configuration that a script passes to `DeepSpeedStrategy(config=...)` for a `Trainer`
    has no gradient_accumulation_steps.

    Why it matters: The Trainer sets the key itself, from accumulate_grad_batches, and stops if it is already present:
    "Do not set `gradient_accumulation_steps` in the DeepSpeed config".

    Example: `Trainer(strategy=DeepSpeedStrategy(config="ds.json"))` with `"gradient_accumulation_steps": 4` in ds.json.

    Fix: Remove the key and pass `accumulate_grad_batches` to the Trainer.

    Known limits: Fabric accepts the key, so scripts with Fabric are not judged.
    """
    trainers = [
        claim
        for claim in job.about("training_framework")
        if {"lightning", "pytorch_lightning"} & set(claim.alternatives) and "Trainer(" in claim.spelling
    ]
    strategies = [claim for claim in job.about("lightning_strategy") if claim.alternatives == ("deepspeed",)]
    steps = [claim for claim in job.about("gradient_accumulation_steps") if claim.source == "deepspeed"]
    if not trainers or not strategies:
        yield not_applicable(job.name, "no Lightning Trainer with DeepSpeed")
        return
    for claim in strategies:
        if undecided_verdict := undecided(claim.span.path, (claim,)):
            yield undecided_verdict
            return
    if not steps:
        yield passed(trainers[0].span.path)
        return
    yield failed(
        trainers[0].span.path,
        f"{placed(steps[0])} is in the DeepSpeed configuration: Lightning's Trainer sets it itself and stops.",
        at=steps[0],
        also=((strategies[0], "the strategy"),),
        remedy="Remove gradient_accumulation_steps and pass accumulate_grad_batches to the Trainer.",
    )


@rule(
    "LIT009",
    "lightning-nodes-not-allocated",
    severity=Severity.ERROR,
    otherwise="srun does not start a Lightning Trainer for several nodes",
)
def lightning_nodes_not_allocated(job: Job) -> Iterator[Verdict]:
    """A Lightning Trainer waits for several nodes, but the batch script does not request a number of nodes.

    What it checks: If srun starts a Trainer or Fabric with `num_nodes` above 1, the header of the batch script (or
    srun) requests a number of nodes or tasks.

    Why it matters: sbatch allocates one node if neither `--nodes` nor `--ntasks` is given, even with
    `--ntasks-per-node`. The ranks of the first node wait for the others until the rendezvous times out.

    Example: `#SBATCH --ntasks-per-node=4` and `Trainer(devices=4, num_nodes=2)`.

    Fix: Add `#SBATCH --nodes=2`.

    Known limits: A script that needs options on sbatch's command line is also reported.
    """
    header = [claim for claim in job.about("batch_directive") if claim.source == "slurm"]
    for launch in job.launches:
        node_claims = [claim for claim in job.requirement_claims("nodes", launch.scope) if claim.source == "lightning"]
        if launch.launcher != "srun" or not node_claims or not header:
            continue
        allocations = [*job.setting("nodes", launch.scope), *job.setting("tasks", launch.scope)]
        counts = numbers(job_value(node_claims))
        if undecided_verdict := undecided(launch.id, node_claims, launch):
            yield undecided_verdict
        elif allocations or not counts or max(counts) < 2:
            yield passed(launch.id)
        elif min(counts) < 2:
            yield unknown(launch.id, f"{quoted(node_claims[0])} may request one node", at=node_claims[0])
        else:
            yield failed(
                launch.id,
                f"{quoted(node_claims[0])} makes Lightning wait for {counts[0]} nodes, but the batch script does not "
                "request a number of nodes, and so gets one.",
                at=node_claims[0],
                also=((header[0], "the header"), (launch, "started here")),
                remedy=f"Add `#SBATCH --nodes={counts[0]}`.",
                waits_at="rendezvous",
            )


#: Job names for which Lightning ignores Slurm (`SLURMEnvironment.detect` of lightning 2.6.6).
_INTERACTIVE_JOB_NAMES = frozenset(("job-name", name) for name in ("bash", "interactive"))


@rule(
    "LIT011",
    "lightning-started-once-in-an-allocation",
    severity=Severity.ERROR,
    otherwise="no batch script starts a Lightning Trainer with plain python",
)
def lightning_started_once_in_an_allocation(job: Job) -> Iterator[Verdict]:
    """A batch script starts a Lightning Trainer for several nodes or tasks with python, without srun.

    What it checks: If the header of a Slurm batch script requests several nodes or tasks, and the Trainer of a
    program has `num_nodes` or `devices` above 1, srun starts the program.

    Why it matters: sbatch runs the script only on the first node. Lightning sees Slurm's variables, assumes that srun
    has started every rank, and waits for the others until the rendezvous times out.

    Example: `#SBATCH --nodes=4 --ntasks-per-node=8` and `python train.py` with `Trainer(devices=8, num_nodes=4)`.

    Fix: `srun python train.py`.

    Known limits: Only sizes that are written in the program are known. On one node, Lightning starts the ranks itself
    if it ignores Slurm: with a job name of `bash` or `interactive`, without SLURM_NTASKS, or because of a plugin.
    """
    header = [claim for claim in job.about("batch_directive") if claim.source == "slurm"]
    tasks = [claim for claim in job.setting("tasks") if claim.source == "slurm"]
    interactive_names = [claim for claim in header if _INTERACTIVE_JOB_NAMES.intersection(claim.alternatives)]
    for program in distinct(job.about("plain_program")) if header else ():
        nodes, devices = (
            [claim for claim in job.about(f"setting.lightning.{key}") if claim.span.path in texts(program.value)]
            for key in ("num_nodes", "devices")
        )
        if not nodes and not devices:
            continue
        node_claims = [claim for claim in nodes if min(numbers(claim.value), default=1) > 1]
        device_claims = [claim for claim in devices if min(numbers(claim.value), default=1) > 1]
        waiting = node_claims or (device_claims if tasks and min(numbers(tasks[0].value), default=1) > 1 else [])
        plugins = [claim for claim in job.about("setting.lightning.plugins") if claim.span.path in texts(program.value)]
        ignoring_claims = (*interactive_names, *job.about("slurm_hidden"), *plugins)
        if undecided_verdict := undecided(program.span.path, (program, *nodes, *devices)):
            yield undecided_verdict
        elif waiting and not node_claims and ignoring_claims:
            yield unknown(
                program.span.path,
                f"{quoted(ignoring_claims[0])} may make Lightning ignore Slurm",
                at=ignoring_claims[0],
            )
        elif not waiting:
            yield passed(program.span.path)
        else:
            yield failed(
                program.span.path,
                f"{quoted(program)} starts one process on the first node, but {placed(waiting[0])} makes Lightning"
                " wait for the ranks that srun would start.",
                at=program,
                also=((waiting[0], "waits for the missing ranks"), (header[0], "the header")),
                remedy="Start it with srun.",
                waits_at="rendezvous",
            )
