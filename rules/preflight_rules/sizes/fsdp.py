"""FSDP: settings that are incompatible or misread, and the layer classes that become units."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Known, Launch, Scope, Strength, Unresolved
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import placed, quoted, where
from preflight.plugins.questions import Stated, SubjectQuestion, subjects, subjects_with
from preflight.sources.tables import load_table
from preflight_rules.data_tables import models

#: Values that accelerate 1.15 accepts (utils/constants.py); the old numbers count from 1.
_CHOICES = {
    "fsdp_wrap_policy": ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"),
    "fsdp_sharding_strategy": ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"),
    "fsdp_state_dict_type": ("FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT"),
    "fsdp_backward_prefetch": ("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"),
}


def has_fsdp(job: Job, scope: Scope) -> bool:
    """Return whether FSDP may be used. A configuration of another distributed type may have an unused FSDP section."""
    kinds = job.setting("distributed_type", scope)
    return (
        not kinds
        or any(text == "FSDP" for claim in kinds for text in texts(claim.value))
        or any(isinstance(claim.value, Unresolved) for claim in kinds)
    )


def only_claim(job: Job, quantity: str, scope: Scope) -> Claim | None:
    """Return the only claim that sets a quantity; None if no claim or several claims set it."""
    claims = job.setting(quantity, scope)
    return claims[0] if len(claims) == 1 else None


def is_value(claim: Claim | None, value: object) -> bool:
    """Return whether a claim certainly has this value."""
    return claim is not None and claim.value == Known(value)  # type: ignore[arg-type]


@rule(
    "FSD003",
    "fsdp-module-states-not-synchronised",
    severity=Severity.ERROR,
    otherwise="fsdp_sync_module_states is not set",
)
def fsdp_module_states_not_synchronised(job: Job) -> Iterator[Verdict]:
    """Only the first rank loads the weights, and they are not sent to the other ranks.

    What it checks: If fsdp_cpu_ram_efficient_loading is enabled (Accelerate's default), fsdp_sync_module_states is not
    disabled.

    Why it matters: All ranks but the first would train on uninitialized memory, so Accelerate refuses to launch.

    Example: `fsdp_cpu_ram_efficient_loading: true` and `fsdp_sync_module_states: false`.

    Fix: Enable fsdp_sync_module_states, or disable fsdp_cpu_ram_efficient_loading.

    Known limits: If fsdp_cpu_ram_efficient_loading is not set, the finding is a warning, because its default has
    changed between versions; likewise with FSDP version 2, which does not need the setting.
    """
    for subject, scope, launch in subjects(job):
        sync, loading = (
            only_claim(job, "fsdp_sync_module_states", scope),
            only_claim(job, "fsdp_cpu_ram_efficient_loading", scope),
        )
        if sync is None or not has_fsdp(job, scope):
            continue
        claims = tuple(claim for claim in (sync, loading) if claim is not None)
        verdict = undecided(subject, claims, launch)
        if verdict is None and not (is_value(sync, True) or is_value(loading, False)):
            is_mild = loading is None or is_value(only_claim(job, "fsdp_version", scope), 2)
            loading_text = (
                quoted(loading) if loading is not None else ("fsdp_cpu_ram_efficient_loading (enabled by default)")
            )
            verdict = failed(
                subject,
                f"{quoted(sync)}, but {loading_text} makes only the first rank load the weights: Accelerate refuses "
                "to launch.",
                at=sync,
                also=() if loading is None else ((loading, "only the first rank loads"),),
                remedy="Enable fsdp_sync_module_states, or disable fsdp_cpu_ram_efficient_loading.",
                severity=Severity.WARNING if is_mild else None,
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
            remedy="Write `fsdp_reshard_after_forward: true` (reshard) or `false`.",
        )
    kind = only_claim(job, "fsdp_state_dict_type", scope)
    if is_value(kind, "LOCAL_STATE_DICT") and kind is not None:
        yield failed(
            subject,
            f"{quoted(kind)} is not supported with {placed(version)}: the launch stops.",
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
            remedy="For SHARD_GRAD_OP set fsdp_reshard_after_forward: false; for HYBRID_SHARD use parallelism_config.",
        )


@rule(
    "FSD005",
    "activation-checkpointing-twice",
    severity=Severity.ERROR,
    otherwise="activation checkpointing is not set both for FSDP and for a trainer",
)
def activation_checkpointing_twice(job: Job) -> Iterator[Verdict]:
    """Activation checkpointing is enabled both in FSDP and in the trainer.

    What it checks: fsdp_activation_checkpointing and the trainer's gradient_checkpointing are not both enabled.

    Why it matters: Hugging Face's trainer rejects the two together; if a script combines them itself, every activation
    is computed a third time and gathered again.

    Example: `fsdp_activation_checkpointing: true` with `--gradient_checkpointing True`.

    Fix: Disable the trainer's gradient_checkpointing.

    Known limits: For a script that is not known to use Hugging Face's trainer it is a warning.
    """
    for subject, scope, launch in subjects(job):
        fsdp_claim, trainer_claim = (
            only_claim(job, "fsdp_activation_checkpointing", scope),
            only_claim(job, "gradient_checkpointing", scope),
        )
        if fsdp_claim is None or trainer_claim is None or not has_fsdp(job, scope):
            continue
        if undecided_verdict := undecided(subject, (fsdp_claim, trainer_claim), launch):
            yield undecided_verdict
        elif is_value(fsdp_claim, True) and is_value(trainer_claim, True):
            uses_trainer = any("transformers" in c.alternatives for c in job.about("training_framework", scope))
            if any("axolotl" in c.alternatives for c in job.about("training_framework", scope)):
                yield unknown(subject, "axolotl decides which of the two it uses", at=trainer_claim)
                continue
            yield failed(
                subject,
                f"{quoted(trainer_claim)} and {placed(fsdp_claim)} both enable activation checkpointing; the trainer"
                " rejects this combination.",
                at=trainer_claim,
                also=((fsdp_claim, "FSDP's own"),),
                remedy="Disable the trainer's gradient_checkpointing and use FSDP's.",
                severity=None if uses_trainer else Severity.WARNING,
            )
        else:
            yield passed(subject)


#: `fsdp_sharding_strategy: 3`.
_BARE_NUMBER = re.compile(r"[:=\s][\"']?[1-5][\"']?$")


#: Settings that FSDP version 2 ignores.
_VERSION_1_SETTINGS = ("fsdp_sharding_strategy",)


@rule("FSD006", "fsdp-word-unknown-or-misread", severity=Severity.ERROR, otherwise="the job has no FSDP setting")
def fsdp_word_unknown_or_misread(job: Job) -> Iterator[Verdict]:
    """An FSDP setting has an unknown value, or a number that does not mean what was intended.

    What it checks: fsdp_auto_wrap_policy, fsdp_sharding_strategy, fsdp_state_dict_type and fsdp_backward_prefetch are
    words that Accelerate knows. `fsdp_sharding_strategy: 3` is NO_SHARD, not ZeRO stage 3.

    Why it matters: An unknown word stops every rank at startup. With NO_SHARD every GPU holds the whole model, its
    gradients and its optimizer.

    Example: `fsdp_sharding_strategy: 3`, or `fsdp_auto_wrap_policy: TRANSFORMER_WRAP`.

    Fix: Write FULL_SHARD for the equivalent of ZeRO stage 3, SHARD_GRAD_OP for stage 2.

    Known limits: The number 3 is a warning, because it may be intended.
    """
    for subject, scope, launch in subjects(job):
        for quantity, words in _CHOICES.items():
            for claim in job.setting(quantity, scope):
                if not has_fsdp(job, scope) or (quantity == "fsdp_sharding_strategy" and claim.source == "trainer"):
                    continue
                if quantity in _VERSION_1_SETTINGS and 2 in numbers(job_value(job.setting("fsdp_version", scope))):
                    yield passed(subject)
                    continue
                yield _word_verdict(subject, launch, claim, words)


def _word_verdict(subject: str, launch: Launch | None, claim: Claim, words: tuple[str, ...]) -> Verdict:
    if undecided_verdict := undecided(subject, (claim,), launch):
        return undecided_verdict
    values = texts(job_value((claim,)))
    if values and not set(values) & set(words):
        return failed(
            subject,
            f"{quoted(claim)} is not one of {', '.join(words)}: Accelerate stops.",
            at=claim,
            remedy=f"Write one of {', '.join(words)}.",
        )
    if values == ("NO_SHARD",) and _BARE_NUMBER.search(claim.spelling):
        return failed(
            subject,
            f"{quoted(claim)} means NO_SHARD (1 is FULL_SHARD, 2 SHARD_GRAD_OP), which shards nothing; it is not ZeRO"
            " stage 3.",
            at=claim,
            remedy="Write FULL_SHARD to shard the parameters, or NO_SHARD.",
            severity=Severity.WARNING,
        )
    return (
        passed(subject) if values else unknown(subject, f"{quoted(claim)} in {where(claim)} is not a string", at=claim)
    )


_CLASS_POLICY = "TRANSFORMER_BASED_WRAP"


def _uses_fsdp(stated: Stated[Launch | None]) -> bool:
    return has_fsdp(stated.job, stated.scope)


@rule(
    "FSD001",
    "fsdp-wrap-class-missing",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no FSDP policy wraps layers by class",
    each=subjects_with("fsdp_wrap_policy", where=_uses_fsdp),
)
def fsdp_wrap_class_missing(question: SubjectQuestion) -> Verdict | None:
    """FSDP wraps layers by class, but no class is named.

    What it checks: With fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP, fsdp_transformer_layer_cls_to_wrap names a class,
    or the model's family defines the layers that are kept whole.

    Why it matters: Accelerate then asks the model for its `_no_split_modules`. A model without them (custom code, an
    architecture from a hub repository) stops with "Could not find the transformer layer class to wrap in the model", or
    is wrapped as one unit, which keeps all parameters on every GPU at the same time.

    Example: `fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP` as the only wrapping setting.

    Fix: Add `fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer`, with the class of the model's own layers.

    Known limits: With fsdp_version 2 no class is required. The model of a configuration is known only if a launch gives
    its published name. Most models of the transformers library need no class, so a launch is reported only if it lets
    the model use its own code (trust_remote_code), and a configuration without a launch only if it lacks
    fsdp_cpu_ram_efficient_loading, which works only with those models.
    """
    policies = question.claims
    job, scope, launch = question.of.job, question.of.scope, question.of.launch
    if (
        not is_value(policies[0], _CLASS_POLICY)
        or job.about("fsdp_layer_classes", scope)
        or _names_own_layers(job, scope)
    ):
        return None
    if is_value(only_claim(job, "fsdp_version", scope), 2):
        return None
    if launch is not None and not _trusts_remote_code(job, launch):
        reason = "whether a layer class is needed depends on the model, which is unknown"
        return unknown(question.subject, reason, at=policies[0])
    return failed(
        question.subject,
        f"{quoted(policies[0])}, but fsdp_transformer_layer_cls_to_wrap names no class: a model that does"
        " not define which layers to keep whole (`_no_split_modules`) stops with 'Could not find the"
        " transformer layer class to wrap'.",
        at=policies[0],
        remedy="Add fsdp_transformer_layer_cls_to_wrap with the class of the model's layers, such as"
        " LlamaDecoderLayer.",
    )


def _names_own_layers(job: Job, scope: Scope) -> bool:
    """Return whether the model is from the transformers library, whose models define which layers are kept whole.

    fsdp_cpu_ram_efficient_loading works only with these models, so a configuration with it is for such a model.
    """
    loads_efficiently = is_value(only_claim(job, "fsdp_cpu_ram_efficient_loading", scope), True)
    return loads_efficiently or any(main_layer(family_of(text)) for text in _known_models(job, scope))


def _trusts_remote_code(job: Job, launch: Launch) -> bool:
    """Return whether the model may use code that comes with its weights."""
    in_file = any("trust_remote_code" in claim.alternatives for claim in job.about("trainer_argument", launch.scope))
    return in_file or any(word is not None and "trust_remote_code" in word for word in launch.arguments)


def _known_models(job: Job, scope: Scope) -> tuple[str, ...]:
    return tuple(text for claim in job.setting("model_name", scope) for text in texts(claim.value))


@rule(
    "FSD002",
    "fsdp-wrap-class-of-another-model",
    severity=Severity.ERROR,
    profile="default",
    otherwise="no launch specifies both a model and the layer class to wrap",
    each=subjects_with("fsdp_layer_classes", "model_name", where=_uses_fsdp),
)
def fsdp_wrap_class_of_another_model(question: SubjectQuestion) -> Verdict | None:
    """The layer class to wrap belongs to a model family other than the trained model's.

    What it checks: If both the model and the class are known, the model's family has a layer class with exactly that
    name (LlamaDecoderLayer was once LLaMADecoderLayer).

    Why it matters: Accelerate looks for the class in the model, does not find it, and stops with "Could not find the
    transformer layer class to wrap in the model", after the weights have been loaded.

    Example: `fsdp_transformer_layer_cls_to_wrap: BertLayer` with `--model_name_or_path xlm-roberta-base`.

    Fix: Name the model's own class, here XLMRobertaLayer, or remove the key: the models of the transformers library
    define which layers to keep whole.

    Known limits: The model's family is identified by its published name (preflight_rules/data/models.toml); a local
    path with another name does not identify it.
    """
    classes, models = question.of
    families = {family_of(text) for text in _known_models(question.of.job, question.of.scope)}
    layer_names = sorted({name for claim in classes for item in claim.alternatives for name in _names(item)})
    foreign = [name for name in layer_names if _is_foreign_class(name, families)]
    foreign_class = foreign[0] if foreign else ""
    # Accelerate needs every class; of the classes that a script lists, one of the model's is enough.
    has_match = classes[0].source == "python" and len(foreign) < len(layer_names)
    if not foreign_class or has_match or "" in families:
        return None
    family = min(families)
    layer, owners = main_layer(family), " or ".join(sorted(families_with(foreign_class)))
    whose = (
        f"{foreign_class} is a class of {owners} models" if owners else (f"no known model has a class {foreign_class}")
    )
    return failed(
        question.subject,
        f"{quoted(classes[0])}: {whose}, and {placed(models[0])} is a {family} model"
        + (f", whose layers are {layer}." if layer else "."),
        at=classes[0],
        also=((models[0], "the model"),),
        remedy=f"Write {layer}, or remove the setting." if layer else "Remove the setting.",
    )


def _is_foreign_class(name: str, families: set[str]) -> bool:
    """Return whether a layer class belongs to another family, or misspells a class of these (`LLaMADecoderLayer`)."""
    owners = families_with(name)
    if owners:
        return not owners & families
    return any(name.lower() == layer.lower() for family in families for layer in layers_of(family))


def _names(item: object) -> tuple[str, ...]:
    return tuple(str(name) for name in item) if isinstance(item, tuple) else (str(item),)


#: Longer texts are not names.
_MAX_NAME_LENGTH = 200


@functools.lru_cache(maxsize=256)
def family_of(name: str) -> str:
    """Return the family of a model by its published name (`meta-llama/Llama-2-7b-hf`); empty if the name is unknown."""
    last = name.rstrip("/").rpartition("/")[2].lower()[:_MAX_NAME_LENGTH]
    return next((family for pattern, family in models() if re.search(pattern, last)), "")


@functools.cache
def layers_of(family: str) -> tuple[str, ...]:
    """Return the layer classes of a family that FSDP wraps as units, the repeated one last."""
    return tuple(row.dest for row in load_table("transformer_layers").rows if row.kind == family)


@functools.cache
def families_with(layer: str) -> frozenset[str]:
    """Return the families that have a layer class of this name; empty for an unknown class."""
    return frozenset(row.kind for row in load_table("transformer_layers").rows if row.dest == layer)


def main_layer(family: str) -> str:
    """Return the class of the layers that make up most of a model of this family; empty if it is unknown."""
    return next((name for name in layers_of(family) if name.endswith(("Layer", "Block"))), "")
