"""Claims about checkpoints: who writes them, and where."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from preflight.job import Claim, alternatives
from preflight.lazy.patterns import lazy_pattern
from preflight.sources.python.module import Module, argument, last, value_of
from preflight.sources.python.outline import end_of
from preflight.sources.python.ranks import Who
from preflight.sources.python.standing import ranks_of

#: Calls that write a model's state, by the last part of the name.
_SAVES = lazy_pattern(
    r"save_?(?:the_)?(?:model|checkpoint|ckpt|state_dict|weights|pretrained|training_state|snapshot|networks?)s?\w*"
    r"|\w*Checkpoint(?:Saver|Manager|er|Writer)|ModelCheckpoint|save_file|save_(?:latest|last|best)\w*|write_checkpoint\w*|dump_checkpoint\w*"
)
_LIBRARY_SAVES = ("torch.save", "paddle.save", "torch.jit.save", "xm.save", "torch_xla.core.xla_model.save")
#: What a checkpoint is called, or the file it goes to.
_STATE = lazy_pattern(r"state|model|net|optim|ckpt|checkpoint|snapshot|weight|param", re.IGNORECASE)
_MODEL = lazy_pattern(r"model|net$|ckpt|checkpoint|saver$|agent|policy", re.IGNORECASE)
#: What is saved that is no checkpoint of a run, and where what is saved is no file.
_OTHER = lazy_pattern(
    r"dataset|cache|vocab|feature|history|buf|stream|bytesio|stat(?:s|istics)?$|vectors", re.IGNORECASE
)
_DISTRIBUTED = lazy_pattern(
    r"DistributedDataParallel|FullyShardedDataParallel|fully_shard|init_process_group|horovod|init_parallel_env"
)
#: Names in a path that make it another one on every rank or node.
_OWN_PATH = lazy_pattern(
    r"rank|node|host|proc|worker|shard|pid|uuid|tmp|temp|scratch|local|getpid|device|gpu", re.IGNORECASE
)

#: Folders that every node has for itself.
_OWN_DISKS = ("/tmp/", "/var/tmp/", "/dev/shm/")


def claims(module: Module) -> Iterator[Claim]:
    """All claims about who writes checkpoints."""
    distributed = _DISTRIBUTED.search(module.file.text) is not None
    for call in module.named("save", *(name for name in module.by_name if _SAVES.fullmatch(name))):
        name = module.called(call)
        library = name in _LIBRARY_SAVES
        if not library and not _SAVES.fullmatch(last(name)) and not _of_model(call):
            continue
        if library and not _STATE.search(" ".join(module.text(given) for given in call.args)):
            continue
        if _has_own_path(module, call) or any(_OTHER.search(end_of(given)) for given in call.args):
            continue
        standing = ranks_of(module).standing(call)
        if standing.who is Who.LOCAL_FIRST and standing.test is not None:
            guard = module.claim("checkpoint_guard", standing.who.value, standing.test, condition="")
            yield module.claim("checkpoint_written", standing.who.value, call, because=(guard,))
        elif standing.who is Who.ALL and name in _LIBRARY_SAVES[:2] and distributed:
            yield module.claim("checkpoint_written", standing.who.value, call)


def handed_over(module: Module) -> Iterator[Claim]:
    """All claims about files on a node's own disk that rank 0 writes and every rank reads."""
    if _DISTRIBUTED.search(module.file.text) is None:
        return
    written: dict[str, ast.Call] = {}
    for call in module.named("save"):
        path = _own_disk(module, argument(call, "f", 1))
        if path and module.called(call) in _LIBRARY_SAVES[:2] and ranks_of(module).standing(call).who is Who.FIRST:
            written.setdefault(path, call)
    for call in module.named("load") if written else ():
        path = _own_disk(module, argument(call, "f", 0))
        if path in written and ranks_of(module).standing(call).who is Who.ALL:
            wrote = module.claim("checkpoint_written", Who.FIRST.value, written[path])
            yield module.claim("local_checkpoint_read", path, call, because=(wrote,))


def _own_disk(module: Module, given: ast.keyword | ast.expr | None) -> str:
    """A path that is written out and lies on the disk or in the memory of one node; else empty."""
    found = alternatives(module.fold(value_of(given))) if given is not None else ()
    path = found[0] if len(found) == 1 else None
    return path if isinstance(path, str) and path.startswith(_OWN_DISKS) else ""


def folders(module: Module) -> Iterator[Claim]:
    """All claims about folders that every rank makes, and that must not be there yet."""
    if _DISTRIBUTED.search(module.file.text) is None:
        return
    for call in module.named("mkdir", "makedirs"):
        name = module.called(call)
        if name not in ("os.mkdir", "os.makedirs") and not (last(name) == "mkdir" and not call.args):
            continue
        if argument(call, "exist_ok", 2) is not None or _is_caught(module, call):
            continue
        if ranks_of(module).standing(call).who is Who.ALL and not _has_own_path(module, call):
            yield module.claim("folder_made", module.text(call), call)


def _of_model(call: ast.Call) -> bool:
    """`model.save(path)`, `checkpoint.save(...)`."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "save" or not (call.args or call.keywords):
        return False
    return (
        re.search(r"model|net$|ckpt|checkpoint|saver$|agent|policy", end_of(call.func.value), re.IGNORECASE) is not None
    )


def _is_caught(module: Module, call: ast.Call) -> bool:
    for outer in module.outline.above(call):
        if isinstance(outer, ast.Try) and outer.handlers:
            return True
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)):
            break
    return False


def _has_own_path(module: Module, call: ast.Call) -> bool:
    """Whether the path names the rank or node, so that no two ranks write the same file."""
    position = 1 if module.called(call) in _LIBRARY_SAVES else None
    given = argument(call, "f", position) if position else None
    paths = [value_of(given)] if given is not None else [*call.args, *(keyword.value for keyword in call.keywords)]
    return any(_OWN_PATH.search(name) for path in paths for name in _names(module, path, position is not None))


def _names(module: Module, expression: ast.expr, texts: bool) -> Iterator[str]:
    """The names in an expression and in what they were assigned; with `texts` what is written out, too."""
    pending: list[ast.AST] = [expression]
    seen = 0
    while pending and seen < 200:
        node = pending.pop()
        seen += 1
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str) and texts:
                yield node.value
            continue
        if isinstance(node, (ast.Name, ast.Attribute)):
            yield end_of(node)
        if isinstance(node, ast.Name):
            meant = module.definition(node)
            if meant is not node:
                pending.append(meant)
        else:
            pending.extend(ast.iter_child_nodes(node))
