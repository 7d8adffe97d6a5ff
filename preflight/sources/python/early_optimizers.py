"""Optimizers that take the parameters of a model before something divides these parameters among the ranks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from preflight.model.job import Claim
from preflight.sources.python.module import Module, last
from preflight.sources.python.outline import dotted

#: Names of optimizers of torch and of the libraries beside it.
_OPTIMIZER = re.compile(
    r"(?:\w*Adam\w*|SGD\w*|Lion\w*|Adagrad\w*|RMSprop|Adafactor|LAMB|Lamb|LARS|Muon|ASGD|Rprop|Adadelta)(?:8bit)?"
)
_DIVIDING = re.compile(r"FullyShardedDataParallel|fully_shard|Accelerator|configure_optimizers")


def claims(module: Module) -> Iterator[Claim]:
    """Each optimizer of a model that is divided later: `fsdp`, `prepare` (by Accelerate) or `lightning`."""
    if not _DIVIDING.search(module.file.text):
        return
    optimizers = [
        (call, model) for call in module.nodes(ast.Call) for model in _models(call) if _is_optimizer(module, call)
    ]
    accelerators = {module.bound_to(call) for call in module.named("Accelerator")} - {""}
    for call, model in optimizers:
        function = module.outline.function_of(call)
        if function is not None and function.name == "configure_optimizers" and re.match(r"self\b", model):
            yield module.claim("early_optimizer", "lightning", call)
            continue
        for divided in module.named("FullyShardedDataParallel", "fully_shard"):
            if _takes(divided, model) and not _keeps_parameters(divided) and _follows(module, call, divided):
                because = module.claim("uses_fsdp", True, divided)
                yield module.claim("early_optimizer", "fsdp", call, because=(because,))
                break
        for prepared in module.named("prepare"):
            owner = prepared.func.value if isinstance(prepared.func, ast.Attribute) else None
            if owner is None or dotted(owner) not in accelerators:
                continue
            if _takes(prepared, model) and _takes(prepared, module.bound_to(call)) and _follows(module, call, prepared):
                yield module.claim("early_optimizer", "prepare", call)
                break


def _is_optimizer(module: Module, call: ast.Call) -> bool:
    return _OPTIMIZER.fullmatch(last(module.called(call))) is not None


def _models(call: ast.Call) -> Iterator[str]:
    """The models whose `parameters()` a call is given."""
    for given in (*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "params")):
        if isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute) and given.func.attr == "parameters":
            name = dotted(given.func.value)
            if name:
                yield name


def _takes(call: ast.Call, name: str) -> bool:
    return bool(name) and any(dotted(argument) == name for argument in call.args)


def _keeps_parameters(call: ast.Call) -> bool:
    """Whether the wrapper may keep the parameters that the optimizer knows."""
    for keyword in call.keywords:
        if keyword.arg is None:
            return True
        if keyword.arg == "use_orig_params":
            return not (isinstance(keyword.value, ast.Constant) and keyword.value.value is False)
    return False


def _follows(module: Module, optimizer: ast.Call, divided: ast.Call) -> bool:
    """Whether a model is certainly divided after its optimizer was made, and no other optimizer is made afterwards."""
    same = module.outline.function_of(optimizer) is module.outline.function_of(divided)
    if not same or optimizer.lineno >= divided.lineno:
        return False
    if module.condition(optimizer) not in ("", module.condition(divided)):
        return False
    later = (call for call in module.nodes(ast.Call) if call.lineno > divided.lineno and _is_optimizer(module, call))
    return not any(module.bound_to(call) == module.bound_to(optimizer) for call in later)
