"""Datasets that use the GPU where an item is read, which the workers of a loader cannot do after a fork."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from preflight.model.job import Claim, Known
from preflight.sources.python import imports
from preflight.sources.python.environment import always_reached
from preflight.sources.python.module import Module, argument, qualified, value_of

#: Methods of a dataset that the workers of a loader run.
_READS = ("__getitem__", "__getitems__")
_GPU = re.compile(r"cuda(?::\d+)?|gpu(?::\d+)?")
_MAKES_GPU = re.compile(r"""f?["']cuda:|torch\.device\(f?["']cuda""")
_SPAWNS = re.compile(r"spawn|forkserver")


def claims(module: Module) -> Iterator[Claim]:
    """`gpu_in_dataset:CLASS` for each such class, and `loaded_by_workers:CLASS` for each that workers load."""
    for function in (each for name in _READS for each in module.outline.functions(name)):
        owner = module.parent(function)
        moves = [call for call in module.outline.calls_in(function) if _moves_to_gpu(module, call)]
        call = next((call for call in moves if not module.condition(call)), None)
        # Items may be kept on the CPU by an earlier return, or in a worker.
        returns = [each for each in module.nodes(ast.Return) if module.outline.function_of(each) is function]
        kept = "worker_info" in module.source(function) or any(map(module.condition, returns))
        if isinstance(owner, ast.ClassDef) and call is not None and not kept:
            yield module.claim("script_feature", f"gpu_in_dataset:{qualified(module, owner.name)}", call)
    if "DataLoader" not in module.file.text or not _uses_gpu(module):
        return
    texts = [module.file.text, *(each.text for each in imports.texts_of_modules(module)[0])]
    if any(map(_SPAWNS.search, texts)):
        return
    for call in module.named("DataLoader"):
        if not module.called(call).startswith("torch."):
            continue
        workers, dataset = argument(call, "num_workers"), argument(call, "dataset", 0)
        if workers is None or dataset is None or argument(call, "multiprocessing_context") is not None:
            continue
        count = module.fold(value_of(workers))
        made = module.definition(value_of(dataset))
        if isinstance(count, Known) and count.value and isinstance(made, ast.Call):
            yield module.claim("script_feature", f"loaded_by_workers:{qualified(module, module.called(made))}", workers)


def _uses_gpu(module: Module) -> bool:
    """Whether the script itself certainly uses CUDA; a process that has not may fork workers that do."""
    return any(
        always_reached(module, call)
        and (module.called(call).endswith("cuda.set_device") or _moves_to_gpu(module, call))
        and not any(isinstance(outer, ast.ClassDef) for outer in module.outline.above(call))
        for call in (*module.named("set_device"), *module.named("cuda", "to"))
    )


def _moves_to_gpu(module: Module, call: ast.Call) -> bool:
    """Whether a call puts a tensor on the GPU: `x.cuda()`, `x.to("cuda")`, `torch.zeros(1, device="cuda")`."""
    if not isinstance(call.func, ast.Attribute):
        return False
    if call.func.attr == "cuda":
        return True
    given = argument(call, "device") or (call.args[0] if call.func.attr == "to" and call.args else None)
    if given is None:
        return False
    device = module.fold(value_of(given))
    if isinstance(device, Known):
        return isinstance(device.value, str) and _GPU.fullmatch(device.value) is not None
    return _MAKES_GPU.match(module.source(module.definition(value_of(given)))) is not None
