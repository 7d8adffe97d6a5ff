"""Claims made through trainers' own argument objects: Hugging Face, TRL, Lightning; and which model a script loads.

Source: transformers/training_args.py (5.23), trl (1.16: every `...Config` of a trainer extends TrainingArguments),
lightning/fabric/connector.py and pytorch/trainer/connectors/accelerator_connector.py (lightning 2.6).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from preflight.job import Claim, Known, Plain, Relation, Unresolved, Value, alternatives, lift
from preflight.lazy.patterns import lazy_pattern
from preflight.sources.python.module import Module, argument, last, value_of
from preflight.sources.trainer_settings import PRECISIONS, SETTINGS, precision_of

#: Read with the objects of other libraries, in `frameworks`.
_ELSEWHERE = frozenset(
    [
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "ddp_timeout",
        "ddp_backend",
        "dataloader_num_workers",
    ]
)
#: What shows that a script trains with Accelerate, or with a trainer that does.
_TRAINS = lazy_pattern(r"\b(?:Trainer|\w+Trainer|Accelerator|TrainingArguments|\w+TrainingArguments)\(")
_LIGHTNING_ROOTS = ("lightning", "pytorch_lightning", "lightning_fabric")
_SIZES = {"num_nodes": "nodes", "devices": "processes_per_node"}
#: Strategies given as objects: `FSDPStrategy(...)`.
_STRATEGY = lazy_pattern(r"(DeepSpeed|FSDP|ModelParallel|DDP)\w*Strategy")


def claims(module: Module) -> Iterator[Claim]:
    """All claims that stand in the arguments of trainers, and the models that are loaded by name."""
    for call in module.calls:
        name = module.called(call)
        short, root = last(name), name.partition(".")[0]
        if short.endswith("TrainingArguments"):
            yield from _arguments(module, call, known=True)
        elif root == "trl" and short.endswith("Config") and short not in ("ModelConfig", "ScriptConfig"):
            yield from _arguments(module, call, known=False)
        elif short == "Accelerator":
            yield from _accelerator(module, call)
        elif short == "from_pretrained":
            yield from _model(module, call, name)
            yield from _device_map(module, call, name)
        elif root in _LIGHTNING_ROOTS and short in ("Trainer", "Fabric"):
            yield from _lightning(module, call, short)
        yield from _wrapped_layers(module, call)


def _arguments(module: Module, call: ast.Call, *, known: bool) -> Iterator[Claim]:
    """`known`: the arguments that other frameworks share are stated already."""
    for keyword in call.keywords:
        name = keyword.arg or ""
        if name in PRECISIONS:
            precision = precision_of(name, module.fold(keyword.value))
            if precision is not None:
                yield module.claim("mixed_precision", precision, keyword)
        elif name in SETTINGS and not (known and name in _ELSEWHERE):
            quantity, reader = SETTINGS[name]
            value = module.fold(keyword.value)
            if None not in alternatives(value):
                yield module.claim(quantity, reader(value), keyword)


def _accelerator(module: Module, call: ast.Call) -> Iterator[Claim]:
    """`Accelerator(mixed_precision="fp16")` wins over what the launch says."""
    given = argument(call, "mixed_precision")
    if given is not None:
        value = module.fold(value_of(given))
        if all(isinstance(item, str) for item in alternatives(value)):
            yield module.claim("mixed_precision", value, given)


#: Where the classes of layers stand that become FSDP's units (torch.distributed.fsdp.wrap, accelerate's plugin).
_CLASSES = ("transformer_layer_cls", "transformer_cls_names_to_wrap")


def _wrapped_layers(module: Module, call: ast.Call) -> Iterator[Claim]:
    for keyword in call.keywords:
        if keyword.arg not in _CLASSES:
            continue
        given = module.definition(keyword.value)
        items = given.elts if isinstance(given, (ast.Set, ast.List, ast.Tuple)) else [given]
        names = tuple(_class_name(module, item) for item in items)
        value: Value = Known(names) if all(names) else Unresolved("a class that is chosen at run time")
        yield module.claim("fsdp_layer_classes", value, keyword)


def _class_name(module: Module, item: ast.expr) -> str:
    """`LlamaDecoderLayer`, as an imported class or as text; empty for anything else."""
    if isinstance(item, ast.Constant):
        return item.value if isinstance(item.value, str) else ""
    name = last(module.name(item)) if isinstance(item, (ast.Name, ast.Attribute)) else ""
    # A variable that holds a class is not its name.
    return name if name[:1].isupper() else ""


def _model(module: Module, call: ast.Call, name: str) -> Iterator[Claim]:
    """`AutoModelForCausalLM.from_pretrained("gpt2")`; tokenizers and configurations name models, too."""
    owner = name.rpartition(".")[0].rpartition(".")[2]
    given = argument(call, "pretrained_model_name_or_path", 0)
    if given is None or ("Model" not in owner and not owner.startswith("AutoModel") and "For" not in owner):
        return
    value = module.fold(value_of(given))
    if isinstance(value, Known) and isinstance(value.value, str):
        yield module.claim("model_name", value, given, spelling=module.text(call))


def _device_map(module: Module, call: ast.Call, name: str) -> Iterator[Claim]:
    """`from_pretrained(..., device_map="auto")` in a script that trains with Accelerate or a trainer over it."""
    given = argument(call, "device_map")
    if given is None or not name.rpartition(".")[0] or _TRAINS.search(module.file.text) is None:
        return
    expression = module.definition(value_of(given))
    value: Value = Known("{...}") if isinstance(expression, ast.Dict) else module.fold(expression)
    if None not in alternatives(value):
        yield module.claim("device_map", lift(str, value), given)


def _lightning(module: Module, call: ast.Call, short: str) -> Iterator[Claim]:
    for keyword in call.keywords:
        if keyword.arg == "precision":
            yield module.claim(
                "lightning_precision", lift(str, module.fold(keyword.value)), keyword, source="lightning"
            )
        elif keyword.arg == "strategy":
            yield module.claim("lightning_strategy", _strategy(module, keyword.value), keyword, source="lightning")
        elif short == "Fabric" and keyword.arg in _SIZES:
            value = lift(_positive, module.fold(keyword.value))
            if not isinstance(value, Unresolved):
                quantity = _SIZES[keyword.arg]
                yield module.claim(quantity, value, keyword, relation=Relation.REQUIRES, source="lightning")


def _strategy(module: Module, given: ast.expr) -> Value:
    """`deepspeed_stage_3`, `FSDPStrategy(...)` as one of deepspeed, fsdp, ddp, modelparallel ..."""
    expression = module.definition(given)
    if isinstance(expression, ast.Call):
        found = _STRATEGY.fullmatch(last(module.called(expression)))
        return Known(found[1].lower()) if found else Unresolved("a strategy of its own")
    return lift(_family, module.fold(given))


def _family(item: Plain) -> str:
    if not isinstance(item, str):
        raise ValueError("a strategy of its own")
    return item.lower().partition("_")[0]


def _positive(item: Plain) -> Plain:
    if isinstance(item, int) and not isinstance(item, bool) and item > 0:
        return item
    raise ValueError("left to the library")
