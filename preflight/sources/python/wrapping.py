"""Claims about how a model is wrapped for several ranks, and whether a GPU was chosen before."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from preflight.job import Claim, Known, Value, lift
from preflight.job.value import Plain
from preflight.lazy.patterns import lazy_pattern
from preflight.sources.python.module import Module, argument, last, value_of
from preflight.sources.python.outline import dotted

_WRAPPER = "DistributedDataParallel"
#: Any of these words says that the script thinks about which GPU is whose.
_CHOOSES = lazy_pattern(
    r"set_device|LOCAL_RANK|local_rank|device_ids|cuda:\{|cuda:%|CUDA_VISIBLE_DEVICES|device_count|get_device|local_world"
    r"|set_visible_devices|visible_device_list|device_mesh|current_device|local_process|SLURM_LOCALID|device_id\b"
    r"|accelerat|fabric|deepspeed|lightning",
    re.IGNORECASE,
)
_RANKS = lazy_pattern(r"init_process_group\(|hvd\.init\(|horovod")


def claims(module: Module) -> Iterator[Claim]:
    """All claims about wrappers."""
    wrapped: dict[str, ast.Call] = {}
    for call in module.named(_WRAPPER, "convert_sync_batchnorm"):
        short = last(module.called(call))
        if short == _WRAPPER:
            wrapped.setdefault(module.bound_to(call), call)
            yield from _devices(module, call)
        elif short == "convert_sync_batchnorm" and call.args:
            earlier = wrapped.get(dotted(call.args[0])) if dotted(call.args[0]) else None
            inner = call.args[0] if isinstance(call.args[0], ast.Call) else None
            if inner is not None and last(module.called(inner)) == _WRAPPER:
                earlier = inner
            if earlier is not None and _before(module, earlier, call):
                because = module.claim("uses_ddp", True, earlier)
                yield module.claim("sync_batchnorm_late", module.text(call.args[0]), call, because=(because,))
    if _RANKS.search(module.file.text) and not _CHOOSES.search(module.file.text):
        yield from _unchosen(module)


def _before(module: Module, earlier: ast.Call, later: ast.Call) -> bool:
    """Whether one call certainly comes before another: same function, same branches, higher up."""
    same = module.outline.function_of(earlier) is module.outline.function_of(later)
    return same and earlier.lineno <= later.lineno and module.condition(earlier) in ("", module.condition(later))


def _devices(module: Module, call: ast.Call) -> Iterator[Claim]:
    """How many devices a literal `device_ids` names."""
    given = argument(call, "device_ids", 1)
    listed = module.definition(value_of(given)) if given is not None else None
    if given is None or listed is None:
        return
    count: Value | None = None
    if isinstance(listed, (ast.List, ast.Tuple)) and not any(isinstance(item, ast.Starred) for item in listed.elts):
        count = Known(len(listed.elts))
    elif isinstance(listed, ast.Call) and module.called(listed) in ("range", "list") and len(listed.args) == 1:
        inner = listed.args[0]
        bound = inner.args[0] if isinstance(inner, ast.Call) and len(inner.args) == 1 else inner
        count = lift(_number, module.fold(bound))
    if count is not None:
        yield module.claim("ddp_device_count", count, given)


def _number(item: Plain) -> Plain:
    if isinstance(item, int) and not isinstance(item, bool):
        return item
    raise ValueError("no number of devices")


def _unchosen(module: Module) -> Iterator[Claim]:
    """The first call that moves something to "the" GPU, which is GPU 0 in every process."""
    for call in sorted(module.named("cuda", "to", "device"), key=lambda call: (call.lineno, call.col_offset)):
        short = last(module.called(call))
        moved = short == "cuda" and isinstance(call.func, ast.Attribute) and not call.args and not call.keywords
        if short in ("to", "device") and call.args:
            moved = getattr(module.fold(call.args[0]), "value", None) in ("cuda", "cuda:0") and len(call.args) == 1
        if moved:
            yield module.claim("device_not_chosen", module.text(call), call)
            return
