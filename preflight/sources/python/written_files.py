"""Claims about the files that ranks write, make and remove: checkpoints, and paths that they share."""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

from preflight.model.job import Claim, Known, alternatives
from preflight.sources.python.module import Module, argument, is_none, last, value_of
from preflight.sources.python.outline import dotted, end_of
from preflight.sources.python.rank_conditions import RankGuard, RankSet, ranks_of

#: The source of what is stated of the functions of a module, if a followed run calls them.
IN_FUNCTIONS = "python function"
#: Calls that write a model's state, by the last part of the name.
_SAVES = re.compile(
    r"save_?(?:the_)?(?:model|checkpoint|ckpt|state_dict|weights|pretrained|training_state|snapshot|networks?)s?\w*"
    r"|\w*Checkpoint(?:Saver|Manager|er|Writer)|ModelCheckpoint|save_file|save_(?:latest|last|best)\w*|write_checkpoint\w*|dump_checkpoint\w*"
)
_LIBRARY_SAVES = ("torch.save", "paddle.save", "torch.jit.save", "xm.save", "torch_xla.core.xla_model.save")
#: Names of checkpoints and of their files.
STATE = re.compile(r"state|model|net|optim|ckpt|checkpoint|snapshot|weight|param", re.IGNORECASE)
#: Words for objects that describe a model but are not one.
_ABOUT_MODEL = re.compile(r"(?:card|config|cfg|info|args|table|log|summary|index)$", re.IGNORECASE)
#: Words for work other than training that one process does.
_SIDE_WORK = re.compile(r"export|convert|onnx|torchscript|infer|predict|demo|visuali[sz]e|merge_lora", re.IGNORECASE)
_MODEL = re.compile(r"model|net$|ckpt|checkpoint|saver$|agent|policy", re.IGNORECASE)
#: Saved objects that are not checkpoints of a run, and destinations that are not files.
_NOT_CHECKPOINTS = re.compile(
    r"dataset|cache|vocab|feature|history|buf|stream|bytesio|stat(?:s|istics)?$|vectors", re.IGNORECASE
)
_DISTRIBUTED = re.compile(
    r"DistributedDataParallel|FullyShardedDataParallel|fully_shard|init_process_group|horovod|init_parallel_env"
)
#: Names in a path that make it different on every rank or node.
_OWN_CHECKPOINT_PATH = re.compile(
    r"rank|node|host|proc|worker|shard|pid|uuid|tmp|temp|scratch|local|getpid|device|gpu", re.IGNORECASE
)

#: Folders that every node has of its own.
OWN_DISKS = re.compile(
    r"/(?:tmp|var/tmp|dev/shm|raid\d*|(?:mnt/)?(?:local|nvme|ssd)(?:[_-]?(?:nvme|ssd|disk|scratch))?\d*|localscratch)/"
)


def checkpoint_claims(module: Module) -> Iterator[Claim]:
    """Yield all claims about which ranks write checkpoints."""
    distributed = _uses_ranks(module) and not _is_of_one_rank(module)
    for call in module.named("save", *(name for name in module.by_name if _SAVES.fullmatch(name))):
        name = module.called(call)
        library = name in _LIBRARY_SAVES
        if not library and not _SAVES.fullmatch(last(name)) and not _saves_model(call):
            continue
        if library and not STATE.search(" ".join(module.text(given) for given in call.args)):
            continue
        if (
            _is_by_trainer(module, call)
            or _has_own_path(module, call)
            or any(_is_not_checkpoint(module, given) for given in call.args)
        ):
            continue
        guard_of = ranks_of(module).guard_of(call)
        if guard_of.who is RankSet.LOCAL_FIRST and guard_of.test is not None:
            if _is_of_one_node(module):
                continue
            guard = module.claim("checkpoint_guard", guard_of.who.value, guard_of.test, condition="")
            yield module.claim("checkpoint_written", guard_of.who.value, call, because=(guard,))
        elif guard_of.who is RankSet.ALL and name in _LIBRARY_SAVES[:2] and distributed:
            yield module.claim("checkpoint_written", guard_of.who.value, call)


def _is_by_trainer(module: Module, call: ast.Call) -> bool:
    """Return whether Hugging Face's trainer saves, which lets rank 0 of the job write, whoever calls."""
    owner = module.definition(call.func.value) if isinstance(call.func, ast.Attribute) else None
    made = last(module.called(owner)) if isinstance(owner, ast.Call) else ""
    return last(module.called(call)) == "save_model" and made.endswith("Trainer")


def shared_files(module: Module) -> Iterator[Claim]:
    """Yield all claims about files on a node's own disk that rank 0 writes and every rank reads."""
    if not _uses_ranks(module):
        return
    written: dict[str, ast.Call] = {}
    for call in module.named("save"):
        path = _own_disk(module, argument(call, "f", 1))
        if path and module.called(call) in _LIBRARY_SAVES[:2] and ranks_of(module).guard_of(call).who is RankSet.FIRST:
            written.setdefault(path, call)
    for call in module.named("load") if written else ():
        path = _own_disk(module, argument(call, "f", 0))
        if path in written and ranks_of(module).guard_of(call).who is RankSet.ALL:
            wrote = module.claim("checkpoint_written", RankSet.FIRST.value, written[path])
            yield module.claim("local_checkpoint_read", path, call, because=(wrote,))


def _own_disk(module: Module, given: ast.keyword | ast.expr | None) -> str:
    """Return a literal path on the disk or in the memory of one node; otherwise empty."""
    found = alternatives(module.fold(value_of(given))) if given is not None else ()
    path = found[0] if len(found) == 1 else None
    return path if isinstance(path, str) and OWN_DISKS.match(path) else ""


def folders(module: Module) -> Iterator[Claim]:
    """Yield all claims about folders that every rank creates, and that must not exist yet."""
    if is_for_ranks(module):
        yield from _folders(module, ranks_of(module).guard_of)


def is_for_ranks(module: Module) -> bool:
    """Return whether a script itself shows that several ranks run it."""
    return (_uses_ranks(module) or "Accelerator(" in module.file.text) and not _is_of_one_rank(module)


def _uses_ranks(module: Module) -> bool:
    """Return whether a script uses what runs it on several ranks; it may import more than it uses."""
    names = (module.name(node) for node in module.nodes(ast.Name, ast.Attribute))
    return _DISTRIBUTED.search(module.file.text) is not None and any(map(_DISTRIBUTED.search, names))


def folders_of_module(module: Module) -> Iterator[Claim]:
    """Yield the claims about folders of a module, whose functions every rank enters, unless a caller must ask
    for it.
    """
    optional = {module.span(call) for call in module.named("mkdir", "makedirs") if _is_optional(module, call)}
    made = _folders(module, ranks_of(module).inside, IN_FUNCTIONS)
    return (claim for claim in made if claim.span not in optional)


def _is_optional(module: Module, call: ast.Call) -> bool:
    """Return whether a call is under a condition on an argument of the function that is None unless it is given."""
    function = module.outline.function_of(call)
    if function is None:
        return False
    names = [*function.args.kwonlyargs[::-1], *function.args.args[::-1]]
    values = [*function.args.kw_defaults[::-1], *function.args.defaults[::-1]]
    left_out = {name.arg for name, value in zip(names, values, strict=False) if value is not None and is_none(value)}
    tests = (outer.test for outer in module.outline.above(call) if isinstance(outer, ast.If))
    return any(isinstance(each, ast.Name) and each.id in left_out for test in tests for each in ast.walk(test))


def _folders(module: Module, guard: Callable[[ast.Call], RankGuard], source: str = "python") -> Iterator[Claim]:
    for call in module.named("mkdir", "makedirs"):
        name = module.called(call)
        if name not in ("os.mkdir", "os.makedirs") and not (last(name) == "mkdir" and not call.args):
            continue
        allowed = argument(call, "exist_ok", 2)
        may_exist = allowed is not None and module.fold(value_of(allowed)) != Known(False)
        if may_exist or _is_caught(module, call) or _is_side_work(module, call) or _is_in_turn(module, call):
            continue
        if guard(call).who is RankSet.ALL and not _has_own_path(module, call) and not _has_microseconds(module, call):
            yield module.claim("folder_made", module.text(call), call, source=source)


def _saves_model(call: ast.Call) -> bool:
    """Return `model.save(path)`, `checkpoint.save(...)`."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "save" or not (call.args or call.keywords):
        return False
    name = end_of(call.func.value)
    return _MODEL.search(name) is not None and _ABOUT_MODEL.search(name) is None


def _is_not_checkpoint(module: Module, given: ast.expr) -> bool:
    """Return whether the saved object is not a checkpoint, or the destination is a buffer, judging by its name or
    creation.
    """
    made = module.definition(given)
    blocks = (outer for outer in module.outline.above(given) if isinstance(outer, ast.With))
    opened = (item for block in blocks for item in block.items if item.optional_vars is not None)
    if dotted(given) and any(
        dotted(item.optional_vars or given) == dotted(given) and "BytesIO" in module.text(item.context_expr)
        for item in opened
    ):
        return True
    return any(
        _NOT_CHECKPOINTS.search(end_of(each)) for each in (given, made.func if isinstance(made, ast.Call) else given)
    )


def _is_of_one_rank(module: Module) -> bool:
    """Return whether the script creates a process group of one rank: `init_process_group(..., world_size=1,
    rank=0)`.
    """
    calls = module.named("init_process_group")
    sizes = [argument(call, "world_size", 3) for call in calls]
    return bool(calls) and all(size is not None and module.fold(value_of(size)) == Known(1) for size in sizes)


def _is_of_one_node(module: Module) -> bool:
    """Return whether the process group is given the local rank as its rank, which is right on one node only."""
    ranks = [argument(call, "rank", 4) for call in module.named("init_process_group")]
    return bool(ranks) and all(rank is not None and end_of(value_of(rank)) == "local_rank" for rank in ranks)


def _is_side_work(module: Module, call: ast.Call) -> bool:
    """Return whether the call is in a branch or function for work of a single process, such as an export or a
    prediction.
    """
    for outer in module.outline.above(call):
        if isinstance(outer, ast.If) and _SIDE_WORK.search(module.text(outer.test)):
            return True
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return _SIDE_WORK.search(outer.name) is not None
    return False


def _is_in_turn(module: Module, call: ast.Call) -> bool:
    """Return whether a call is under `with accelerator.main_process_first():` or the like."""
    blocks = (outer for outer in module.outline.above(call) if isinstance(outer, ast.With))
    return any("_first" in module.text(item.context_expr) for block in blocks for item in block.items)


def _is_caught(module: Module, call: ast.Call) -> bool:
    for outer in module.outline.above(call):
        if isinstance(outer, ast.Try) and outer.handlers:
            return True
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)):
            break
    return False


def _has_own_path(module: Module, call: ast.Call) -> bool:
    """Return whether the path names the rank or node, so that no two ranks write the same file."""
    position = 1 if module.called(call) in _LIBRARY_SAVES else None
    given = argument(call, "f", position) if position else None
    paths = [value_of(given)] if given is not None else [*call.args, *(keyword.value for keyword in call.keywords)]
    if isinstance(call.func, ast.Attribute) and call.func.attr == "mkdir":
        paths.append(call.func.value)
    return any(
        _OWN_CHECKPOINT_PATH.search(name) for path in paths for name in _names(module, path, position is not None)
    )


def _has_microseconds(module: Module, call: ast.Call) -> bool:
    """Return whether the path of a folder has the time in microseconds, which no two ranks share."""
    paths = [*call.args, call.func.value if isinstance(call.func, ast.Attribute) else call]
    return any("%f" in name for path in paths for name in _names(module, path, True))


def _names(module: Module, expression: ast.expr, texts: bool) -> Iterator[str]:
    """Yield the names in an expression and in its definitions; with `texts` literal strings, too."""
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
        elif isinstance(node, ast.Attribute) and (held := module.outline.assigned_once(node)) is not None:
            pending.append(held)
        else:
            pending.extend(ast.iter_child_nodes(node))


_RANK_WORDS = re.compile(r"\b(?:\w+_)?rank\b", re.IGNORECASE)
#: Names in a path that make it different on every rank.
_OWN_SHARED_PATH = re.compile(
    r"rank|proc|worker|shard|pid|uuid|mkdtemp|mkstemp|TemporaryDirectory|local|device", re.IGNORECASE
)
#: Calls after which every rank is certainly past what it did before; also others that may wait inside.
_WAITING = re.compile(
    r"barrier|wait|sync|reduce|broadcast|gather|scatter|all_to_all|fit|train|save|load_checkpoint|destroy_process_group",
    re.IGNORECASE,
)
_EXISTS = re.compile(r"exists\(|is_?file\(|is_?dir\(", re.IGNORECASE)
_ONE_RANK = (RankSet.FIRST, RankSet.LOCAL_FIRST)
_REMOVERS = ("rmtree", "remove", "unlink")


def shared_path_claims(module: Module) -> Iterator[Claim]:
    """Yield claims `shared_path`: `removed by every rank`, `removed too early`, `made by one rank`, `written by one
    rank`.
    """
    text = module.file.text
    is_distributed, has_ranks = _uses_ranks(module), _RANK_WORDS.search(text) is not None
    waits = _waits(module) if is_distributed or has_ranks else []
    if is_distributed:
        for call in module.named("rmtree"):
            if module.called(call) != "shutil.rmtree" or len(call.args) != 1 or call.keywords:
                continue
            if _is_of_all(module, call) and not _is_caught(module, call) and not _is_own(module, call.args[0]):
                yield module.claim("shared_path", "removed by every rank", call)
        yield from _removed_early(module, waits)
    if has_ranks:
        yield from _made_by_one(module, waits)
        yield from _read_early(module, waits)


def _removed_early(module: Module, waits: Sequence[int]) -> Iterator[Claim]:
    """Yield paths that rank 0 removes after every rank reads them, without a wait for the others in between."""
    for call in module.named(*_REMOVERS):
        path = _removed_path(module, call)
        if path is None or not dotted(path) or ranks_of(module).guard_of(call).who not in _ONE_RANK:
            continue
        for read in module.named("load", "load_file", "load_state_dict", "from_pretrained"):
            above = read.lineno < call.lineno and _is_of_all(module, read)
            if above and _uses(read, dotted(path)) and _nothing_waits(module, read, call, waits):
                because = module.claim("shared_path", "read by every rank", read)
                yield module.claim("shared_path", "removed too early", call, because=(because,))
                break


def _made_by_one(module: Module, waits: Sequence[int]) -> Iterator[Claim]:
    """Yield folders that rank 0 creates before every rank writes to them, without a wait by the others in between."""
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
                and _nothing_waits(module, call, write, waits)
            ):
                because = module.claim("checkpoint_written", RankSet.ALL.value, write)
                yield module.claim("shared_path", "made by one rank", call, because=(because,))
                break


#: What writes or fetches files, and what reads them, by the last part of the name.
_WRITING = re.compile(
    r"save(?:_to_disk|_file|z|_pretrained)?|\w*download\w*|urlretrieve|to_(?:csv|parquet|json)|extractall"
)
_READING = re.compile(
    r"load(?:_from_disk|_file)?|open|read_(?:csv|parquet|json)|from_(?:csv|file|json)|\w*Dataset|\w*Folder"
)


def _read_early(module: Module, waits: Sequence[int]) -> Iterator[Claim]:
    """Yield paths that rank 0 writes before every rank reads them, without a wait by the others in between."""
    reads: dict[str, list[ast.Call]] = {}
    fetched = {module.called(call) for call in module.calls if _downloads(call)}
    for call in module.calls:
        name = module.called(call)
        is_read = name in fetched and not _downloads(call)
        if call.args and (is_read or _READING.fullmatch(last(name))) and _is_of_all(module, call):
            path = module.text(call.args[0]) if is_read else _path_text(call.args[0])
            reads.setdefault(path, []).append(call)
    reads.pop("", None)
    for call in module.calls if reads else ():
        is_written = _WRITING.fullmatch(last(module.called(call))) is not None or _downloads(call)
        if not is_written or ranks_of(module).guard_of(call).who not in _ONE_RANK:
            continue
        texts = {_path_text(given) for given in (*call.args, *(word.value for word in call.keywords))}
        paths = texts | {module.text(call.args[0])} if _downloads(call) and call.args else texts - {""}
        later = [read for path in paths for read in reads.get(path, ()) if read.lineno > call.lineno]
        read = next((read for read in later if _nothing_waits(module, call, read, waits)), None)
        if read is not None:
            because = module.claim("shared_path", "read by every rank", read)
            yield module.claim("shared_path", "written by one rank", call, because=(because,))


def _downloads(call: ast.Call) -> bool:
    """Return whether a data set is fetched where it is made: `CIFAR10(root, download=True)`."""
    given = argument(call, "download")
    value = value_of(given) if given is not None else None
    return isinstance(value, ast.Constant) and value.value is True


def _path_text(given: ast.expr) -> str:
    """Return a path as it is written: a name, or a constant with a slash or a dot; empty for anything else."""
    if isinstance(given, ast.Constant):
        return given.value if isinstance(given.value, str) and re.search(r"[./]", given.value) else ""
    return dotted(given)


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
    """Return whether several ranks write: without a condition, or each a file of its own by the name."""
    who = ranks_of(module).guard_of(write).who
    return who is RankSet.ALL or (who is RankSet.UNDECIDED and _RANK_WORDS.search(module.text(write)) is not None)


def _is_own(module: Module, path: ast.expr) -> bool:
    """Return whether the words of a path, or of what it is made of, show that each rank has its own."""
    meant = module.definition(path) if isinstance(path, ast.Name) else path
    return any(_OWN_SHARED_PATH.search(module.text(each)) is not None for each in (path, meant))


def _uses(call: ast.Call, name: str) -> bool:
    """Return whether an argument of a call holds the name."""
    return any(
        isinstance(node, (ast.Name, ast.Attribute)) and dotted(node) == name
        for given in (*call.args, *(keyword.value for keyword in call.keywords))
        for node in ast.walk(given)
    )


def _waits(module: Module) -> list[int]:
    """Return the lines of the calls of every rank that, by their names, wait for other ranks, and of loops that wait
    for a file; in order.

    Calls under a condition on the rank are those of one rank alone, so they do not count.
    """
    calls = (
        call.lineno
        for call in module.calls
        if _WAITING.search(last(module.called(call))) is not None and _is_of_all(module, call)
    )
    loops = (loop.lineno for loop in module.nodes(ast.While) if _EXISTS.search(module.text(loop.test)))
    return sorted((*calls, *loops))


def _nothing_waits(module: Module, first: ast.Call, second: ast.Call, waits: Sequence[int]) -> bool:
    """Return whether two calls are in one function and no rank waits for others on a line between them."""
    after = bisect_right(waits, first.lineno)
    if after < len(waits) and waits[after] < second.lineno:
        return False
    return module.outline.function_of(first) is module.outline.function_of(second)
