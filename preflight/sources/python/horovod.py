"""Claims of Horovod scripts: what they start, wrap and broadcast."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Claim
from preflight.lazy.patterns import lazy_pattern
from preflight.sources.python.module import Module, last

_OPTIMIZERS = ("DistributedOptimizer", "DistributedGradientTape", "DistributedAdasumOptimizer", "DistributedTrainer")
#: Whatever makes the ranks begin with the same weights; elastic states do it when they are synchronised.
_BROADCAST = lazy_pattern(
    r"broadcast_(?:parameters|variables|global_variables|object|optimizer_state)|[Bb]roadcastGlobalVariables\w*"
    r"|BroadcastParameters|(?:Torch|TensorFlow|TensorFlowKeras|Object)?(?:Keras)?State\(|elastic\.run|hvd\.broadcast\("
)


def claims(module: Module) -> Iterator[Claim]:
    """All claims about Horovod."""
    if "horovod" not in module.file.text:
        return
    broadcast = _BROADCAST.search(module.file.text)
    if broadcast is not None:
        yield module.claim("horovod_broadcasts", broadcast.group(0).rstrip("("), module.tree, condition="")
    for call in module.named("init", *_OPTIMIZERS):
        name = module.called(call)
        if not name.startswith("horovod."):
            continue
        if last(name) == "init":
            yield module.claim("horovod_started", True, call)
        elif last(name) in _OPTIMIZERS:
            yield module.claim("horovod_optimizer", last(name), call)
