"""Claims made through objects of other libraries: DeepSpeed, Hugging Face, Lightning."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from preflight.model.job import AUTO, Claim, Reference, Relation, Unresolved, Value, alternatives, lift
from preflight.model.job.symbols import Symbol
from preflight.model.job.value import Plain
from preflight.sources.configs.deepspeed_claims import QUANTITY_OF
from preflight.sources.python.module import Module, argument, last, value_of
from preflight.sources.python.trainers import is_trl_config

#: Arguments of `TrainingArguments` and its subclasses.
_TRAINING_ARGUMENTS = {
    "per_device_train_batch_size": "micro_batch_size_per_gpu",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "ddp_timeout": "process_group_timeout_s",
    "ddp_backend": "backend",
    "dataloader_num_workers": "dataloader_workers",
    "dataloader_drop_last": "dataloader_drop_last",
}
_LIGHTNING = {"num_nodes": "nodes", "devices": "processes_per_node"}
#: First part of the module to the classes whose loop calls set_epoch (or shards the data) itself.
_TRAINERS: dict[str, tuple[str, ...]] = {
    "transformers": ("Trainer",),
    "trl": ("Trainer",),
    "lightning": ("Trainer", "Fabric"),
    "pytorch_lightning": ("Trainer",),
    "composer": ("Trainer",),
    "accelerate": ("Accelerator",),
    "mmengine": ("Runner",),
    "mmcv": ("Runner",),
    "paddlenlp": ("Trainer",),
}


def claims(module: Module) -> Iterator[Claim | Reference]:
    """All claims and references made through objects of other libraries."""
    tables: dict[int, ast.Dict] = {}
    for call in module.calls:
        name = module.called(call)
        short = last(name)
        for given in _configurations(call, name):
            expression = module.definition(value_of(given))
            if isinstance(expression, ast.Dict):
                tables[id(expression)] = expression
            else:
                yield from _files(module, given, expression)
        if short == "DeepSpeedPlugin":
            yield from _keywords(module, call, {"zero_stage": "zero_stage"}, source="deepspeed")
        elif short.endswith("TrainingArguments"):
            yield from _keywords(module, call, _TRAINING_ARGUMENTS)
        elif short == "Accelerator":
            accumulation = {"gradient_accumulation_steps": "gradient_accumulation_steps"}
            yield from _keywords(module, call, accumulation)
        elif short == "Trainer" and name.startswith(("lightning", "pytorch_lightning")):
            yield from _keywords(module, call, _LIGHTNING, relation=Relation.REQUIRES, source="lightning")
            accumulation = {"accumulate_grad_batches": "gradient_accumulation_steps"}
            yield from _keywords(module, call, accumulation, source="lightning")
        yield from _trainer(module, call, name)
    for table in tables.values():
        yield from _table(module, table, (), only=len(tables) == 1)


def _configurations(call: ast.Call, name: str) -> Iterator[ast.keyword | ast.expr]:
    """The arguments of a call that are a DeepSpeed configuration: its path, or a dict."""
    short = last(name)
    found: list[ast.keyword | ast.expr | None] = []
    if name == "deepspeed.initialize":
        found = [argument(call, "config"), argument(call, "config_params")]
    elif short == "HfDeepSpeedConfig":
        found = [argument(call, "config_file_or_dict", 0)]
    elif short == "DeepSpeedPlugin":
        found = [argument(call, "hf_ds_config", 0)]
    elif short.endswith("TrainingArguments") or is_trl_config(name):
        found = [argument(call, "deepspeed")]
    elif short == "DeepSpeedStrategy" and name.startswith(("lightning", "pytorch_lightning")):
        found = [argument(call, "config")]
    yield from (given for given in found if given is not None)


def _keywords(
    module: Module,
    call: ast.Call,
    quantities: dict[str, str],
    *,
    relation: Relation = Relation.SETS,
    source: str = "python",
) -> Iterator[Claim]:
    for keyword in call.keywords:
        quantity = quantities.get(keyword.arg or "")
        if quantity is None:
            continue
        value = module.fold(keyword.value)
        if relation is Relation.REQUIRES:
            # `devices="auto"` and `devices=-1` use all devices.
            value = lift(_positive, value)
            if isinstance(value, Unresolved):
                continue
        elif None in alternatives(value):
            continue
        yield module.claim(quantity, value, keyword, relation=relation, source=source)


def _positive(item: Plain) -> Plain:
    if isinstance(item, int) and not isinstance(item, bool) and item > 0:
        return item
    raise ValueError(Symbol.LIBRARY_DEFAULT.value)


def _trainer(module: Module, call: ast.Call, name: str) -> Iterator[Claim]:
    root = name.split(".")[0]
    endings = _TRAINERS.get(root, ())
    if endings and last(name).endswith(endings):
        yield module.claim("training_framework", root, call.func, spelling=module.text(call))


def _files(module: Module, given: ast.keyword | ast.expr, expression: ast.expr) -> Iterator[Reference]:
    """The configuration files that an argument names."""
    for path in alternatives(module.fold(expression)):
        if isinstance(path, str) and path and not path.lstrip().startswith("{"):
            target = module.files.resolve(path, relative_to=module.file.path)
            if target is not None:
                yield Reference(target, "config", module.span(value_of(given)), module.scope)


def _table(module: Module, table: ast.Dict, above: tuple[str, ...], *, only: bool) -> Iterator[Claim]:
    """A configuration given as a dict, read like a file; if a script has several, it is unknown which is in force."""
    for key, value in zip(table.keys, table.values, strict=True):
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            continue
        path = (*above, key.value)
        if path in QUANTITY_OF:
            start, _ = module.positions.bounds(key)
            _, end = module.positions.bounds(value)
            spelling = " ".join(module.file.text[start:end].split())[:120]
            found: Value = module.fold(value) if only else Unresolved("one of several configurations of this script")
            if alternatives(found) == ("auto",):
                found = AUTO
            yield module.claim(QUANTITY_OF[path], found, value, spelling=spelling, source="deepspeed")
        elif isinstance(value, ast.Dict) and not above:
            yield from _table(module, value, path, only=only)
