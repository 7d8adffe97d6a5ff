"""FSDP: settings that exclude each other or are misread."""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.model.findings import Severity
from preflight.model.job import Claim, Job, Known, Launch, Scope, Strength, Unresolved
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import placed, quoted, where
from preflight.plugins.questions import subjects

#: Values that accelerate 1.15 accepts (utils/constants.py); the old numbers count from 1.
_WORDS = {
    "fsdp_wrap_policy": ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"),
    "fsdp_sharding_strategy": ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"),
    "fsdp_state_dict_type": ("FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT"),
    "fsdp_backward_prefetch": ("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"),
}


def has_fsdp(job: Job, scope: Scope) -> bool:
    """Whether FSDP is used: a configuration of another distributed type may contain an unused FSDP section."""
    kinds = job.setting("distributed_type", scope)
    return (
        not kinds
        or any(text == "FSDP" for claim in kinds for text in texts(claim.value))
        or any(isinstance(claim.value, Unresolved) for claim in kinds)
    )


def only_claim(job: Job, quantity: str, scope: Scope) -> Claim | None:
    """The single claim that sets a quantity; None if there is none or several."""
    found = job.setting(quantity, scope)
    return found[0] if len(found) == 1 else None


def is_value(claim: Claim | None, value: object) -> bool:
    """Whether a claim certainly has this value."""
    return claim is not None and claim.value == Known(value)  # type: ignore[arg-type]


@rule(
    "FSD003",
    "fsdp-module-states-not-synchronised",
    severity=Severity.ERROR,
    otherwise="fsdp_sync_module_states is not set",
)
def fsdp_module_states_not_synchronised(job: Job) -> Iterator[Verdict]:
    """Only the first rank loads the weights, and they are not sent to the other ranks.

    What it checks: Where fsdp_cpu_ram_efficient_loading is on (Accelerate's default), fsdp_sync_module_states is not
    off.

    Why it matters: All ranks but the first would train on uninitialised memory, so Accelerate refuses to launch.

    Example: `fsdp_cpu_ram_efficient_loading: true` and `fsdp_sync_module_states: false`.

    Fix: Turn fsdp_sync_module_states on, or fsdp_cpu_ram_efficient_loading off.

    Known limits: If fsdp_cpu_ram_efficient_loading is not set, it is a warning, because its default has changed between
    versions; likewise with version 2 of FSDP, which does not need the setting.
    """
    for subject, scope, launch in subjects(job):
        synchronised, efficient = (
            only_claim(job, "fsdp_sync_module_states", scope),
            only_claim(job, "fsdp_cpu_ram_efficient_loading", scope),
        )
        if synchronised is None or not has_fsdp(job, scope):
            continue
        stated = tuple(claim for claim in (synchronised, efficient) if claim is not None)
        verdict = undecided(subject, stated, launch)
        if verdict is None and not (is_value(synchronised, True) or is_value(efficient, False)):
            mild = efficient is None or is_value(only_claim(job, "fsdp_version", scope), 2)
            other = quoted(efficient) if efficient is not None else "fsdp_cpu_ram_efficient_loading (on by default)"
            verdict = failed(
                subject,
                f"{quoted(synchronised)}, but {other} lets only the first rank load the weights: Accelerate refuses "
                "to launch.",
                at=synchronised,
                also=() if efficient is None else ((efficient, "only the first rank loads"),),
                remedy="Turn fsdp_sync_module_states on, or fsdp_cpu_ram_efficient_loading off.",
                severity=Severity.WARNING if mild else None,
            )
        yield verdict or passed(subject)


@rule("FSD004", "fsdp-setting-of-the-other-version", severity=Severity.WARNING, otherwise="fsdp_version is not set")
def fsdp_setting_of_the_other_version(job: Job) -> Iterator[Verdict]:
    """A setting of FSDP 1 is given together with `fsdp_version: 2`.

    What it checks: With version 2: fsdp_reshard_after_forward is true or false and not the name of a strategy,
    fsdp_state_dict_type is not LOCAL_STATE_DICT, and fsdp_sharding_strategy does not request anything other than full
    sharding.

    Why it matters: Version 2 stops on the first two. It ignores the strategy, so `SHARD_GRAD_OP`, `NO_SHARD` and
    `HYBRID_SHARD` shard everything.

    Example: `fsdp_version: 2` with `fsdp_sharding_strategy: HYBRID_SHARD`.

    Fix: Run `accelerate to-fsdp2`, or use fsdp_reshard_after_forward and parallelism_config.

    Known limits: Settings that version 2 ignores without consequences (fsdp_use_orig_params, fsdp_backward_prefetch)
    are accepted.
    """
    for subject, scope, launch in subjects(job):
        version = job.setting("fsdp_version", scope)
        if not version or not has_fsdp(job, scope):
            continue
        if undecided_verdict := undecided(subject, version, launch):
            yield undecided_verdict
            continue
        verdicts = list(_version_1_settings(job, subject, scope, version[0])) if is_value(version[0], 2) else []
        yield from verdicts or [passed(subject)]


def _version_1_settings(job: Job, subject: str, scope: Scope, version: Claim) -> Iterator[Verdict]:
    reshard = only_claim(job, "fsdp_reshard_after_forward", scope)
    if reshard is not None and all(text not in ("true", "false", "1", "0") for text in texts(reshard.value)):
        yield failed(
            subject,
            f"{quoted(reshard)} names a strategy, but with {placed(version)} it must be true or false: the "
            "launch stops.",
            at=reshard,
            also=((version, "version 2"),),
            remedy="Write `fsdp_reshard_after_forward: true` (shard again) or `false`.",
        )
    kind = only_claim(job, "fsdp_state_dict_type", scope)
    if is_value(kind, "LOCAL_STATE_DICT") and kind is not None:
        yield failed(
            subject,
            f"{quoted(kind)} does not exist with {placed(version)}: the launch stops.",
            at=kind,
            also=((version, "version 2"),),
            remedy="Write SHARDED_STATE_DICT or FULL_STATE_DICT.",
        )
    strategy = only_claim(job, "fsdp_sharding_strategy", scope)
    words = texts(strategy.value) if strategy is not None else ()
    if strategy is not None and strategy.strength > Strength.DEFAULT and words and "FULL_SHARD" not in words:
        yield failed(
            subject,
            f"{quoted(strategy)} is ignored with {placed(version)}: parameters are fully sharded.",
            at=strategy,
            also=((version, "version 2"),),
            remedy="Use fsdp_reshard_after_forward (false: SHARD_GRAD_OP) or parallelism_config (HYBRID_SHARD).",
        )


@rule(
    "FSD005",
    "activation-checkpointing-twice",
    severity=Severity.ERROR,
    otherwise="activation checkpointing is not set both for FSDP and for a trainer",
)
def activation_checkpointing_twice(job: Job) -> Iterator[Verdict]:
    """Activation checkpointing is on both in FSDP and in the trainer.

    What it checks: fsdp_activation_checkpointing and the trainer's gradient_checkpointing are not both on.

    Why it matters: Hugging Face's trainer rejects the two together; where a script combines them itself, every
    activation is computed a third time and gathered once more.

    Example: `fsdp_activation_checkpointing: true` with `--gradient_checkpointing True`.

    Fix: Turn the trainer's gradient_checkpointing off.

    Known limits: For a script that is not known to use Hugging Face's trainer it is a warning.
    """
    for subject, scope, launch in subjects(job):
        ours, theirs = (
            only_claim(job, "fsdp_activation_checkpointing", scope),
            only_claim(job, "gradient_checkpointing", scope),
        )
        if ours is None or theirs is None or not has_fsdp(job, scope):
            continue
        if undecided_verdict := undecided(subject, (ours, theirs), launch):
            yield undecided_verdict
        elif is_value(ours, True) and is_value(theirs, True):
            trained = any("transformers" in c.alternatives for c in job.about("training_framework", scope))
            if any("axolotl" in c.alternatives for c in job.about("training_framework", scope)):
                yield unknown(subject, "axolotl decides which of the two it uses", at=theirs)
                continue
            yield failed(
                subject,
                f"{quoted(theirs)} and {placed(ours)} both enable activation checkpointing; the trainer rejects"
                " this combination.",
                at=theirs,
                also=((ours, "FSDP's own"),),
                remedy="Turn the trainer's gradient_checkpointing off and leave it to FSDP.",
                severity=None if trained else Severity.WARNING,
            )
        else:
            yield passed(subject)


#: `fsdp_sharding_strategy: 3`.
_BARE_NUMBER = re.compile(r"[:=\s][\"']?[1-5][\"']?$")


#: Settings that version 2 of FSDP passes over.
_OF_FIRST = ("fsdp_sharding_strategy",)


@rule("FSD006", "fsdp-word-unknown-or-misread", severity=Severity.ERROR, otherwise="there is no FSDP setting")
def fsdp_word_unknown_or_misread(job: Job) -> Iterator[Verdict]:
    """An FSDP setting has an unknown value, or a number with another meaning than intended.

    What it checks: fsdp_auto_wrap_policy, fsdp_sharding_strategy, fsdp_state_dict_type and fsdp_backward_prefetch are
    words that Accelerate knows. `fsdp_sharding_strategy: 3` is NO_SHARD, not ZeRO stage 3.

    Why it matters: An unknown word stops every rank at startup. With NO_SHARD every GPU holds the whole model, its
    gradients and its optimizer.

    Example: `fsdp_sharding_strategy: 3`, or `fsdp_auto_wrap_policy: TRANSFORMER_WRAP`.

    Fix: Write FULL_SHARD for the equivalent of ZeRO stage 3, SHARD_GRAD_OP for stage 2.

    Known limits: The number 3 is a warning: it may be intended.
    """
    for subject, scope, launch in subjects(job):
        for quantity, words in _WORDS.items():
            for claim in job.setting(quantity, scope):
                if not has_fsdp(job, scope) or (quantity == "fsdp_sharding_strategy" and claim.source == "trainer"):
                    continue
                if quantity in _OF_FIRST and 2 in numbers(job_value(job.setting("fsdp_version", scope))):
                    yield passed(subject)
                    continue
                yield _word(subject, launch, claim, words)


def _word(subject: str, launch: Launch | None, claim: Claim, words: tuple[str, ...]) -> Verdict:
    if undecided_verdict := undecided(subject, (claim,), launch):
        return undecided_verdict
    found = texts(job_value((claim,)))
    if found and not set(found) & set(words):
        return failed(
            subject,
            f"{quoted(claim)} is not one of {', '.join(words)}: Accelerate stops.",
            at=claim,
            remedy=f"Write one of {', '.join(words)}.",
        )
    if found == ("NO_SHARD",) and _BARE_NUMBER.search(claim.spelling):
        return failed(
            subject,
            f"{quoted(claim)} means NO_SHARD (1 is FULL_SHARD, 2 SHARD_GRAD_OP), which shards nothing; it is not ZeRO"
            " stage 3.",
            at=claim,
            remedy="Write FULL_SHARD if parameters are to be sharded, else NO_SHARD.",
            severity=Severity.WARNING,
        )
    return passed(subject) if found else unknown(subject, f"{quoted(claim)} in {where(claim)} is not text", at=claim)
