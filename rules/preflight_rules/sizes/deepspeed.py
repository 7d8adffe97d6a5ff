"""Batch sizes in DeepSpeed's configuration and in the trainer's arguments; its keys, offloading and ZeRO."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from preflight.model.findings import Fix, Severity
from preflight.model.job import (
    AUTO,
    Claim,
    Job,
    Launch,
    Plain,
    Relation,
    Scope,
    Unresolved,
    Value,
    as_int,
    lift,
    strongest,
)
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
from preflight.plugins.claim_text import joined, placed, quoted, why_unresolved
from preflight.plugins.questions import SubjectQuestion, stated_by, subjects, subjects_with
from preflight.sources.tables import Generated, load_table
from preflight_rules.launches import ranks_started
from preflight_rules.rendezvous.variables import distance
from preflight_rules.settings.places import compares_with_deepspeed
from preflight_rules.settings.tables import in_range, pinned, settings

#: Text for an unknown number of nodes: deepspeed without a hostfile starts only on its own node.
_ONE_NODE = " No hostfile is given, so one node is assumed."


@rule(
    "BAT001",
    "deepspeed-batch-product-mismatch",
    severity=Severity.ERROR,
    otherwise="no DeepSpeed configuration sets a train_batch_size",
)
def deepspeed_batch_product_mismatch(job: Job) -> Iterator[Verdict]:
    """DeepSpeed's batch sizes do not match the number of ranks.

    What it checks: train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x data-parallel
    ranks, where data-parallel ranks are all ranks divided by tensor and pipeline parallel sizes. With two of the three
    given, the third is a whole number. "auto" is replaced with the arguments of Hugging Face's trainer, if they are
    given.

    Why it matters: DeepSpeed checks this in every rank after the job has been queued and all ranks have started, and
    stops.

    Example: `"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2` on 16
    ranks: 4 x 2 x 16 is 128.

    Fix: Change one of the three, or omit one and DeepSpeed computes it.

    Known limits: With elasticity, DeepSpeed computes the sizes itself and nothing is reported. deepspeed without a
    hostfile is assumed to run on one node; if more nodes would make the sizes fit, it is a warning. If the number of
    ranks is unknown, only sizes that no number of ranks could satisfy are reported.
    """
    for subject, scope, launch in subjects(job):
        claims = {quantity: configured(job, quantity, scope) for quantity in BATCH_QUANTITIES}
        if not claims["train_batch_size"]:
            continue
        if any(True in c.alternatives for c in job.about("elasticity_enabled", scope)):
            yield not_applicable(subject, "elasticity computes the batch sizes")
            continue
        if uses_hugging_face(job, launch, scope):
            claims = {q: _auto_values(job, q, values, scope) for q, values in claims.items()}
        yield _product_verdict(job, subject, launch, scope, claims)


def _auto_values(job: Job, quantity: str, claims: tuple[Claim, ...], scope: Scope) -> tuple[Claim, ...]:
    """Return the claims, or, if they are "auto", the trainer's arguments that Hugging Face's trainer fills in."""
    if claims and all(c.value == AUTO for c in claims):
        return given_to_trainer(job, quantity, scope) or claims
    return claims


def _product_verdict(
    job: Job, subject: str, launch: Launch | None, scope: Scope, claims: dict[str, tuple[Claim, ...]]
) -> Verdict:
    all_claims = tuple(claim for quantity in BATCH_QUANTITIES for claim in claims[quantity])
    if undecided_verdict := undecided(subject, all_claims, launch):
        return undecided_verdict
    total = numbers(job_value(claims["train_batch_size"]))
    micro = numbers(job_value(claims["micro_batch_size_per_gpu"])) if claims["micro_batch_size_per_gpu"] else ()
    steps = numbers(job_value(claims["gradient_accumulation_steps"])) if claims["gradient_accumulation_steps"] else ()
    if not total or min((*total, *micro, *steps)) < 1 or len(all_claims) > len(total) + len(micro) + len(steps):
        return unknown(subject, "a batch size is not a positive whole number (see BAT002)", at=all_claims[0])
    ranks, rank_claims = data_parallel_ranks(job, scope)
    is_one_node = isinstance(ranks, Unresolved) and _may_be_one_node(job, launch, scope)
    if is_one_node:
        processes = job.setting("processes_per_node", scope)
        ranks, rank_claims = _without_model_parallel(job, scope, job_value(processes), processes)
    sizes = numbers(ranks)
    if isinstance(ranks, Unresolved) or not sizes or min(sizes) < 1 or why_unresolved(rank_claims, launch) is not None:
        return _judge_without_ranks(subject, claims, total, micro, steps, ranks, rank_claims)
    combinations = list(itertools.product(total, micro or (0,), steps or (0,), sizes))
    if any(_sizes_agree(*combination) for combination in combinations):
        return passed(subject)
    sizes_tried = combinations[0]
    return failed(
        subject,
        _product_fault(*sizes_tried, claims=claims) + (_ONE_NODE if is_one_node else ""),
        at=claims["train_batch_size"][0],
        also=(
            *((c, "micro batch of one rank") for c in claims["micro_batch_size_per_gpu"]),
            *((c, "accumulation") for c in claims["gradient_accumulation_steps"]),
            *((c, "determines the number of ranks") for c in distinct(rank_claims)),
        ),
        remedy=_batch_remedy(*sizes_tried),
        severity=Severity.WARNING if is_one_node and _fits_some_nodes(*sizes_tried) else None,
    )


def _may_be_one_node(job: Job, launch: Launch | None, scope: Scope) -> bool:
    """Return whether deepspeed is given a number of processes but no hosts, and so starts one node.

    The site may have a hostfile that the files do not show.
    """
    return (
        launch is not None
        and launch.launcher == "deepspeed"
        and bool(job.setting("processes_per_node", scope))
        and not job.about("nodes", scope)
        and not any(reference.role == "hostfile" for reference in job.references)
    )


def _fits_some_nodes(total: int, micro: int, steps: int, ranks: int) -> bool:
    """Return whether a larger number of nodes would satisfy the equation."""
    return total % ((micro or 1) * (steps or 1) * ranks) == 0


def _sizes_agree(total: int, micro: int, steps: int, ranks: int) -> bool:
    """Return whether the sizes agree. A micro batch or accumulation of 0 means that none is given."""
    if micro and steps:
        return total == micro * steps * ranks
    return total % ((micro or 1) * (steps or 1) * ranks) == 0


def _product_fault(total: int, micro: int, steps: int, ranks: int, *, claims: dict[str, tuple[Claim, ...]]) -> str:
    first = claims["train_batch_size"][0]
    if micro and steps:
        return (
            f"{quoted(first)}, but micro batch {micro} x accumulation {steps} x {ranks} data-parallel ranks ="
            f" {micro * steps * ranks}: DeepSpeed stops in every rank."
        )
    unit = (micro or 1) * (steps or 1) * ranks
    factors = [f"micro batch {micro}"] if micro else []
    factors += [f"accumulation {steps}"] if steps else []
    factors += [f"{ranks} data-parallel ranks"]
    return f"{quoted(first)} is not a multiple of {' x '.join(factors)} = {unit}: DeepSpeed stops in every rank."


def _batch_remedy(total: int, micro: int, steps: int, ranks: int) -> str:
    if micro and steps:
        options = [f'"train_batch_size": {micro * steps * ranks}']
        if total % (micro * ranks) == 0:
            options.append(f'"gradient_accumulation_steps": {total // (micro * ranks)}')
        if total % (steps * ranks) == 0:
            options.append(f'"train_micro_batch_size_per_gpu": {total // (steps * ranks)}')
        if total % (micro * steps) == 0:
            options.append(f"{total // (micro * steps)} data-parallel ranks")
        return "Use one of these: " + ", ".join(options) + "."
    unit = (micro or 1) * (steps or 1) * ranks
    below = total // unit * unit
    return f"Use a train_batch_size of {f'{below} or ' if below else ''}{below + unit}, or other factors."


def _judge_without_ranks(
    subject: str,
    claims: dict[str, tuple[Claim, ...]],
    total: tuple[int, ...],
    micro: tuple[int, ...],
    steps: tuple[int, ...],
    ranks: Value,
    rank_claims: tuple[Claim, ...],
) -> Verdict:
    """Return the verdict if the number of ranks is unknown: failed if no number of ranks fits the sizes."""
    pairs = list(itertools.product(total, micro or (1,), steps or (1,)))
    if (micro or steps) and all(batch % (each * count) for batch, each, count in pairs):
        _, micro_batch, accumulation = pairs[0]
        return failed(
            subject,
            f"{quoted(claims['train_batch_size'][0])} is not a multiple of micro batch {micro_batch} x accumulation"
            f" {accumulation} ="
            f" {micro_batch * accumulation}, so no number of ranks fits: DeepSpeed stops in every rank.",
            at=claims["train_batch_size"][0],
            also=(*claims["micro_batch_size_per_gpu"], *claims["gradient_accumulation_steps"]),
            remedy=f"Use a train_batch_size that is a multiple of {micro_batch * accumulation}, or other factors.",
        )
    why = ranks.why if isinstance(ranks, Unresolved) else "a branch"
    location = next(iter(rank_claims), claims["train_batch_size"][0])
    return unknown(subject, f"the number of data-parallel ranks is unknown: {why}", at=location)


#: The stages that the script's own PipelineModule has.
_STAGES = "setting.deepspeed_pipeline.num_stages"


def data_parallel_ranks(job: Job, scope: Scope) -> tuple[Value, tuple[Claim, ...]]:
    """Return the number of data-parallel ranks, which are all ranks divided by tensor and pipeline parallel sizes, and
    the claims about it.
    """
    return _without_model_parallel(job, scope, *ranks_started(job, scope))


def _without_model_parallel(
    job: Job, scope: Scope, ranks: Value, rank_claims: tuple[Claim, ...]
) -> tuple[Value, tuple[Claim, ...]]:
    pipelines = job.about("setting.deepspeed_pipeline.function", scope)
    if pipelines and not job.setting(_STAGES, scope):
        return Unresolved(f"{quoted(pipelines[0])} divides the ranks into pipeline stages"), pipelines
    # An option of the script itself may also give the number of stages.
    for quantity in ("tensor_parallel_size", _STAGES if pipelines else "pipeline_parallel_size"):
        sizes = job.setting(quantity, scope)
        if sizes:
            ranks = lift(_data_parallel, ranks, as_int(job_value(sizes)))
            rank_claims = (*rank_claims, *sizes)
    return ranks, rank_claims


def _data_parallel(ranks: Plain, size: Plain) -> Plain:
    if not isinstance(ranks, int) or not isinstance(size, int) or size < 1 or ranks % size:
        raise ValueError(f"{ranks} ranks is not a multiple of the parallel size {size}")
    return ranks // size


@rule(
    "BAT002",
    "deepspeed-batch-size-not-positive-integer",
    severity=Severity.ERROR,
    fix="safe",
    otherwise="no DeepSpeed configuration sets a batch size",
)
def deepspeed_batch_size_not_positive_integer(job: Job) -> Iterator[Verdict]:
    """A batch size in DeepSpeed's configuration is not a positive whole number.

    What it checks: train_batch_size, train_micro_batch_size_per_gpu and gradient_accumulation_steps are whole numbers
    above 0 and not strings: `8`, not `"8"`, `8.0` or `0`.

    Why it matters: DeepSpeed multiplies and compares them as written: a string never equals a number, so the job stops
    with a message that shows two equal numbers.

    Example: `"gradient_accumulation_steps": "8"`.

    Fix: Write the number without quotation marks.

    Known limits: "auto" and placeholders that are filled in later are not judged. A number such as `8.0`, or `true` for
    1, passes DeepSpeed's own comparison and fails later or not at all, so it is a warning.
    """
    claims = distinct(
        claim for quantity in BATCH_QUANTITIES for claim in job.about(quantity) if claim.source == "deepspeed"
    )
    for claim in claims:
        key = BATCH_KEYS[claim.quantity]
        if isinstance(claim.value, Unresolved):
            yield unknown(claim.span.path, f"{key}: {claim.value.why}", at=claim)
        elif any(value is None or _is_count(value) for value in claim.alternatives):
            yield passed(claim.span.path)
        else:
            yield failed(
                claim.span.path,
                f"{quoted(claim)} is not a positive whole number, which DeepSpeed requires for {key}.",
                at=claim,
                remedy=_number_remedy(key, claim),
                fix=_number_fix(claim),
                severity=Severity.WARNING if all(_may_pass(claim, value) for value in claim.alternatives) else None,
            )


def _may_pass(claim: Claim, value: Plain) -> bool:
    """Return whether DeepSpeed's own comparison accepts a value that is not a whole number.

    A fraction never equals the product of the other sizes, so it fails as train_batch_size.
    """
    return value is True or (isinstance(value, float) and (value.is_integer() or claim.quantity != "train_batch_size"))


def _is_count(value: Plain) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _number_fix(claim: Claim) -> Fix | None:
    """Return the fix that replaces a string such as "8" or a float such as 8.0 with the whole number; None for other
    values.
    """
    counts = numbers(claim.value)
    if len(counts) != 1 or counts[0] < 1:
        return None
    value = claim.alternatives[0]
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return make_fix(f"write {text} as {counts[0]}", replace_text(claim, text, str(counts[0])), safe=True)


def _number_remedy(key: str, claim: Claim) -> str:
    counts = numbers(claim.value)
    if counts and counts[0] > 0:
        return f'Write `"{key}": {counts[0]}`.'
    return f'Set "{key}" to a whole number above 0, or remove the key.'


#: The quantities whose product is checked, with their keys in the configuration.
BATCH_QUANTITIES = ("train_batch_size", "micro_batch_size_per_gpu", "gradient_accumulation_steps")
BATCH_KEYS = {
    "train_batch_size": "train_batch_size",
    "micro_batch_size_per_gpu": "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
}


def configured(job: Job, quantity: str, scope: Scope) -> tuple[Claim, ...]:
    """Return the claims of DeepSpeed's configuration about a quantity in `scope`."""
    return strongest(c for c in job.about(quantity, scope) if c.source == "deepspeed")


def given_to_trainer(job: Job, quantity: str, scope: Scope) -> tuple[Claim, ...]:
    """Return the claims of the program's arguments, or of its script's `TrainingArguments`, about a quantity."""
    return strongest(
        c
        for c in job.about(quantity, scope)
        if c.source in ("arguments", "trainer", "python") and c.relation is Relation.SETS and not _is_option_default(c)
    )


def _is_option_default(claim: Claim) -> bool:
    return claim.source == "python" and claim.spelling.startswith("--")


def uses_hugging_face(job: Job, launch: Launch | None, scope: Scope) -> bool:
    """Return whether the configuration goes through Hugging Face's trainer (`--deepspeed FILE`, `TrainingArguments`).

    It does not if the program declares `--deepspeed` itself instead of using the trainer's parser, or calls
    `deepspeed.initialize`, so that only DeepSpeed reads the file.
    """
    if job.about("setting.deepspeed_initialize.function", scope):
        return False
    lists = [value for claim in job.about("declared_options", scope) for value in claim.alternatives]
    is_declared = any(isinstance(names, tuple) and "--deepspeed" in names for names in lists)
    if launch is not None and not is_declared:
        words = launch.arguments
        for word, following in itertools.zip_longest(words, words[1:]):
            if word is not None and word.startswith("--deepspeed="):
                return True
            if word == "--deepspeed" and (following or "-").endswith("json") and not (following or "").startswith("-"):
                return True
    return any("transformers" in c.alternatives for c in job.about("training_framework", scope))


@rule(
    "BAT003",
    "trainer-and-deepspeed-batch-differ",
    severity=Severity.ERROR,
    fix="unsafe",
    otherwise="no batch size is set both for the program and for DeepSpeed",
)
def trainer_and_deepspeed_batch_differ(job: Job) -> Iterator[Verdict]:
    """The trainer's arguments and DeepSpeed's configuration give different batch sizes.

    What it checks: The micro batch size and gradient accumulation steps given to the training program equal those in
    its DeepSpeed configuration, unless that has "auto".

    Why it matters: Hugging Face's trainer compares the two and stops. Other programs train with one and log the other.

    Example: `--gradient_accumulation_steps 2 --deepspeed ds.json` with `"gradient_accumulation_steps": 4` in ds.json.

    Fix: Write "auto" in the configuration, so that only the argument sets the value.

    Known limits: For a program that may not be Hugging Face's trainer, the finding is a warning. A different default of
    the trainer is also a warning, because the script may set another value. Options that a script declares itself may
    have another meaning, and are not judged.
    """
    for subject, scope, launch in subjects(job):
        if compares_with_deepspeed(job, launch):
            yield passed(subject)
            continue
        for quantity in ("micro_batch_size_per_gpu", "gradient_accumulation_steps"):
            trainer_claims, config_claims = given_to_trainer(job, quantity, scope), configured(job, quantity, scope)
            if not trainer_claims and config_claims and launch is not None:
                verdict = _default_verdict(job, launch, quantity, config_claims)
                if verdict is not None:
                    yield verdict
            if (
                not trainer_claims
                or not config_claims
                or _may_mean_something_else(job, trainer_claims[0], launch, scope)
            ):
                continue
            result = undecided(subject, (*trainer_claims, *config_claims), launch)
            values, other_values = numbers(job_value(trainer_claims)), numbers(job_value(config_claims))
            if result is None and values and other_values and not set(values) & set(other_values):
                result = failed(
                    subject,
                    f"{quoted(trainer_claims[0])} sets {joined(values)}, but {placed(config_claims[0])} sets "
                    f"{joined(other_values)}.",
                    at=trainer_claims[0],
                    also=((config_claims[0], "DeepSpeed's value"),),
                    remedy=f'Write `"{BATCH_KEYS[quantity]}": "auto"` in {config_claims[0].span.path}, or make the'
                    " two equal.",
                    severity=None if uses_hugging_face(job, launch, scope) else Severity.WARNING,
                    fix=_auto_fix(config_claims[0], quantity) if uses_hugging_face(job, launch, scope) else None,
                )
            yield result or passed(subject)


def _may_mean_something_else(job: Job, claim: Claim, launch: Launch | None, scope: Scope) -> bool:
    """Return whether the claim is an option of a script with its own parser, without Hugging Face's trainer."""
    is_option = claim.spelling.startswith("-")
    return is_option and bool(job.about("declared_options", scope)) and not uses_hugging_face(job, launch, scope)


def _auto_fix(claim: Claim, quantity: str) -> Fix | None:
    """Return an unsafe fix that writes "auto", because the intended value is a guess."""
    number = str(claim.alternatives[0]) if len(claim.alternatives) == 1 else ""
    return make_fix(f'write "{BATCH_KEYS[quantity]}": "auto"', replace_text(claim, number, '"auto"'), safe=False)


#: Defaults of Hugging Face's `TrainingArguments` (transformers 4.50, training_args.py).
_TRAINER_DEFAULTS = {"micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 1}
_TRAINER_OPTIONS = {
    "micro_batch_size_per_gpu": "--per_device_train_batch_size",
    "gradient_accumulation_steps": "--gradient_accumulation_steps",
}


def _default_verdict(job: Job, launch: Launch, quantity: str, config_claims: tuple[Claim, ...]) -> Verdict | None:
    """Return the verdict on a number that differs from the trainer's default; None if any argument is unknown."""
    if None in launch.arguments or not uses_hugging_face(job, launch, launch.scope):
        return None
    if job.about(quantity, launch.scope) != config_claims:
        return None
    values, default = numbers(job_value(config_claims)), _TRAINER_DEFAULTS[quantity]
    if not values or default in values:
        return None
    return failed(
        launch.id,
        f"{quoted(config_claims[0])}, but the launch does not set {_TRAINER_OPTIONS[quantity]} and Hugging Face's "
        f"trainer uses {default}: the trainer stops because they differ.",
        at=config_claims[0],
        also=((launch, f"uses {default}"),),
        remedy=f'Pass {_TRAINER_OPTIONS[quantity]} {values[0]}, or write `"{BATCH_KEYS[quantity]}": "auto"`.',
        severity=Severity.WARNING,
    )


# DeepSpeed's configuration: unknown keys, offloading, and ZeRO with pipeline parallelism.


#: The table of each section whose parser stops at an unknown key.
_STRICT_SECTIONS = {
    "zero_optimization": "deepspeed_zero",
    "zero_optimization.offload_optimizer": "deepspeed_offload_optimizer",
    "zero_optimization.offload_param": "deepspeed_offload_param",
}
#: Keys of releases that are older than the tables.
_OLD_KEYS = frozenset(
    (
        ("zero_optimization", "cpu_offload_params"),
        ("zero_optimization", "max_elements_per_comm"),
        ("zero_optimization.offload_optimizer", "buffer_size"),
    )
)
#: Top-level sections with their own parsers, which no table of keys includes.
_SECTIONS = frozenset(("zero_optimization", "hybrid_engine"))
_MIN_LENGTH = 6
#: Deprecated keys and their replacements.
_RENAMED_KEYS = {
    "zero_optimization.cpu_offload": '`"offload_optimizer": {"device": "cpu"}`',
    "zero_optimization.cpu_offload_param": '`"offload_param": {"device": "cpu"}`',
    "zero_optimization.cpu_offload_params": '`"offload_param": {"device": "cpu"}`',
    "zero_optimization.cpu_offload_use_pin_memory": '`"pin_memory": true` in the offload section',
    "zero_optimization.stage3_gather_fp16_weights_on_model_save": "`stage3_gather_16bit_weights_on_model_save`",
}


def _section_and_key(job: Job) -> Iterator[tuple[str, str, Claim]]:
    """Yield the section, the name and the claim of every key."""
    for claim in job.about("deepspeed_key"):
        for text in texts(claim.value):
            section, _, key = text.rpartition(".")
            yield section, key, claim


def _closed_section_keys(job: Job) -> Iterator[tuple[str, str, Claim]]:
    """Yield the section, the name and the claim of every key in sections that reject unknown keys, each key once."""
    closed = {setting.key for setting in settings("deepspeed").values() if setting.closed} - set(_STRICT_SECTIONS)
    claims = {(claim.span.path, claim.span.line, key): claim for key, claim in job.settings("deepspeed")}
    for (_, _, path), claim in claims.items():
        section, _, key = path.rpartition(".")
        if section in closed:
            yield section, key, claim


def _unknown_key_verdicts(job: Job) -> Iterator[Verdict]:
    for claim in job.about("deepspeed_key"):
        if isinstance(claim.value, Unresolved):
            yield unknown(job.name, f"the key {quoted(claim)} is unknown: {claim.value.why}", at=claim)


def _section_keys(table: Generated, section: str) -> frozenset[str]:
    """Return every key that a section accepts in some release."""
    if section and section not in _STRICT_SECTIONS:
        prefix = f"{section}."
        members = {name for key in settings("deepspeed") if key.startswith(prefix) for name in (key[len(prefix) :],)}
        return frozenset(name for name in members if "." not in name)
    names = {name for row in table.rows for name in (row.dest, *row.spellings)}
    declared = {
        key.removeprefix(f"{section}.") for key in settings("deepspeed") if section and key.startswith(f"{section}.")
    }
    return frozenset(
        names | {name for name in declared if "." not in name} | (_SECTIONS if not section else frozenset())
    )


def _nearest_key(key: str, names: frozenset[str]) -> str:
    """Return the known key that `key` probably misspells; empty if no known key is similar."""
    limit = 2 if len(key) >= 2 * _MIN_LENGTH else 1
    candidates = sorted(
        (distance(key.lower(), name.lower(), limit), name) for name in names if abs(len(name) - len(key)) <= limit
    )
    return candidates[0][1] if candidates and candidates[0][0] <= limit else ""


@rule(
    "DSP001",
    "deepspeed-key-unknown",
    severity=Severity.ERROR,
    profile="default",
    fix="unsafe",
    otherwise="no DeepSpeed configuration is read",
)
def deepspeed_key_unknown(job: Job) -> Iterator[Verdict]:
    """DeepSpeed does not read a key of its configuration.

    What it checks: Every key in the sections whose keys DeepSpeed declares in a model (`zero_optimization` and its
    contents, `fp16`, `bf16`, `compile`, `tensorboard`, `comms_logger` and others) exists in a release from 0.9 to 0.19.
    At the top level, only names that look like a misspelling of a known key are reported.

    Why it matters: In these sections DeepSpeed fails at startup ("extra fields not permitted"), which is an error. At
    the top level it ignores the key and trains with a default, which is a warning.

    Example: `"zero_optimization": {"stage": 2, "overlap_com": true}`.

    Fix: Use the name that the finding gives, or remove the key.

    Known limits: A key that exists only in other releases is reported as a warning, or as an error if it resembles a
    known key or the job's files pin a known release. Releases before 0.8 ignored unknown keys.
    """
    version = pinned(job, "deepspeed")
    yield from _unknown_key_verdicts(job)
    for section, key, claim in (*_section_and_key(job), *_closed_section_keys(job)):
        table_name = _STRICT_SECTIONS.get(section)
        model = settings("deepspeed").get(section)
        if (table_name is None and section and model is None) or (section, key) in _OLD_KEYS:
            continue
        table = load_table(table_name or "deepspeed_keys")
        names = _section_keys(table, section)
        if key in names or (not section and key in _SECTIONS) or key.startswith(("_", "//", "#")):
            yield passed(job.name)
            continue
        nearest = _nearest_key(key, names) if len(key) >= _MIN_LENGTH or section else ""
        underscored = key.replace("-", "_")
        if not section and (not nearest or underscored in _SECTIONS or table.find(underscored) is not None):
            # A key with hyphens belongs to gpt-neox, whose configurations include DeepSpeed's keys.
            continue
        applies = in_range(version, model.since if model is not None else "", "")
        if applies is False:
            yield passed(job.name)
            continue
        effect = "DeepSpeed stops at an unknown key there" if section else "DeepSpeed ignores it"
        since = f" (since {model.since})" if model is not None and model.since and not version else ""
        # DeepSpeed drops keys whose value is "auto" before it checks the names in a section.
        is_auto = any(
            path == f"{section}.{key}" and other.alternatives == ("auto",) for path, other in job.settings("deepspeed")
        )
        if section and is_auto:
            yield passed(job.name)
            continue
        newest = load_table("deepspeed_keys").newest
        is_certain = section and applies and (nearest or in_range(version, "", newest) if version else nearest)
        yield failed(
            job.name,
            f"{quoted(claim)} is not a key of {section or 'a DeepSpeed configuration'}"
            f"{f'; {nearest} is probably meant' if nearest else ''}: {effect}{since}.",
            at=claim,
            remedy=f"Write `{nearest}`."
            if nearest
            else f"Remove it, or check whether your version of DeepSpeed has it ({claim.span.path}).",
            severity=None if is_certain else Severity.WARNING,
            fix=make_fix(f"rename {key} to {nearest}", replace_text(claim, key, nearest), safe=False)
            if nearest
            else None,
        )


@rule(
    "DSP002",
    "offload-without-its-stage",
    severity=Severity.WARNING,
    otherwise="no DeepSpeed configuration offloads anything",
)
def offload_without_its_stage(job: Job) -> Iterator[Verdict]:
    """Parameters or optimizer states are offloaded, but the ZeRO stage does not support it.

    What it checks: With a device for `offload_param` the stage is 3, and with a device for `offload_optimizer` it is 1
    to 3.

    Why it matters: The section has no effect and saves no GPU memory, or DeepSpeed stops.

    Example: `"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}`.

    Fix: `"stage": 3` to offload parameters, 1 to 3 to offload optimizer states; or remove the section.

    Known limits: The files do not show whether the stage or the offloading is intended.
    """
    for subject, scope, launch in subjects(job):
        for quantity, min_stage, part in (
            ("offload_param_device", 3, "parameters"),
            ("offload_optimizer_device", 1, "optimizer states"),
        ):
            devices = _deepspeed_claims(job, quantity, scope)
            if not devices or not all(text in ("cpu", "nvme") for text in texts(job_value(devices)) or ("",)):
                continue
            # An option of the program may give the stage.
            stages = _deepspeed_claims(job, "zero_stage", scope) or job.setting("zero_stage", scope)
            stage_numbers = numbers(job_value(stages)) if stages else (0,)
            verdict = undecided(subject, (*devices, *stages), launch)
            if verdict is None and stage_numbers and max(stage_numbers) < min_stage:
                stage_text = placed(stages[0]) if stages else "the default, stage 0,"
                verdict = failed(
                    subject,
                    f"{quoted(devices[0])} offloads {part} to host memory, but {stage_text} does not partition {part}:"
                    f" stage {min_stage if min_stage == 3 else '1 to 3'} does.",
                    at=devices[0],
                    also=tuple((c, "ZeRO stage") for c in stages[:1]),
                    remedy=f'Write `"stage": {max(min_stage, 2)}`, or remove the section.',
                )
            yield verdict or passed(subject)


def _deepspeed_claims(job: Job, quantity: str, scope: Scope) -> tuple[Claim, ...]:
    return tuple(c for c in job.setting(quantity, scope) if c.source == "deepspeed")


@rule(
    "DSP003",
    "zero-stage-beside-pipeline",
    severity=Severity.ERROR,
    profile="default",
    otherwise="no job uses both ZeRO and a pipeline",
    each=subjects_with(stated_by("deepspeed", "zero_stage"), "pipeline_parallel_size"),
)
def zero_stage_beside_pipeline(question: SubjectQuestion) -> Verdict | None:
    """ZeRO stage 2 or 3 is combined with DeepSpeed's pipeline parallelism.

    What it checks: In a gpt-neox configuration, or a launch of Megatron-DeepSpeed, ZeRO's stage is 0 or 1 if there is
    more than one pipeline stage.

    Why it matters: An assertion in DeepSpeed's pipeline engine fails at startup: partitioned gradients cannot be
    accumulated over the micro-batches of a pipeline.

    Example: `"pipe_parallel_size": 4` and `"zero_optimization": {"stage": 2}`.

    Fix: `"stage": 1`, or no pipeline.

    Known limits: Megatron-DeepSpeed with `--no-pipeline-parallel` is not reported. Other frameworks have their own
    pipelines.
    """
    stages, pipes = question.of
    zero_stages, pipeline_sizes = numbers(job_value(stages)), numbers(job_value(pipes))
    if (
        not zero_stages
        or not pipeline_sizes
        or min(zero_stages) < 2
        or min(pipeline_sizes) < 2
        or _has_no_pipeline(question.of.launch)
    ):
        return None
    return failed(
        question.subject,
        f"{quoted(stages[0])} is set together with {placed(pipes[0])}: DeepSpeed's pipeline supports only"
        f" stage 0 or 1.",
        at=stages[0],
        also=((pipes[0], "pipeline"),),
        remedy='Write `"stage": 1`, or remove the pipeline.',
        severity=None if pipes[0].source in ("gpt-neox", "arguments") else Severity.WARNING,
    )


def _has_no_pipeline(launch: Launch | None) -> bool:
    return launch is not None and "--no-pipeline-parallel" in launch.arguments


@rule(
    "DSP004",
    "deepspeed-key-renamed",
    severity=Severity.WARNING,
    otherwise="no DeepSpeed configuration is read",
    passes_with=("deepspeed_key",),
)
def deepspeed_key_renamed(job: Job) -> Iterator[Verdict]:
    """A DeepSpeed configuration uses a key that has a new name.

    What it checks: `zero_optimization` has no key that DeepSpeed accepts only with a warning: cpu_offload and similar,
    stage3_gather_fp16_weights_on_model_save. Without the new key, the finding is informational.

    Why it matters: Together with the new key, DeepSpeed fails at startup; alone, the old key works until it is removed.

    Example: `"zero_optimization": {"stage": 2, "cpu_offload": true}`.

    Fix: Use the new name.

    Known limits: Only keys that DeepSpeed itself marks as deprecated are reported.
    """
    keys = {(claim.span.path, text) for claim in job.about("deepspeed_key") for text in texts(claim.value)}
    yield from _unknown_key_verdicts(job)
    for section, key, claim in _section_and_key(job):
        new_name = _RENAMED_KEYS.get(f"{section}.{key}")
        if new_name is None:
            continue
        has_new_key = (
            claim.span.path,
            f"{section}.{new_name.split(chr(34))[1] if chr(34) in new_name else new_name.strip('`')}",
        ) in keys
        yield failed(
            job.name,
            f"{quoted(claim)} is an old name"
            + (
                f", and {new_name} is also set: DeepSpeed rejects the combination."
                if has_new_key
                else f": it is now {new_name}."
            ),
            at=claim,
            remedy=f"Write {new_name}." if not has_new_key else f"Remove {quoted(claim)}.",
            severity=None if has_new_key else Severity.INFO,
        )


@rule(
    "DSP005",
    "nvme-offload-without-path",
    severity=Severity.WARNING,
    otherwise="no DeepSpeed configuration offloads to NVMe",
)
def nvme_offload_without_path(job: Job) -> Iterator[Verdict]:
    """Parameters or optimizer states are offloaded to NVMe without a path.

    What it checks: A section of ZeRO stage 3 that offloads to `nvme` has an `nvme_path`, or a list of them for the
    local ranks.

    Why it matters: DeepSpeed joins the path with its own folder when it initializes the engine, and stops with a
    TypeError in every rank, after the model has been built.

    Example: `"offload_optimizer": {"device": "nvme"}`.

    Fix: `"nvme_path": "/local_nvme"`, a disk of the node itself.

    Known limits: Below stage 3 the optimizer is always offloaded to host memory, and nothing is reported.
    """
    keys = {(claim.span.path, text) for claim in job.about("deepspeed_key") for text in texts(claim.value)}
    for subject, scope, launch in subjects(job):
        for quantity, section in (
            ("offload_optimizer_device", "offload_optimizer"),
            ("offload_param_device", "offload_param"),
        ):
            devices = _deepspeed_claims(job, quantity, scope)
            if not devices or "nvme" not in (texts(job_value(devices)) or ("nvme",)):
                continue
            stages = _deepspeed_claims(job, "zero_stage", scope)
            names = {f"zero_optimization.{section}.{key}" for key in ("nvme_path", "nvme_path_per_local_rank")}
            path = devices[0].span.path
            if undecided_verdict := undecided(subject, (*devices, *stages), launch):
                yield undecided_verdict
            elif any((path, name) in keys for name in names) or 3 not in numbers(job_value(stages)):
                yield passed(subject)
            elif any(claim.span.path == path for claim in job.about("deepspeed_key")):
                yield failed(
                    subject,
                    f"{quoted(devices[0])} requires a path, but {section} lacks `nvme_path`, and DeepSpeed stops in "
                    "every rank.",
                    at=devices[0],
                    remedy='Add `"nvme_path"` with a folder on a local disk of each node.',
                )
