"""Fully sharded data parallel: what becomes a unit, and settings that exclude each other."""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.job import Claim, Job, Known, Launch, Scope, Strength, Unresolved
from preflight.judgement import Verdict, failed, not_applicable, passed, rule, unknown
from preflight.outcome import Confidence, Severity
from preflight_rules.models import families_with, family_of, layers_of, main_layer
from preflight_rules.reading import job_value, placed, quoted, subjects, texts, undecided, where

_BY_CLASS = "TRANSFORMER_BASED_WRAP"
#: What accelerate 1.15 takes (utils/constants.py); numbers count from 1 and are words by now.
_WORDS = {
    "fsdp_wrap_policy": ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"),
    "fsdp_sharding_strategy": ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"),
    "fsdp_state_dict_type": ("FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT"),
    "fsdp_backward_prefetch": ("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"),
}


def _uses(job: Job, scope: Scope) -> bool:
    """Whether FSDP is really used: Accelerate's configuration may hold a section that another type leaves idle."""
    kinds = job.setting("distributed_type", scope)
    return (
        not kinds
        or any(text == "FSDP" for claim in kinds for text in texts(claim.value))
        or any(isinstance(claim.value, Unresolved) for claim in kinds)
    )


def _one(job: Job, quantity: str, scope: Scope) -> Claim | None:
    found = job.setting(quantity, scope)
    return found[0] if len(found) == 1 else None


def _is(claim: Claim | None, value: object) -> bool:
    return claim is not None and claim.value == Known(value)  # type: ignore[arg-type]


@rule(
    "FSD001",
    "fsdp-wrap-class-missing",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("hiyouga/LlamaFactory#8279",),
)
def wrap_class_missing(job: Job) -> Iterator[Verdict]:
    """Layers are to be wrapped by their class, and no class is named.

    What it checks:
        With fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP, fsdp_transformer_layer_cls_to_wrap names a class, or the
        model is one of a family that says itself which of its layers are kept whole.

    Why it matters:
        Accelerate then asks the model for its `_no_split_modules`. A model that has none (code of its own, an
        architecture of a hub repository) stops with "Could not find the transformer layer class to wrap in the model",
        or is wrapped as one unit, which holds all parameters on every GPU at once.

    Example:
        `fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP` as the only line about wrapping.

    Fix:
        Add `fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer`, with the class of the model's own layers.

    Known limits:
        Which model a configuration is for is known only where a launch names it, and then by its published name. For
        most models of the transformers library nothing needs to be named, so a launch is reported only where it lets
        the model bring code of its own (trust_remote_code), and a configuration alone only where it has no
        fsdp_cpu_ram_efficient_loading, which is for those models.

    Evidence:
        hiyouga/LlamaFactory#8279.
    """
    met = False
    for subject, scope, launch in subjects(job):
        policies = job.setting("fsdp_wrap_policy", scope)
        if not policies or not _uses(job, scope):
            continue
        met = True
        open_end = undecided(subject, policies, launch)
        if open_end is not None:
            yield open_end
        elif not _is(policies[0], _BY_CLASS) or job.about("fsdp_layer_classes", scope) or _names_own_layers(job, scope):
            yield passed(subject)
        elif launch is not None and not _trusts_remote_code(job, launch):
            yield unknown(subject, "which model it is for decides whether a class has to be named", at=policies[0])
        else:
            yield failed(
                subject,
                f"{quoted(policies[0])}, but fsdp_transformer_layer_cls_to_wrap names no class: a model that does not"
                " say itself which layers to keep whole (`_no_split_modules`) stops with 'Could not find the"
                " transformer layer class to wrap'.",
                at=policies[0],
                remedy="Add fsdp_transformer_layer_cls_to_wrap with the class of the model's layers, such as"
                " LlamaDecoderLayer.",
            )
    if not met:
        yield not_applicable(job.name, "nothing wraps layers by policy")


def _names_own_layers(job: Job, scope: Scope) -> bool:
    """Whether the model is one of the transformers library, which say themselves which layers are kept whole.

    fsdp_cpu_ram_efficient_loading works for those alone, so it says that it is one.
    """
    efficient = _is(_one(job, "fsdp_cpu_ram_efficient_loading", scope), True)
    return efficient or any(main_layer(family_of(text)) for text in _models(job, scope))


def _trusts_remote_code(job: Job, launch: Launch) -> bool:
    """Whether the model may be made by code that lies beside its weights."""
    given = any("trust_remote_code" in claim.alternatives for claim in job.about("trainer_argument", launch.scope))
    return given or any(word is not None and "trust_remote_code" in word for word in launch.arguments)


def _models(job: Job, scope: Scope) -> tuple[str, ...]:
    return tuple(text for claim in job.setting("model_name", scope) for text in texts(claim.value))


@rule(
    "FSD002",
    "fsdp-wrap-class-of-another-model",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("netease-youdao/BCEmbedding#66",),
)
def wrap_class_of_another_model(job: Job) -> Iterator[Verdict]:
    """The layer class to wrap belongs to another family of models than the model that is trained.

    What it checks:
        Where both the model and the class are known: the family of the model has a layer class of that name, in this
        spelling (LlamaDecoderLayer was LLaMADecoderLayer once).

    Why it matters:
        Accelerate looks the class up in the model, does not find it, and stops with "Could not find the transformer
        layer class to wrap in the model", after the weights have been loaded.

    Example:
        `fsdp_transformer_layer_cls_to_wrap: BertLayer` with `--model_name_or_path xlm-roberta-base`.

    Fix:
        Name the model's own class, here XLMRobertaLayer, or leave the key out: the models of the transformers library
        say themselves which layers to keep whole.

    Known limits:
        The model's family is told by its published name (preflight_rules/data/models.toml); a local path with another
        name tells nothing.

    Evidence:
        netease-youdao/BCEmbedding#66.
    """
    met = False
    for subject, scope, launch in subjects(job):
        classes, named = job.setting("fsdp_layer_classes", scope), job.setting("model_name", scope)
        if not classes or not named or not _uses(job, scope):
            continue
        met = True
        open_end = undecided(subject, (*classes, *named), launch)
        if open_end is not None:
            yield open_end
            continue
        families = {family_of(text) for text in _models(job, scope)}
        wanted = sorted({name for claim in classes for item in claim.alternatives for name in _members(item)})
        wrong = next((name for name in wanted if _belongs_to_others(name, families)), "")
        if not wrong or "" in families:
            yield passed(subject)
            continue
        family = min(families)
        right, owners = main_layer(family), " or ".join(sorted(families_with(wrong)))
        whose = f"{wrong} is a class of {owners} models" if owners else f"no model has a class {wrong}"
        yield failed(
            subject,
            f"{quoted(classes[0])}: {whose}, and {placed(named[0])} is a {family} model"
            + (f", whose layers are {right}." if right else "."),
            at=classes[0],
            also=((named[0], "the model"),),
            remedy=f"Write {right}, or leave the setting out." if right else "Leave the setting out.",
        )
    if not met:
        yield not_applicable(job.name, "no launch says both a model and the layer class to wrap")


def _belongs_to_others(name: str, families: set[str]) -> bool:
    """Whether a layer class is another family's, or a misspelling of one of this family's (`LLaMADecoderLayer`)."""
    owners = families_with(name)
    if owners:
        return not owners & families
    return any(name.lower() == layer.lower() for family in families for layer in layers_of(family))


def _members(item: object) -> tuple[str, ...]:
    return tuple(str(name) for name in item) if isinstance(item, tuple) else (str(item),)


@rule(
    "FSD003",
    "fsdp-module-states-not-synchronised",
    severity=Severity.ERROR,
    profile="gate",
    evidence=("https://huggingface.co/docs/accelerate/usage_guides/fsdp",),
)
def module_states_not_synchronised(job: Job) -> Iterator[Verdict]:
    """Only the first rank is to load the weights, and they are not to be sent to the others.

    What it checks:
        Where fsdp_cpu_ram_efficient_loading is on (Accelerate's default), fsdp_sync_module_states is not off.

    Why it matters:
        All ranks but the first would train on uninitialised memory; Accelerate refuses to launch.

    Example:
        `fsdp_cpu_ram_efficient_loading: true` and `fsdp_sync_module_states: false`.

    Fix:
        Turn fsdp_sync_module_states on, or fsdp_cpu_ram_efficient_loading off.

    Known limits:
        Where fsdp_cpu_ram_efficient_loading is not written down it is a warning, because its default has changed
        between versions; so it is with version 2 of FSDP, which does not need the setting.

    Evidence:
        Accelerate's guide to FSDP (fsdp_cpu_ram_efficient_loading needs fsdp_sync_module_states).
    """
    met = False
    for subject, scope, launch in subjects(job):
        synchronised, efficient = (
            _one(job, "fsdp_sync_module_states", scope),
            _one(job, "fsdp_cpu_ram_efficient_loading", scope),
        )
        if synchronised is None or not _uses(job, scope):
            continue
        met = True
        said = tuple(claim for claim in (synchronised, efficient) if claim is not None)
        open_end = undecided(subject, said, launch)
        if open_end is not None:
            yield open_end
        elif _is(synchronised, True) or _is(efficient, False):
            yield passed(subject)
        else:
            mild = efficient is None or _is(_one(job, "fsdp_version", scope), 2)
            other = quoted(efficient) if efficient is not None else "fsdp_cpu_ram_efficient_loading (on by default)"
            yield failed(
                subject,
                f"{quoted(synchronised)}, but {other} lets only the first rank load the weights: Accelerate refuses to"
                " launch.",
                at=synchronised,
                also=() if efficient is None else ((efficient, "only the first rank loads"),),
                remedy="Turn fsdp_sync_module_states on, or fsdp_cpu_ram_efficient_loading off.",
                severity=Severity.WARNING if mild else None,
            )
    if not met:
        yield not_applicable(job.name, "nothing says whether module states are synchronised")


@rule(
    "FSD004",
    "fsdp-setting-of-the-other-version",
    severity=Severity.WARNING,
    evidence=("https://huggingface.co/docs/accelerate/concept_guides/fsdp1_vs_fsdp2",),
)
def setting_of_the_other_version(job: Job) -> Iterator[Verdict]:
    """A setting of FSDP 1 stands beside `fsdp_version: 2`.

    What it checks:
        With version 2: fsdp_reshard_after_forward is true or false and not the name of a strategy,
        fsdp_state_dict_type is not LOCAL_STATE_DICT, and fsdp_sharding_strategy does not ask for something other than
        full sharding.

    Why it matters:
        Version 2 stops at the first two. It never looks at the strategy, so `SHARD_GRAD_OP`, `NO_SHARD` and
        `HYBRID_SHARD` shard everything all the same.

    Example:
        `fsdp_version: 2` with `fsdp_sharding_strategy: HYBRID_SHARD`.

    Fix:
        Run `accelerate to-fsdp2`, or say it by fsdp_reshard_after_forward and parallelism_config.

    Known limits:
        Settings that version 2 ignores without a difference (fsdp_use_orig_params, fsdp_backward_prefetch) are let
        through.

    Evidence:
        Accelerate's comparison of FSDP 1 and 2.
    """
    met = False
    for subject, scope, launch in subjects(job):
        version = job.setting("fsdp_version", scope)
        if not version or not _uses(job, scope):
            continue
        met = True
        open_end = undecided(subject, version, launch)
        if open_end is not None:
            yield open_end
            continue
        verdicts = list(_of_version_1(job, subject, scope, version[0])) if _is(version[0], 2) else []
        yield from verdicts or [passed(subject)]
    if not met:
        yield not_applicable(job.name, "nothing says a version of FSDP")


def _of_version_1(job: Job, subject: str, scope: Scope, version: Claim) -> Iterator[Verdict]:
    reshard = _one(job, "fsdp_reshard_after_forward", scope)
    if reshard is not None and all(text not in ("true", "false", "1", "0") for text in texts(reshard.value)):
        yield failed(
            subject,
            f"{quoted(reshard)} names a strategy, but with {placed(version)} it is true or false: the launch stops.",
            at=reshard,
            also=((version, "version 2"),),
            remedy="Write `fsdp_reshard_after_forward: true` (shard again) or `false`.",
        )
    kind = _one(job, "fsdp_state_dict_type", scope)
    if _is(kind, "LOCAL_STATE_DICT") and kind is not None:
        yield failed(
            subject,
            f"{quoted(kind)} does not exist with {placed(version)}: the launch stops.",
            at=kind,
            also=((version, "version 2"),),
            remedy="Write SHARDED_STATE_DICT or FULL_STATE_DICT.",
        )
    strategy = _one(job, "fsdp_sharding_strategy", scope)
    words = texts(strategy.value) if strategy is not None else ()
    if strategy is not None and strategy.strength > Strength.DEFAULT and words and "FULL_SHARD" not in words:
        yield failed(
            subject,
            f"{quoted(strategy)} is not looked at with {placed(version)}: parameters are fully sharded.",
            at=strategy,
            also=((version, "version 2"),),
            remedy="Say it by fsdp_reshard_after_forward (false: SHARD_GRAD_OP) or parallelism_config (HYBRID_SHARD).",
        )


@rule(
    "FSD005",
    "activation-checkpointing-twice",
    severity=Severity.ERROR,
    profile="gate",
    evidence=("huggingface/transformers#30404", "https://huggingface.co/docs/transformers/fsdp"),
)
def activation_checkpointing_twice(job: Job) -> Iterator[Verdict]:
    """Both FSDP and the trainer are told to compute activations again.

    What it checks:
        fsdp_activation_checkpointing and the trainer's gradient_checkpointing are not both on.

    Why it matters:
        Hugging Face's trainer refuses the two together; where a script combines them itself, every activation is
        computed a third time and gathered once more.

    Example:
        `fsdp_activation_checkpointing: true` with `--gradient_checkpointing True`.

    Fix:
        Turn the trainer's gradient_checkpointing off.

    Known limits:
        For a script that is not known to use Hugging Face's trainer it is a warning.

    Evidence:
        transformers' guide to FSDP; huggingface/transformers#30404.
    """
    met = False
    for subject, scope, launch in subjects(job):
        ours, theirs = _one(job, "fsdp_activation_checkpointing", scope), _one(job, "gradient_checkpointing", scope)
        if ours is None or theirs is None or not _uses(job, scope):
            continue
        met = True
        open_end = undecided(subject, (ours, theirs), launch)
        if open_end is not None:
            yield open_end
        elif _is(ours, True) and _is(theirs, True):
            trained = any("transformers" in c.alternatives for c in job.about("training_framework", scope))
            if any("axolotl" in c.alternatives for c in job.about("training_framework", scope)):
                yield unknown(subject, "axolotl decides which of the two it uses", at=theirs)
                continue
            yield failed(
                subject,
                f"{quoted(theirs)} and {placed(ours)} both compute activations again; the trainer refuses the two"
                " together.",
                at=theirs,
                also=((ours, "FSDP's own"),),
                remedy="Turn the trainer's gradient_checkpointing off and leave it to FSDP.",
                severity=None if trained else Severity.WARNING,
            )
        else:
            yield passed(subject)
    if not met:
        yield not_applicable(job.name, "activation checkpointing is not said of both FSDP and a trainer")


#: `fsdp_sharding_strategy: 3`.
_BARE_NUMBER = re.compile(r"[:=\s][\"']?[1-5][\"']?$")


@rule(
    "FSD006",
    "fsdp-word-unknown-or-misread",
    severity=Severity.ERROR,
    profile="gate",
    evidence=("netease-youdao/BCEmbedding#66", "https://huggingface.co/docs/accelerate/usage_guides/fsdp"),
)
def word_unknown_or_misread(job: Job) -> Iterator[Verdict]:
    """A setting of FSDP holds a word that nothing understands, or a number that means something else.

    What it checks:
        fsdp_auto_wrap_policy, fsdp_sharding_strategy, fsdp_state_dict_type and fsdp_backward_prefetch are words that
        Accelerate knows. `fsdp_sharding_strategy: 3` is NO_SHARD, not ZeRO stage 3.

    Why it matters:
        An unknown word stops every rank at start. With NO_SHARD every GPU holds the whole model, its gradients and its
        optimizer.

    Example:
        `fsdp_sharding_strategy: 3`, or `fsdp_auto_wrap_policy: TRANSFORMER_WRAP`.

    Fix:
        Write FULL_SHARD for what ZeRO stage 3 does, SHARD_GRAD_OP for stage 2.

    Known limits:
        The number 3 is a warning: it may be meant.

    Evidence:
        netease-youdao/BCEmbedding#66 (the number 3); Accelerate's guide to FSDP lists the words.
    """
    met = False
    for subject, scope, launch in subjects(job):
        for quantity, words in _WORDS.items():
            for claim in job.setting(quantity, scope):
                if not _uses(job, scope) or (quantity == "fsdp_sharding_strategy" and claim.source == "trainer"):
                    continue
                met = True
                yield _word(subject, launch, quantity, claim, words)
    if not met:
        yield not_applicable(job.name, "nothing is said of FSDP")


def _word(subject: str, launch: Launch | None, quantity: str, claim: Claim, words: tuple[str, ...]) -> Verdict:
    open_end = undecided(subject, (claim,), launch)
    if open_end is not None:
        return open_end
    found = texts(job_value((claim,)))
    if found and not set(found) & set(words):
        return failed(
            subject,
            f"{quoted(claim)} is none of {', '.join(words)}: Accelerate stops.",
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
    return passed(subject) if found else unknown(subject, f"{quoted(claim)} in {where(claim)} is no word", at=claim)
