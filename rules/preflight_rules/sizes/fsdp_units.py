"""FSDP: the layer classes that become units."""

from __future__ import annotations

import functools
import re

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Job, Launch, Scope
from preflight.model.job.value import texts
from preflight.plugins.authoring import Verdict, failed, rule, unknown
from preflight.plugins.claim_text import placed, quoted
from preflight.plugins.questions import Stated, SubjectQuestion, subjects_with
from preflight.sources.tables import load_table
from preflight_rules.data_tables import models
from preflight_rules.sizes.fsdp import has_fsdp, is_value, only_claim

_BY_CLASS = "TRANSFORMER_BASED_WRAP"


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

    Why it matters: Accelerate then asks the model for its `_no_split_modules`. A model that has none (custom code, an
    architecture from a hub repository) stops with "Could not find the transformer layer class to wrap in the model", or
    is wrapped as one unit, which holds all parameters on every GPU at once.

    Example: `fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP` as the only line about wrapping.

    Fix: Add `fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer`, with the class of the model's own layers.

    Known limits: With fsdp_version 2 nothing has to be named. The model of a configuration is known only where a launch
    names it by its published name. For most models of the transformers library nothing needs to be named, so a launch
    is reported only where it lets the model use its own code (trust_remote_code), and a configuration without a launch
    only where it lacks fsdp_cpu_ram_efficient_loading, which works only with those models.
    """
    policies = question.claims
    job, scope, launch = question.of.job, question.of.scope, question.of.launch
    if not is_value(policies[0], _BY_CLASS) or job.about("fsdp_layer_classes", scope) or _names_own_layers(job, scope):
        return None
    if is_value(only_claim(job, "fsdp_version", scope), 2):
        return None
    if launch is not None and not _trusts_remote_code(job, launch):
        why = "whether a class is needed depends on the model, which is unknown"
        return unknown(question.subject, why, at=policies[0])
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
    """Whether the model is one of the transformers library, whose models define which layers are kept whole.

    fsdp_cpu_ram_efficient_loading works only with those models, so its presence proves it.
    """
    efficient = is_value(only_claim(job, "fsdp_cpu_ram_efficient_loading", scope), True)
    return efficient or any(main_layer(family_of(text)) for text in _models(job, scope))


def _trusts_remote_code(job: Job, launch: Launch) -> bool:
    """Whether the model may use code that comes with its weights."""
    given = any("trust_remote_code" in claim.alternatives for claim in job.about("trainer_argument", launch.scope))
    return given or any(word is not None and "trust_remote_code" in word for word in launch.arguments)


def _models(job: Job, scope: Scope) -> tuple[str, ...]:
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
    """The layer class to wrap belongs to a different model family from the trained model's.

    What it checks: If both the model and the class are known: the family of the model has a layer class of that name,
    in this spelling (LlamaDecoderLayer was once LLaMADecoderLayer).

    Why it matters: Accelerate looks the class up in the model, does not find it, and stops with "Could not find the
    transformer layer class to wrap in the model", after the weights have been loaded.

    Example: `fsdp_transformer_layer_cls_to_wrap: BertLayer` with `--model_name_or_path xlm-roberta-base`.

    Fix: Name the model's own class, here XLMRobertaLayer, or leave the key out: the models of the transformers library
    define which layers to keep whole.

    Known limits: The model's family is identified by its published name (preflight_rules/data/models.toml); a local
    path with another name does not identify it.
    """
    classes, named = question.of
    families = {family_of(text) for text in _models(question.of.job, question.of.scope)}
    wanted = sorted({name for claim in classes for item in claim.alternatives for name in _members(item)})
    foreign = [name for name in wanted if _is_foreign_class(name, families)]
    wrong = foreign[0] if foreign else ""
    # Accelerate looks for each name; of the classes that a script lists, one that fits is enough.
    fits = classes[0].source == "python" and len(foreign) < len(wanted)
    if not wrong or fits or "" in families:
        return None
    family = min(families)
    right, owners = main_layer(family), " or ".join(sorted(families_with(wrong)))
    whose = f"{wrong} is a class of {owners} models" if owners else f"no model has a class {wrong}"
    return failed(
        question.subject,
        f"{quoted(classes[0])}: {whose}, and {placed(named[0])} is a {family} model"
        + (f", whose layers are {right}." if right else "."),
        at=classes[0],
        also=((named[0], "the model"),),
        remedy=f"Write {right}, or remove the setting." if right else "Remove the setting.",
    )


def _is_foreign_class(name: str, families: set[str]) -> bool:
    """Whether a layer class belongs to another family, or misspells one of this family (`LLaMADecoderLayer`)."""
    owners = families_with(name)
    if owners:
        return not owners & families
    return any(name.lower() == layer.lower() for family in families for layer in layers_of(family))


def _members(item: object) -> tuple[str, ...]:
    return tuple(str(name) for name in item) if isinstance(item, tuple) else (str(item),)


#: Longer texts are not names.
_MAX_NAME_LENGTH = 200


@functools.lru_cache(maxsize=256)
def family_of(name: str) -> str:
    """The family of a model by its published name (`meta-llama/Llama-2-7b-hf`); empty if the name does not show it."""
    last = name.rstrip("/").rpartition("/")[2].lower()[:_MAX_NAME_LENGTH]
    return next((family for pattern, family in models() if re.search(pattern, last)), "")


@functools.cache
def layers_of(family: str) -> tuple[str, ...]:
    """The layer classes of a family that are kept whole, the repeated one last."""
    return tuple(row.dest for row in load_table("transformer_layers").rows if row.kind == family)


@functools.cache
def families_with(layer: str) -> frozenset[str]:
    """The families that have a layer class of this name; empty for an unknown class."""
    return frozenset(row.kind for row in load_table("transformer_layers").rows if row.dest == layer)


def main_layer(family: str) -> str:
    """The layer class that most of a model of this family consists of; empty where none is known."""
    return next((name for name in layers_of(family) if name.endswith(("Layer", "Block"))), "")
