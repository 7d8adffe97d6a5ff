"""Files and folders that ranks remove or make while other ranks still use them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from preflight.model.job import Claim
from preflight.sources.python.executing_ranks import ranks_of
from preflight.sources.python.module import Module, argument, last, value_of
from preflight.sources.python.outline import dotted
from preflight.sources.python.rank_conditions import RankSet

_DISTRIBUTED = re.compile(
    r"DistributedDataParallel|FullyShardedDataParallel|fully_shard|init_process_group|horovod|init_parallel_env"
)
_RANK_WORDS = re.compile(r"\b(?:\w+_)?rank\b", re.IGNORECASE)
#: Names in a path that make it different on every rank.
_OWN_PATH = re.compile(
    r"rank|proc|worker|shard|pid|uuid|mkdtemp|mkstemp|TemporaryDirectory|local|device", re.IGNORECASE
)
#: Calls after which every rank is certainly past what it did before; also others that may wait inside.
_WAITING = re.compile(
    r"barrier|wait|sync|reduce|broadcast|gather|scatter|all_to_all|fit|train|save|load_checkpoint|destroy_process_group",
    re.IGNORECASE,
)
_ONE_RANK = (RankSet.FIRST, RankSet.LOCAL_FIRST)
_REMOVERS = ("rmtree", "remove", "unlink")


def claims(module: Module) -> Iterator[Claim]:
    """Claims `shared_path`: `removed by every rank`, `removed too early` or `made by one rank`."""
    text = module.file.text
    if _DISTRIBUTED.search(text) is not None:
        for call in module.named("rmtree"):
            if module.called(call) != "shutil.rmtree" or len(call.args) != 1 or call.keywords:
                continue
            if _is_of_all(module, call) and not _is_caught(module, call) and not _is_own(module, call.args[0]):
                yield module.claim("shared_path", "removed by every rank", call)
        yield from _removed_early(module)
    if _RANK_WORDS.search(text) is not None:
        yield from _made_by_one(module)


def _removed_early(module: Module) -> Iterator[Claim]:
    """Rank 0 removes what every rank reads above, with nothing between at which it waits for the others."""
    for call in module.named(*_REMOVERS):
        path = _removed_path(module, call)
        if path is None or not dotted(path) or ranks_of(module).guard_of(call).who not in _ONE_RANK:
            continue
        for read in module.named("load", "load_file", "load_state_dict", "from_pretrained"):
            above = read.lineno < call.lineno and _is_of_all(module, read)
            if above and _uses(read, dotted(path)) and _nothing_waits(module, read, call):
                because = module.claim("shared_path", "read by every rank", read)
                yield module.claim("shared_path", "removed too early", call, because=(because,))
                break


def _made_by_one(module: Module) -> Iterator[Claim]:
    """Rank 0 makes a folder into which every rank writes below, with nothing between at which the others wait."""
    for call in module.named("makedirs", "mkdir"):
        path = _made_path(module, call)
        if path is None or not dotted(path) or ranks_of(module).guard_of(call).who not in _ONE_RANK:
            continue
        for write in module.named("save", "open"):
            below = write.lineno > call.lineno and _writes(module, write)
            if (
                below
                and _is_of_several(module, write)
                and _uses(write, dotted(path))
                and _nothing_waits(module, call, write)
            ):
                because = module.claim("checkpoint_written", RankSet.ALL.value, write)
                yield module.claim("shared_path", "made by one rank", call, because=(because,))
                break


def _writes(module: Module, call: ast.Call) -> bool:
    if last(module.called(call)) != "open":
        return module.called(call) in ("torch.save", "paddle.save", "numpy.save", "np.save")
    mode = argument(call, "mode", 1)
    given = value_of(mode) if mode is not None else None
    return isinstance(given, ast.Constant) and isinstance(given.value, str) and given.value[:1] in ("w", "a", "x")


def _removed_path(module: Module, call: ast.Call) -> ast.expr | None:
    if module.called(call) in ("os.remove", "os.unlink", "shutil.rmtree"):
        return call.args[0] if call.args else None
    if last(module.called(call)) == "unlink" and isinstance(call.func, ast.Attribute) and not call.args:
        return call.func.value
    return None


def _made_path(module: Module, call: ast.Call) -> ast.expr | None:
    if module.called(call) in ("os.makedirs", "os.mkdir"):
        return call.args[0] if call.args else None
    return call.func.value if isinstance(call.func, ast.Attribute) and not call.args else None


def _is_of_all(module: Module, call: ast.Call) -> bool:
    return ranks_of(module).guard_of(call).who is RankSet.ALL


def _is_of_several(module: Module, write: ast.Call) -> bool:
    """Whether several ranks write: without a condition, or each a file of its own by the name."""
    who = ranks_of(module).guard_of(write).who
    return who is RankSet.ALL or (who is RankSet.UNDECIDED and _RANK_WORDS.search(module.text(write)) is not None)


def _is_own(module: Module, path: ast.expr) -> bool:
    """Whether the words of a path, or of what it is made of, show that each rank has its own."""
    meant = module.definition(path) if isinstance(path, ast.Name) else path
    return any(_OWN_PATH.search(module.text(each)) is not None for each in (path, meant))


def _is_caught(module: Module, call: ast.Call) -> bool:
    for outer in module.outline.above(call):
        if isinstance(outer, ast.Try) and outer.handlers:
            return True
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)):
            break
    return False


def _uses(call: ast.Call, name: str) -> bool:
    """Whether an argument of a call holds the name."""
    return any(
        isinstance(node, (ast.Name, ast.Attribute)) and dotted(node) == name
        for given in (*call.args, *(keyword.value for keyword in call.keywords))
        for node in ast.walk(given)
    )


def _nothing_waits(module: Module, first: ast.Call, second: ast.Call) -> bool:
    """Whether two calls stand in one function and no call between them, by its name, waits for other ranks.

    Calls under the first one's condition on the rank are those of that rank alone, so they do not count.
    """
    if module.outline.function_of(first) is not module.outline.function_of(second):
        return False
    return not any(
        first.lineno < call.lineno < second.lineno
        and _WAITING.search(last(module.called(call))) is not None
        and not _is_around(call, first)
        and ranks_of(module).guard_of(call).who is RankSet.ALL
        for call in module.nodes(ast.Call)
    )


def _is_around(outer: ast.Call, inner: ast.Call) -> bool:
    return any(node is inner for node in ast.walk(outer))
