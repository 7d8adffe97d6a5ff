"""Claims made through objects of other libraries: Hugging Face, TRL, Lightning, DeepSpeed.

Source: transformers/training_args.py (5.23), trl (1.16: every `...Config` of a trainer extends TrainingArguments),
lightning/fabric/connector.py and pytorch/trainer/connectors/accelerator_connector.py (lightning 2.6).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from preflight._util.secret_names import is_secret
from preflight.model.job import (
    AUTO,
    Claim,
    Known,
    Plain,
    Reference,
    Relation,
    Strength,
    Unresolved,
    Value,
    alternatives,
    lift,
)
from preflight.model.job.value import SECTION, SETTING_PREFIX, Computed, Symbol
from preflight.sources.configs.framework_files import QUANTITY_OF
from preflight.sources.configs.hugging_face import MODEL_ROLE, PRECISIONS, SETTINGS, config_of, precision_of
from preflight.sources.python.module import Module, argument, last, value_of
from preflight.sources.python.outline import dotted

#: Read with the objects of other libraries, in `framework_usage`.
_READ_ELSEWHERE = frozenset(
    [
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "ddp_timeout",
        "ddp_backend",
        "dataloader_num_workers",
    ]
)
_TRAINING_ARGUMENTS = tuple(
    f"transformers.{name}"
    for name in ("TrainingArguments", "training_args.TrainingArguments", "Seq2SeqTrainingArguments")
)
#: Arguments that Seq2SeqTrainingArguments adds (transformers/training_args_seq2seq.py).
_OF_SEQ2SEQ = frozenset(
    (
        *("sortish_sampler", "predict_with_generate", "generation_max_length", "generation_num_beams"),
        *("generation_config",),
    )
)
_OF_PADDLE = re.compile(r"paddlenlp\.trainer\.(?:training_args\.)?TrainingArguments")
_TRL_CONFIGS = ("SFTConfig", "DPOConfig", "GRPOConfig", "RLOOConfig", "KTOConfig", "RewardConfig")
#: The source of defaults in a user-defined class, which count wherever the class is imported from.
DEFAULTS = "dataclass"
#: Stands for the class that is called.
CLASS = "config_class"
#: Stands for the call itself: true where all its arguments are named.
CALL = "(call)"
#: Stands for a parser of such arguments: true where it takes no others.
PARSER = "(parser)"
#: Parsers of such arguments: transformers' own, and TRL's.
_PARSERS = ("HfArgumentParser", "TrlParser")
_PARSING = "parse_args_into_dataclasses"
#: Configurations of TRL that are not arguments of a trainer.
_NOT_OF_TRAINERS = ("ModelConfig", "ScriptConfig")
_LIGHTNING_ROOTS = ("lightning", "pytorch_lightning", "lightning_fabric")
#: How the settings of each of Lightning's classes are named.
_LIGHTNING = {"Trainer": "lightning", "Fabric": "lightning_fabric"}
_SIZES = {"num_nodes": "nodes", "devices": "processes_per_node"}
#: Strategies given as objects: `FSDPStrategy(...)`.
_STRATEGY = re.compile(r"(DeepSpeed|FSDP|ModelParallel|DDP)\w*Strategy")


def claims(module: Module) -> Iterator[Claim]:
    """Yield all claims in the arguments of trainers, and the models that are loaded by name."""
    yield from _settings(module)
    yield from _own_defaults(module)
    yield from _lightning_settings(module)
    for call in module.calls:
        name = module.called(call)
        short, root = last(name), name.partition(".")[0]
        if short.endswith("TrainingArguments"):
            yield from _arguments(module, call, known=True)
        elif is_trl_config(name):
            yield from _arguments(module, call, known=False)
        elif short == "Accelerator":
            yield from _accelerator(module, call)
        elif short == "from_pretrained":
            yield from _model(module, call, name)
        elif root in _LIGHTNING_ROOTS and short in ("Trainer", "Fabric"):
            yield from _lightning(module, call, short)
        yield from _wrapped_layers(module, call)


def is_trl_config(name: str) -> bool:
    """Return whether `name` is one of TRL's configurations of a trainer (`trl.GRPOConfig`), which extend
    TrainingArguments.
    """
    root, short = name.partition(".")[0], last(name)
    return root == "trl" and short.endswith("Config") and short not in _NOT_OF_TRAINERS


def _settings(module: Module) -> Iterator[Claim]:
    """Yield every argument of the only `TrainingArguments(...)` of a script; with several it is not known which is
    used.
    """
    prefix = f"{SETTING_PREFIX}transformers."
    for parser in module.named(*_PARSERS):
        given = argument(parser, "dataclass_types", 0)
        kinds = module.definition(value_of(given)) if given is not None else None
        items = kinds.elts if isinstance(kinds, (ast.Tuple, ast.List)) else [kinds] if kinds is not None else []
        names = [module.name(item) for item in items if isinstance(item, (ast.Name, ast.Attribute))]
        if any(name in _TRAINING_ARGUMENTS or is_trl_config(name) for name in names):
            # `parser.add_argument(...)` adds options of the script's own; the arguments that TRL adds are not in the
            # table of TrainingArguments.
            alone = len(items) == 1 == len(names) and not module.named("add_argument") and not is_trl_config(names[0])
            alone = alone and not any(argument(each, "return_remaining_strings") for each in module.named(_PARSING))
            yield module.claim(f"{prefix}{PARSER}", alone, parser.func, spelling=module.text(parser))
    for parser in module.named("PdArgumentParser"):
        framework = "paddleformers" if "paddleformers" in module.file.text else "paddlenlp"
        yield module.claim(f"{SETTING_PREFIX}{framework}.{PARSER}", True, parser.func, spelling=module.text(parser))
    calls = [call for call in module.calls if module.called(call) in _TRAINING_ARGUMENTS]
    of_paddle = [call for call in module.calls if _OF_PADDLE.fullmatch(module.called(call))]
    if len(of_paddle) == 1:
        yield from _state_argument(module, of_paddle[0], f"{SETTING_PREFIX}paddlenlp.")
    of_trl = [call for call in module.calls if _class_of_trl(module, call)]
    if len(calls) == 1:
        yield from _state_argument(module, calls[0], prefix)
    elif not calls and len(of_trl) == 1:
        yield from _state_argument(module, of_trl[0], f"{SETTING_PREFIX}trl.")
        name = _class_of_trl(module, of_trl[0])
        yield module.claim(f"{SETTING_PREFIX}trl.{CLASS}", name, of_trl[0].func, spelling=module.text(of_trl[0].func))
        if of_trl[0].args == [] and all(keyword.arg for keyword in of_trl[0].keywords):
            # TRL passes them on to TrainingArguments.
            stated = _state_argument(module, of_trl[0], prefix)
            yield from (claim for claim in stated if claim.quantity != f"{prefix}{CALL}")


def _own_defaults(module: Module) -> Iterator[Claim]:
    """Yield the defaults that a user-defined class gives to arguments of the trainer that it extends."""
    for node in module.nodes(ast.ClassDef):
        if not any(module.name(base) in _TRAINING_ARGUMENTS for base in node.bases):
            continue
        for field in node.body:
            if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name) or field.value is None:
                continue
            made = field.value
            if isinstance(made, ast.Call):
                given = argument(made, "default", 0) if last(module.called(made)) == "field" else None
                made = value_of(given) if given is not None else made
            name, value = field.target.id, module.fold(made)
            if not isinstance(value, Known) or value.value is None or is_secret(name):
                continue
            if name in SETTINGS:
                quantity, reader = SETTINGS[name]
                strength = Strength.DEFAULT
                yield module.claim(quantity, reader(value), field, strength=strength, source=DEFAULTS, condition="")


def _lightning_settings(module: Module) -> Iterator[Claim]:
    """Yield every argument of the only `Trainer(...)` of Lightning in a script, and of the only `Fabric(...)`."""
    for short, framework in _LIGHTNING.items():
        calls = [call for call in module.calls if _is_lightning(module.called(call), short)]
        if len(calls) == 1:
            yield from _state_argument(module, calls[0], f"{SETTING_PREFIX}{framework}.")


def _is_lightning(name: str, short: str) -> bool:
    return name.partition(".")[0] in _LIGHTNING_ROOTS and last(name) == short


def _class_of_trl(module: Module, call: ast.Call) -> str:
    """Return the class of a configuration of one of TRL's own trainers (`GRPOConfig`); empty for any other call."""
    name = module.called(call)
    return last(name) if name.partition(".")[0] == "trl" and last(name) in _TRL_CONFIGS else ""


def _state_argument(module: Module, call: ast.Call, prefix: str) -> Iterator[Claim]:
    """Yield every named argument of a call, and the call itself."""
    yield module.claim(f"{prefix}{CALL}", call.args == [], call.func, spelling=module.text(call.func))
    for keyword in call.keywords:
        if keyword.arg is None:
            yield module.claim(f"{prefix}{CALL}", Unresolved("arguments from elsewhere"), keyword.value)
        elif not is_secret(keyword.arg) and keyword.arg not in _OF_SEQ2SEQ:
            section = isinstance(module.definition(keyword.value), ast.Dict)
            value = Known(SECTION) if section else module.fold(keyword.value)
            claim = module.claim(f"{prefix}{keyword.arg}", value, keyword)
            yield replace(claim, span=module.span(keyword))
            yield from _dictionary_claims(module, keyword.value, f"{prefix}{keyword.arg}", claim, 0)


#: Dictionaries within dictionaries whose keys are settings.
_MAX_DEPTH = 2


def _dictionary_claims(module: Module, given: ast.expr, above: str, claim: Claim, depth: int) -> Iterator[Claim]:
    """Yield the items of a dictionary as settings."""
    written = module.definition(given)
    if not isinstance(written, ast.Dict) or depth >= _MAX_DEPTH:
        return
    for key, item in zip(written.keys, written.values, strict=True):
        if isinstance(key, ast.Constant) and isinstance(key.value, str) and not is_secret(key.value):
            folded = Known(SECTION) if isinstance(item, ast.Dict) else module.fold(item)
            yield module.claim(f"{above}.{key.value}", folded, item, condition=claim.condition)
            yield from _dictionary_claims(module, item, f"{above}.{key.value}", claim, depth + 1)


def _arguments(module: Module, call: ast.Call, *, known: bool) -> Iterator[Claim]:
    """Yield `known`: whether the arguments shared with other frameworks have already been stated."""
    for keyword in call.keywords:
        name = keyword.arg or ""
        if name in PRECISIONS:
            precision = precision_of(name, module.fold(keyword.value))
            if precision is not None:
                yield module.claim("mixed_precision", precision, keyword)
        elif name in SETTINGS and not (known and name in _READ_ELSEWHERE):
            quantity, reader = SETTINGS[name]
            value = module.fold(keyword.value)
            if None not in alternatives(value):
                yield module.claim(quantity, reader(value), keyword)


def _accelerator(module: Module, call: ast.Call) -> Iterator[Claim]:
    """Yield `Accelerator(mixed_precision="fp16")` takes precedence over the launch."""
    given = argument(call, "mixed_precision")
    if given is not None:
        value = module.fold(value_of(given))
        if all(isinstance(item, str) for item in alternatives(value)):
            yield module.claim("mixed_precision", value, given)


#: Options that name the layer classes for FSDP's units (torch.distributed.fsdp.wrap, accelerate's plugin).
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
    """Return `LlamaDecoderLayer`, as an imported class or as a string; empty for anything else."""
    if isinstance(item, ast.Constant):
        return item.value if isinstance(item.value, str) else ""
    name = last(module.name(item)) if isinstance(item, (ast.Name, ast.Attribute)) else ""
    # A variable that holds a class is not its name.
    return name if name[:1].isupper() else ""


def _model(module: Module, call: ast.Call, name: str) -> Iterator[Claim]:
    """Yield `AutoModelForCausalLM.from_pretrained("gpt2")`; tokenizers and configurations also name models."""
    owner = name.rpartition(".")[0].rpartition(".")[2]
    given = argument(call, "pretrained_model_name_or_path", 0)
    if given is None or ("Model" not in owner and not owner.startswith("AutoModel") and "For" not in owner):
        return
    value = module.fold(value_of(given))
    if isinstance(value, Known) and isinstance(value.value, str):
        yield module.claim("model_name", value, given, spelling=module.text(call))


def _model_files(module: Module, call: ast.Call, name: str) -> Iterator[Reference]:
    """Yield the configuration of a model that is a folder of the tree."""
    for claim in _model(module, call, name):
        path = f"{claim.value.value}/config.json" if isinstance(claim.value, Known) else ""
        target = config_of(path, module.files, module.files.resolve(path, relative_to=module.file.path))
        if target is not None:
            yield Reference(target, MODEL_ROLE, claim.span, module.scope)


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
    """Return `deepspeed_stage_3`, `FSDPStrategy(...)` as one of deepspeed, fsdp, ddp, modelparallel ..."""
    expression = module.definition(given)
    if isinstance(expression, ast.Call):
        found = _STRATEGY.fullmatch(last(module.called(expression)))
        return Known(found[1].lower()) if found else Unresolved("a custom strategy")
    return lift(_family, module.fold(given))


def _family(item: Plain) -> str:
    if not isinstance(item, str):
        raise ValueError("a custom strategy")
    return item.lower().partition("_")[0]


def _positive(item: Plain) -> Plain:
    if isinstance(item, int) and not isinstance(item, bool) and item > 0:
        return item
    raise ValueError(Symbol.LIBRARY_DEFAULT.value)


#: Arguments of `TrainingArguments` and its subclasses.
_USED_ARGUMENTS = {
    "per_device_train_batch_size": "micro_batch_size_per_gpu",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "ddp_timeout": "process_group_timeout_s",
    "ddp_backend": "backend",
    "dataloader_num_workers": "dataloader_workers",
    "dataloader_drop_last": "dataloader_drop_last",
}
_LIGHTNING_SIZES = {"num_nodes": "nodes", "devices": "processes_per_node"}
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


def usage_claims(module: Module) -> Iterator[Claim | Reference]:
    """Yield all claims and references made through objects of other libraries."""
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
        if short == "from_pretrained":
            yield from _model_files(module, call, name)
        elif short == "DeepSpeedPlugin":
            yield from _keywords(module, call, {"zero_stage": "zero_stage"}, source="deepspeed")
        elif short.endswith("TrainingArguments"):
            yield from _keywords(module, call, _USED_ARGUMENTS)
        elif short == "Accelerator":
            accumulation = {"gradient_accumulation_steps": "gradient_accumulation_steps"}
            yield from _keywords(module, call, accumulation)
        elif short == "Trainer" and name.startswith(("lightning", "pytorch_lightning")):
            yield from _keywords(module, call, _LIGHTNING_SIZES, relation=Relation.REQUIRES, source="lightning")
            accumulation = {"accumulate_grad_batches": "gradient_accumulation_steps"}
            yield from _keywords(module, call, accumulation, source="lightning")
        yield from _trainer(module, call, name)
    for table in tables.values():
        yield from _table(module, table, (), only=len(tables) == 1)


def _configurations(call: ast.Call, name: str) -> Iterator[ast.keyword | ast.expr]:
    """Yield the arguments of a call that are a DeepSpeed configuration: its path, or a dict."""
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
            value = lift(_positive_size, value)
            if isinstance(value, Unresolved):
                continue
        elif None in alternatives(value):
            continue
        yield module.claim(quantity, value, keyword, relation=relation, source=source)


def _positive_size(item: Plain) -> Plain:
    if isinstance(item, int) and not isinstance(item, bool) and item > 0:
        return item
    raise ValueError(Symbol.LIBRARY_DEFAULT.value)


def _trainer(module: Module, call: ast.Call, name: str) -> Iterator[Claim]:
    root = name.split(".")[0]
    endings = _TRAINERS.get(root, ())
    if endings and last(name).endswith(endings):
        yield module.claim("training_framework", root, call.func, spelling=module.text(call))


def _files(module: Module, given: ast.keyword | ast.expr, expression: ast.expr) -> Iterator[Reference | Claim]:
    """Yield the configuration files that an argument names, or that were loaded into it; a claim where an option names
    it.
    """
    named = module.fold(_loaded_file(module, value_of(given)) or expression)
    if isinstance(named, Computed):
        yield module.claim("config_of_option", named, given)
    for path in alternatives(named):
        if isinstance(path, str) and path and not path.lstrip().startswith("{"):
            target = module.files.resolve(path, relative_to=module.file.path)
            if target is not None:
                yield Reference(target, "config", module.span(value_of(given)), module.scope)


_LOADERS = ("json.load", "yaml.safe_load")


def _loaded_file(module: Module, expression: ast.expr) -> ast.expr | None:
    """Return the path in `json.load(open(path))`, also where a `with` opens the file, if nothing else uses the
    result.
    """
    loaded = module.definition(expression)
    if isinstance(expression, ast.Name):
        uses = [node for node in module.nodes(ast.Name) if node.id == expression.id]
        if len(uses) != 2:
            return None
    if not isinstance(loaded, ast.Call) or module.called(loaded) not in _LOADERS or not loaded.args:
        return None
    source = loaded.args[0]
    withs = (node for node in module.outline.above(loaded) if isinstance(node, ast.With))
    names = ((item.context_expr, item.optional_vars) for node in withs for item in node.items)
    named = (made for made, name in names if isinstance(name, ast.Name) and name.id == dotted(source))
    opened = next(named, None) or module.definition(source)
    return opened.args[0] if isinstance(opened, ast.Call) and module.called(opened) == "open" and opened.args else None


def _table(module: Module, table: ast.Dict, above: tuple[str, ...], *, only: bool) -> Iterator[Claim]:
    """Yield a configuration given as a dict, read like a file; if a script has several, it is unknown which is in
    force.
    """
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
