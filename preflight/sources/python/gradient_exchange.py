"""Claims about whether the ranks of a script exchange their gradients, and calls that go past the exchange."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from preflight.model.job import Claim
from preflight.sources.python.executing_ranks import ranks_of
from preflight.sources.python.imports import libraries
from preflight.sources.python.module import Module, last
from preflight.sources.python.outline import dotted
from preflight.sources.python.rank_conditions import RankSet

#: Any of these words in a file of the job may exchange gradients, or replace the exchange.
_EXCHANGING = re.compile(
    r"DataParallel|\bDDP\b|\bFSDP|fully_shard|distributed_model|Distributed\w*(?:Optimizer|Tape)|[dD]eep[sS]peed"
    r"|[aA]ccelerat(?:e\b|or)|[lL]ightning|[fF]abric\b|Trainer\b|all_?reduce|reduce_scatter|\breduce\(|average_grad"
    r"|sync\w*_grad|grad\w*_sync|reduce_grad|apply_collective_grads|parallelize|shard_(?:optimizer|tensor|layer)"
    r"|DTensor|[pP]ipeline|\brpc\b|all_?gather|\.Engine\(|prepare\(|replicate\(|group_sharded|colossal|byteps|bagua"
    r"|ZeroRedundancy|[lL]ocal_?SGD|DistModel|\bsend\(|broadcast_object|paddlenlp|megatron|nccl2",
)
_JOINING = frozenset(("init_process_group", "init_parallel_env", "init"))
_OF_RANKS = re.compile(r"(?:^|\.)(?:hvd|horovod\.\w+|fleet)\.init$|init_process_group$|init_parallel_env$")
#: Libraries that exchange no gradients by themselves.
_LIBRARIES = frozenset(
    (
        "PIL", "apex", "cv2", "datasets", "einops", "hydra", "horovod", "matplotlib", "numpy", "omegaconf", "paddle",
        "pandas", "peft", "scipy", "sklearn", "tensorboard", "tensorboardX", "timm", "tokenizers", "torch",
        "torchaudio", "torchvision", "tqdm", "transformers", "visualdl", "wandb", "yaml",
    )
)  # fmt: skip
#: What uses nothing: an import, a comment.
_UNUSED = re.compile(r"^[ \t]*(?:from|import)[ \t].*$|#.*$", re.MULTILINE)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


def claims(module: Module) -> Iterator[Claim]:
    """All claims about the exchange of gradients."""
    text = module.file.text
    exchanging = _EXCHANGING.search(_UNUSED.sub("", text))
    if exchanging is not None:
        yield module.claim("gradients_exchanged", exchanging.group(0), module.tree.body[0], condition="")
    for call in module.named(*sorted(_JOINING)):
        if _OF_RANKS.search(module.called(call)):
            yield module.claim("ranks_joined", module.called(call), call)
    if "backward(" not in text:
        return
    steps = module.named("step", "minimize")
    taken = [call for call in module.named("backward") if not call.args and _in_loop(module, call) is not None]
    if steps and taken and ranks_of(module).guard_of(taken[0]).who in (RankSet.ALL, RankSet.UNDECIDED):
        yield module.claim("gradients_taken", module.text(taken[0]), taken[0], condition="")
        unread = sorted(set(libraries(module)) - _LIBRARIES)
        if unread:
            yield module.claim("exchange_libraries", tuple(unread), taken[0], condition="")
    for call in taken:
        yield from _bypasses(module, call)


def _bypasses(module: Module, backward: ast.Call) -> Iterator[Claim]:
    """`model.module(x)` in the loop of a wrapped model that is not called itself, or a step wholly under `no_sync`."""
    wrapped = {module.bound_to(call) for call in module.named("DistributedDataParallel", "DataParallel")} - {""}
    loop = _in_loop(module, backward)
    if loop is None or not wrapped:
        return
    inside = [node for node in ast.walk(loop) if isinstance(node, ast.Call)]
    called = {dotted(call.func) for call in inside}
    for call in inside:
        name = dotted(call.func)
        owner, _, method = name.rpartition(".")
        if method == "module" and owner in wrapped and owner not in called:
            yield module.claim("gradient_exchange_bypassed", module.text(call.func), call, condition="")
            return
    for outer in module.outline.above(backward):
        if outer is loop:
            return
        if isinstance(outer, ast.With):
            for item in outer.items:
                opened = item.context_expr
                names = [dotted(node.func) for node in ast.walk(outer) if isinstance(node, ast.Call)]
                if isinstance(opened, ast.Call) and last(dotted(opened.func)) == "no_sync" and _steps(names):
                    yield module.claim("gradient_exchange_bypassed", module.text(opened), opened, condition="")
                    return
        elif isinstance(outer, (ast.If, ast.FunctionDef, ast.AsyncFunctionDef)):
            return


def _steps(names: list[str]) -> bool:
    return any(last(name) in ("step", "minimize") for name in names)


def _in_loop(module: Module, node: ast.AST) -> ast.For | ast.AsyncFor | ast.While | None:
    """The innermost loop around a node in its function; the function's own calls in a loop count as well."""
    for outer in module.outline.above(node):
        if isinstance(outer, _LOOPS):
            return outer
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for call in module.outline.calls_named(outer.name):
                if module.outline.function_of(call) is not outer:
                    return next((each for each in module.outline.above(call) if isinstance(each, _LOOPS)), None)
            return None
    return None
