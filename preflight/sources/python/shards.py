"""Claims about samples that are divided among ranks by hand so that some ranks get fewer than others.

`per = ceil(n / ranks)` with `min((rank + 1) * per, n)` leaves the last rank the remainder; `n // ranks` with the rest
for the last rank gives it more. Either way the ranks run different numbers of steps, and those that finish first leave
the others waiting. Padding, dropping or wrapping around makes them equal again.

A list may be written out, be the entries of a folder of the tree, or be in the one JSON or YAML file near the script
that has its key: a guess, as only the launch line says which file the script is given.
"""

from __future__ import annotations

import ast
import fnmatch
import posixpath
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from preflight._util.budget import spend
from preflight._util.redaction import scrub
from preflight._util.spans import span_of
from preflight.model.job import Claim, Known, Span, Unresolved
from preflight.sources.base import SourceFile
from preflight.sources.formats import lenient_json, lenient_yaml
from preflight.sources.formats.structured import Kind, Member, Node
from preflight.sources.python.module import Module, argument, last, value_of
from preflight.sources.python.outline import Function, dotted, end_of
from preflight.sources.python.rank_conditions import RankSet, is_rank, ranks_where_true

_RANKS = re.compile(
    r"world|size|ranks?$|(?:trainer|worker|rank|gpu|replica)s?_(?:num|count)|replicas?|num_(?:rank|proc|shard|gpu|worker|part|trainer)\w*|n_?(?:rank|proc|gpu)s?",
    re.IGNORECASE,
)
#: Words that show that the shares are made equal.
_EQUALIZING_WORDS = re.compile(
    r"pad|total_size|drop_last|drop_remainder|repeat|cycle|extend|wrap|even|truncat|tile|(?-i:Join\b)"
    r"|\.join\((?:\)|divide)|% ?len\("
    r"|\+=? *[\w.]+\[ *:",
    re.IGNORECASE,
)
#: Work in which ranks do not wait for each other.
UNSYNCHRONIZED_WORK = re.compile(
    r"eval|valid|test|infer|predict|generat|preprocess|tokeni|extract|download|convert|encode|compute|annotat|upload",
    re.IGNORECASE,
)
#: Work that is divided by a loader.
_SHARING = re.compile(r"sampl|shard|share|split|partition|dataset|loader|indices|batch", re.IGNORECASE)
_STRIDING = re.compile(r"[sS]ampler|[sS]hard")
_STREAMING = re.compile(r"streaming\s*=\s*True")
#: Wrappers whose backward pass waits for all ranks.
_WAITING = re.compile(r"DistributedDataParallel|FullyShardedDataParallel|fully_shard\(")
#: Words that show that the ranks end at the same step.
_ENDING_TOGETHER = re.compile(
    r"\bJoin\b|\.join\((?:\)|divide)|islice|\.take\(|max_steps|num_steps|total_steps|StopIteration|repeat|cycle"
    r"|all_reduce|all_gather|\bbreak\b|range\(\w*steps"
)
#: Calls that take a step with the other ranks.
_STEPS = frozenset(("backward", "train_batch", "run"))
#: Longer functions divide many things and are not examined.
_MAX_LENGTH = 400


_DIVIDES = re.compile(r"//|% ?\w|ceil\(|\w\s*:\s*:|range\([^)\n]*rank|_split\(")


def claims(module: Module) -> Iterator[Claim]:
    """Yield all claims about uneven shares."""
    yield from _streams(module)
    yield from _readers_by_rank(module)
    if "::" in module.file.text:
        yield from _strided_loops(module)
    if "::" in module.file.text or "enumerate" in module.file.text:
        yield from _orders_by_rank(module)
    if "set(" in module.file.text and "PYTHONHASHSEED" not in module.file.text:
        yield from _numbered_sets(module)
    for block in module.nodes(ast.With):
        for item in block.items:
            made = item.context_expr
            if isinstance(made, ast.Call) and last(module.called(made)) in ("join", "Join"):
                yield module.claim("joins_uneven", True, made)
    if "rank" not in module.file.text or _DIVIDES.search(module.file.text) is None:
        return
    functions: list[Function] = [*module.nodes(ast.FunctionDef), *module.nodes(ast.AsyncFunctionDef)]
    evened: dict[int, re.Match[str] | None] = {}
    for function in functions:
        if _is_unsynchronized(module, function):
            continue
        text = module.source(function)
        if "rank" not in text or _DIVIDES.search(text) is None:
            continue
        found = next(_uneven_shares(module, function, text), None)
        if found is None:
            continue
        kind, place = found
        around = _enclosing_scope(module, function)
        if id(around) not in evened:
            evened[id(around)] = _EQUALIZING_WORDS.search(module.source(around))
        word = evened[id(around)]
        value = Unresolved(f"`{word.group(0)}` may make the shares equal again") if word else Known(kind)
        yield module.claim("uneven_shards", value, place, condition="")


def _streams(module: Module) -> Iterator[Claim]:
    """Yield a set that is streamed and split by node, in a loop where the ranks wait for each other at every step."""
    text = module.file.text
    splits = module.named("split_dataset_by_node")
    if not splits or _STREAMING.search(text) is None or _WAITING.search(text) is None or "backward(" not in text:
        return
    word = _ENDING_TOGETHER.search(text)
    for call in splits:
        names = f"{module.bound_to(call)} {module.text(call)}"
        if UNSYNCHRONIZED_WORK.search(names) is None:
            value = Unresolved(f"`{word.group(0)}` may end all ranks at the same step") if word else Known("stream")
            yield module.claim("uneven_shards", value, call, condition="")


def _readers_by_rank(module: Module) -> Iterator[Claim]:
    """Yield `if rank == 0: reader = batch(a, 64)` and `else: reader = batch(b, 64)`: as many steps as each data set
    has.
    """
    for branch in module.nodes(ast.If):
        if not branch.orelse or ranks_where_true(module, branch.test) in (RankSet.ALL, RankSet.UNDECIDED):
            continue
        first, second = _reader(module, branch.body), _reader(module, branch.orelse)
        if first is None or second is None or module.bound_to(first) != module.bound_to(second):
            continue
        data = [argument(call, "dataset", 0) or argument(call, "reader", 0) for call in (first, second)]
        texts = [module.text(given) for given in data if given is not None]
        if len(texts) == 2 and texts[0] != texts[1]:
            yield module.claim("uneven_shards", "readers", branch.test, condition="")


def _reader(module: Module, statements: list[ast.stmt]) -> ast.Call | None:
    """Return the one loader that a branch assigns."""
    found = [
        node.value
        for node in statements
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and last(module.called(node.value)) in ("batch", "DataLoader")
    ]
    return found[0] if len(found) == 1 else None


def _strided_loops(module: Module) -> Iterator[Claim]:
    """Yield `mine = files[rank::size]`, and a loop over it that trains: each rank takes as many steps as its files
    have.
    """
    names = {
        end_of(target): node.value
        for node in module.nodes(ast.Assign)
        if _is_strided_by_rank(module, node.value)
        for target in node.targets
    }
    names.pop("", None)
    for loop in module.nodes(ast.For) if names else ():
        taken = names.get(end_of(loop.iter))
        steps = [node for node in ast.walk(loop) if isinstance(node, ast.Call) and end_of(node.func) in _STEPS]
        if taken is None or not steps or _EQUALIZING_WORDS.search(module.source(loop).replace("paddle", "")):
            continue
        yield module.claim("uneven_shards", "files", taken, condition="")
        return
    text = module.file.text
    if not names or _WAITING.search(text) is None or "backward(" not in text:
        return
    word = _EQUALIZING_WORDS.search(text) or _ENDING_TOGETHER.search(text)
    for name, taken in names.items():
        # The files of a rank feed its loader: it takes as many steps as they hold samples.
        if word is None and UNSYNCHRONIZED_WORK.search(name) is None:
            yield module.claim("uneven_shards", "files", taken, condition="")
            return


#: Calls that take a seed.
_SEEDING = ("seed", "manual_seed", "set_seed", "seed_everything", "default_rng", "Random", "PCG64", "RandomState")


def _orders_by_rank(module: Module) -> Iterator[Claim]:
    """Yield a list divided by rank whose order differs between ranks: shuffled without one seed, just listed, or of a
    set.
    """
    seeds = list(module.named(*_SEEDING))
    ranked = [call for call in seeds if any(_mentions_rank(module, item) for item in call.args)]
    for divided in _divided_by_rank(module):
        name = divided.id
        shuffles = [call for call in module.named("shuffle") if [end_of(item) for item in call.args[:1]] == [name]]
        made = module.definition(divided)
        drawn = isinstance(made, ast.Call) and last(module.called(made)) in ("randperm", "permutation", "sample")
        if (shuffles or drawn) and (ranked or not seeds):
            at: ast.AST = shuffles[0] if shuffles else made
            yield module.claim("shard_order", "seed of each rank" if ranked else "no seed", at, condition="")
        elif shuffles or any(dotted(call.func) == f"{name}.sort" for call in module.named("sort")):
            continue
        elif isinstance(made, ast.Call) and last(module.called(made)) in ("listdir", "glob", "iglob"):
            yield module.claim("shard_order", "unsorted", made, condition="")
        elif _lists_a_set(module, made) and "PYTHONHASHSEED" not in module.file.text:
            yield module.claim("shard_order", "set", made, condition="")


def _divided_by_rank(module: Module) -> Iterator[ast.Name]:
    """Yield the lists of `items[rank::size]` and `for i, item in enumerate(items) if i % size == rank`."""
    for node in module.nodes(ast.Subscript):
        if _is_strided_by_rank(module, node) and isinstance(node.value, ast.Name):
            yield node.value
    loops = [node.generators[0] for node in module.nodes(ast.ListComp)]
    loops += [node.generators[0] for node in module.nodes(ast.GeneratorExp)]
    for loop in loops:
        counted = loop.iter.args[0] if isinstance(loop.iter, ast.Call) and len(loop.iter.args) == 1 else None
        if isinstance(counted, ast.Name) and any(_selects_by_rank(module, test) for test in loop.ifs):
            yield counted


def _lists_a_set(module: Module, value: ast.AST) -> bool:
    """Return whether a value is a list of a set."""
    if not isinstance(value, ast.Call) or last(module.called(value)) not in ("list", "tuple") or len(value.args) != 1:
        return False
    return _is_set(module, value.args[0])


def _is_set(module: Module, value: ast.expr) -> bool:
    """Return whether a value is a set, which is not one of numbers: these keep their order."""
    made = module.definition(value)
    is_made = isinstance(made, ast.Call) and last(module.called(made)) in ("set", "frozenset")
    return (is_made or isinstance(made, (ast.Set, ast.SetComp))) and "int(" not in module.source(made)


def _numbered_sets(module: Module) -> Iterator[Claim]:
    """Yield `{name: i for i, name in enumerate(set(names))}`, the same as a loop, and `dict(zip(set(names),
    range(9)))`.
    """
    found: list[tuple[ast.expr, ast.AST, str]] = []
    for node in module.nodes(ast.DictComp):
        numbered = _numbered(module, node.generators[0].target, node.generators[0].iter)
        if numbered is not None and (ast.unparse(node.value), ast.unparse(node.key)) == numbered:
            found.append((node, node, _table(module, node)))
    for loop in module.nodes(ast.For):
        numbered = _numbered(module, loop.target, loop.iter)
        for each in ast.walk(loop) if numbered is not None else ():
            target = each.targets[0] if isinstance(each, ast.Assign) else None
            if not isinstance(each, ast.Assign) or not isinstance(target, ast.Subscript):
                continue
            if (ast.unparse(each.value), ast.unparse(target.slice)) == numbered:
                found.append((loop.iter, loop, dotted(target.value)))
    for call in module.named("zip"):
        parent = module.parent(call)
        second = call.args[1] if len(call.args) == 2 else None
        if (
            not isinstance(parent, ast.Call)
            or last(module.called(parent)) != "dict"
            or not isinstance(second, ast.Call)
        ):
            continue
        is_set = _is_set(module, call.args[0]) or _lists_a_set(module, call.args[0])
        if is_set and last(module.called(second)) in ("range", "count"):
            found.append((call, parent, _table(module, parent)))
    for shown, made, table in found:
        if _is_kept(module, made, table):
            yield module.claim("numbered_set", "", shown, condition="")


def _table(module: Module, node: ast.AST) -> str:
    """Return the name of a table: `self.number`; empty if the table is used directly."""
    parent = module.parent(node)
    return dotted(parent.targets[0]) if isinstance(parent, ast.Assign) else ""


def _is_kept(module: Module, node: ast.AST, table: str) -> bool:
    """Return whether a table is more than a help within one function: it is stored, returned or passed on."""
    function = module.outline.function_of(node)
    if function is None or "." in table or not table:
        return True
    for each in ast.walk(function):
        passed: list[ast.expr | None] = []
        if isinstance(each, ast.Call):
            passed = [*each.args, *(keyword.value for keyword in each.keywords)]
        elif isinstance(each, (ast.Return, ast.Assign)):
            passed = [*each.value.elts] if isinstance(each.value, ast.Tuple) else [each.value]
        if any(isinstance(value, ast.Name) and value.id == table for value in passed):
            return True
    return False


def _numbered(module: Module, target: ast.expr, items: ast.expr) -> tuple[str, str] | None:
    """Return the names of the number and the item in `for i, item in enumerate(set(items))`; None for any other
    loop.
    """
    if not isinstance(items, ast.Call) or last(module.called(items)) != "enumerate" or not items.args:
        return None
    counted = module.definition(items.args[0])
    if not isinstance(target, ast.Tuple) or len(target.elts) != 2:
        return None
    sorts = [dotted(call.func) for call in module.named("sort")]
    is_set = _is_set(module, items.args[0]) or _lists_a_set(module, counted)
    is_set = is_set and f"{dotted(items.args[0])}.sort" not in sorts
    return (ast.unparse(target.elts[0]), ast.unparse(target.elts[1])) if is_set else None


def _mentions_rank(module: Module, expression: ast.expr) -> bool:
    return any(isinstance(node, ast.expr) and is_rank(module, node) for node in ast.walk(expression))


def _is_strided_by_rank(module: Module, value: ast.expr) -> bool:
    part = value.slice if isinstance(value, ast.Subscript) else None
    if not isinstance(part, ast.Slice) or part.lower is None or part.step is None:
        return False
    return is_rank(module, part.lower)


def _uneven_shares(module: Module, function: Function, text: str) -> Iterator[tuple[str, ast.AST]]:
    """Yield the kinds of uneven shares in a function, each with its location."""
    for kind, words, find in (
        ("clamp", ("min(", " > "), _clamp),
        ("rest", ("- 1",), _remainder),
        ("stride", (), _stride),
    ):
        place = find(module, function) if not words or any(word in text for word in words) else None
        if place is not None:
            yield kind, place


def _clamp(module: Module, function: Function) -> ast.AST | None:
    """Return `min((rank + 1) * per, n)` where `per` is a share rounded up."""
    nodes = list(ast.walk(function))
    if len(nodes) > 20 * _MAX_LENGTH:
        return None
    shares = {
        target.id
        for node in nodes
        if isinstance(node, ast.Assign) and _is_rounded_up(module, node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    shares |= {
        target.attr
        for node in nodes
        if isinstance(node, ast.Assign) and _is_rounded_up(module, node.value)
        for target in node.targets
        if isinstance(target, ast.Attribute)
    }
    starts = {
        end_of(node.targets[0])
        for node in nodes
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and _is_start(module, node.value, shares)
    }
    ends = {
        end_of(node.targets[0])
        for node in nodes
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and _adds_share(node.value, shares, starts)
    } - {""}
    for node in nodes if shares else ():
        if isinstance(node, ast.If) and isinstance(node.test, ast.Compare) and len(node.body) == 1:
            body = node.body[0]
            cut = isinstance(body, ast.Assign) and end_of(body.targets[0]) == end_of(node.test.left)
            if cut and end_of(node.test.left) in ends and isinstance(node.test.ops[0], (ast.Gt, ast.GtE)):
                return node.test
        if isinstance(node, ast.Call) and last(module.called(node)) == "min" and len(node.args) == 2:
            for given in node.args:
                if _is_start(module, given, shares) or _adds_share(given, shares, starts):
                    return node
    return None


def _remainder(module: Module, function: Function) -> ast.AST | None:
    """Return `end = n if rank == size - 1 else start + per`, or the same with `if`: the last rank takes the rest."""
    for node in ast.walk(function):
        if not isinstance(node, (ast.If, ast.IfExp)) or not _is_last(module, node.test):
            continue
        taken = node.body if isinstance(node, ast.IfExp) else None
        if isinstance(node, ast.If) and len(node.body) == 1 and isinstance(node.body[0], ast.Assign):
            taken = node.body[0].value
        if taken is not None and _is_whole(taken):
            return node.test
    return None


def _stride(module: Module, function: Function) -> ast.AST | None:
    """Return `range(rank, n, size)`, `items[rank::size]` or `array_split(items, size)[rank]` of a sampler or set of
    shards.
    """
    around = _enclosing_scope(module, function)
    names = (around.name, *(end_of(base) for base in around.bases)) if isinstance(around, ast.ClassDef) else ()
    names = names or (function.name,)
    if not any(_STRIDING.search(name) for name in names):
        return None
    for node in ast.walk(function):
        if isinstance(node, ast.Slice) and node.lower is not None and node.step is not None:
            if is_rank(module, node.lower) and _is_count(node.step):
                return module.outline.parent(node)
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Call):
            parts = node.value.args[1:2]
            if last(module.called(node.value)) in ("array_split", "tensor_split") and is_rank(module, node.slice):
                return node if parts and _is_count(parts[0]) else None
        elif isinstance(node, ast.comprehension) and len(node.ifs) == 1 and _selects_by_rank(module, node.ifs[0]):
            return node.ifs[0]
        elif isinstance(node, ast.Call) and last(module.called(node)) == "range" and len(node.args) == 3:
            start, _, step = node.args
            if is_rank(module, start) and _is_count(step):
                return node
    return None


def _selects_by_rank(module: Module, test: ast.expr) -> bool:
    """Return `i % size == rank`."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq):
        return False
    left, right = test.left, test.comparators[0]
    turned = isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mod) and _is_count(left.right)
    return turned and is_rank(module, right)


def _is_last(module: Module, test: ast.expr) -> bool:
    """Return `rank == size - 1`, `rank < size - 1`."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not is_rank(module, test.left):
        return False
    right = test.comparators[0]
    return (
        isinstance(test.ops[0], ast.Eq)
        and isinstance(right, ast.BinOp)
        and isinstance(right.op, ast.Sub)
        and isinstance(right.right, ast.Constant)
        and right.right.value == 1
        and _is_count(right.left)
    )


def _is_whole(expression: ast.expr) -> bool:
    """Return whether an expression is a total, not one rank's share: `len(dataset)`, `n`, `self.total`."""
    if isinstance(expression, ast.Call):
        return end_of(expression.func) == "len"
    return bool(re.fullmatch(r"n|num_\w+|total\w*|length|size|\w*_(?:len|length|count|total|end)", end_of(expression)))


def _is_rounded_up(module: Module, expression: ast.expr) -> bool:
    """Return `ceil(n / size)`, `int(math.ceil(n * 1.0 / size))`, `(n + size - 1) // size`, `-(-n // size)`."""
    if isinstance(expression, ast.Call):
        if last(module.called(expression)) == "ceil" and len(expression.args) == 1:
            divided = expression.args[0]
            return isinstance(divided, ast.BinOp) and isinstance(divided.op, ast.Div) and _is_count(divided.right)
        if last(module.called(expression)) == "int" and len(expression.args) == 1:
            return _is_rounded_up(module, expression.args[0])
        return False
    if isinstance(expression, ast.UnaryOp) and isinstance(expression.op, ast.USub):
        inner = expression.operand
        return (
            isinstance(inner, ast.BinOp)
            and isinstance(inner.op, ast.FloorDiv)
            and isinstance(inner.left, ast.UnaryOp)
            and _is_count(inner.right)
        )
    if isinstance(expression, ast.BinOp) and isinstance(expression.op, ast.FloorDiv) and _is_count(expression.right):
        added = {end_of(node) for node in ast.walk(expression.left)}
        return isinstance(expression.left, ast.BinOp) and end_of(expression.right) in added
    return False


def _is_count(expression: ast.expr) -> bool:
    if isinstance(expression, ast.Call):
        expression = expression.func
    return bool(_RANKS.search(end_of(expression)))


def _is_start(module: Module, expression: ast.expr, shares: set[str]) -> bool:
    """Return `rank * per`, `(rank + 1) * per - 1`."""
    for node in ast.walk(expression):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            names = {end_of(each) for each in ast.walk(node)}
            ranked = any(isinstance(each, ast.expr) and is_rank(module, each) for each in ast.walk(node))
            if ranked and names & shares:
                return True
    return False


def _adds_share(expression: ast.expr, shares: set[str], starts: set[str]) -> bool:
    """Return `start + per`."""
    names = {end_of(node) for node in ast.walk(expression)}
    return isinstance(expression, ast.BinOp) and bool(names & shares) and bool(names & starts)


def _is_unsynchronized(module: Module, function: Function) -> bool:
    """Return whether the function divides something other than the samples of a training run."""
    around = _enclosing_scope(module, function)
    names = (function.name, around.name if isinstance(around, ast.ClassDef) else "")
    if any(UNSYNCHRONIZED_WORK.search(name) for name in (*names, module.file.path.rpartition("/")[2])):
        return True
    own = function.name.startswith("__") and around is not function
    return not own and not any(_SHARING.search(name) for name in (*names, module.file.path.rpartition("/")[2]))


def _enclosing_scope(module: Module, function: Function) -> ast.AST:
    """Return the class of a method, or the function itself."""
    return next((outer for outer in module.outline.above(function) if isinstance(outer, ast.ClassDef)), function)


_SUFFIXES = (".json", ".yaml", ".yml")
#: Files of settings that are searched, their size, and the entries of a folder that are looked at.
_MAX_FILES, _MAX_SIZE, _MAX_NAMES = 40, 200_000, 400
_MAX_DEPTH = 6
#: Methods after which a list has another length.
_CHANGES = ("append", "extend", "insert", "pop", "remove", "clear")


class Items(NamedTuple):
    """The number of items of a written list, and whether the script itself contains the list."""

    number: int
    span: Span
    certain: bool


class Setting(NamedTuple):
    """A value of a settings file, with the place of its key."""

    node: Node
    span: Span


def items_of(module: Module, expression: ast.expr, depth: int = 0) -> Items | None:
    """Return the number of items of a list; None if it is not known."""
    name = dotted(expression)
    if depth > _MAX_DEPTH or any(dotted(call.func).startswith(f"{name}.") for call in module.named(*_CHANGES)):
        return None
    known = module.fold(expression)
    if isinstance(known, Known) and isinstance(known.value, tuple):
        return Items(len(known.value), module.span(expression), True)
    if isinstance(expression, (ast.List, ast.Tuple)):
        plain = not any(isinstance(each, ast.Starred) for each in expression.elts)
        return Items(len(expression.elts), module.span(expression), True) if plain else None
    if isinstance(expression, ast.ListComp):
        source = expression.generators[0]
        whole = len(expression.generators) == 1 and not source.ifs
        return items_of(module, source.iter, depth + 1) if whole else None
    if isinstance(expression, ast.Call):
        return _call_claims(module, expression, depth)
    if isinstance(expression, ast.Subscript):
        setting = setting_of(module, expression)
        if setting is None or setting.node.kind is not Kind.ARRAY:
            return None
        return Items(len(setting.node.items), setting.span, False)
    if isinstance(expression, (ast.Name, ast.Attribute)):
        found = bound_value(module, expression)
        return items_of(module, found, depth + 1) if found is not None else None
    return None


def bound_value(module: Module, name: ast.expr) -> ast.expr | None:
    """Return the value of a name that is bound once, or is the argument of a function that is called once."""
    made = module.definition(name)
    made = module.outline.assigned_once(made) or made
    if made is not name:
        return made
    function = module.outline.function_of(name)
    names = [each.arg for each in function.args.args] if function is not None else []
    calls = module.outline.calls_named(function.name) if function is not None else ()
    if dotted(name) not in names or len(calls) != 1:
        return None
    given = argument(calls[0], dotted(name), names.index(dotted(name)))
    return value_of(given) if given is not None else None


def _call_claims(module: Module, call: ast.Call, depth: int) -> Items | None:
    name = module.called(call)
    if name in ("sorted", "list", "tuple") and call.args:
        return items_of(module, call.args[0], depth + 1)
    if name == "range" and len(call.args) == 1:
        known = module.fold(call.args[0])
        whole = isinstance(known, Known) and isinstance(known.value, int) and not isinstance(known.value, bool)
        return Items(int(str(getattr(known, "value", 0))), module.span(call), True) if whole else None
    if last(name) not in ("listdir", "glob") or len(call.args) != 1:
        return None
    known = module.fold(call.args[0])
    path = known.value if isinstance(known, Known) and isinstance(known.value, str) else ""
    folder, pattern = posixpath.split(path) if last(name) == "glob" else (path, "*")
    target = module.files.resolve(folder, relative_to=module.file.path) if folder else None
    names = module.files.names(target) if target and not re.search(r"[*?[]", folder) else ()
    found = [each for each in names[:_MAX_NAMES] if fnmatch.fnmatch(each.rstrip("/"), pattern)]
    return Items(len(found), module.span(call), False) if found and len(names) < _MAX_NAMES else None


def setting_of(module: Module, expression: ast.expr) -> Setting | None:
    """Return the value of `settings["runner"]["files"]` in the one file of settings near the script that has the
    keys.
    """
    keys: list[str] = []
    at = expression
    while isinstance(at, ast.Subscript):
        known = module.fold(at.slice)
        if not isinstance(known, Known) or not isinstance(known.value, str):
            return None
        keys.insert(0, known.value)
        at = at.value
        if isinstance(at, ast.Name) and isinstance(bound_value := module.definition(at), ast.Subscript):
            at = bound_value
    if not keys or not isinstance(at, (ast.Name, ast.Attribute)):
        return None
    found = [setting for file in _settings_files(module) for setting in _values(file, keys)]
    return found[0] if len(found) == 1 else None


def _settings_files(module: Module) -> Iterator[SourceFile]:
    own = posixpath.dirname(module.file.path)
    folders = list(dict.fromkeys((own, posixpath.dirname(own), "")))
    inner = [posixpath.join(folder, name.rstrip("/")) for folder in folders for name in _folders_in(module, folder)]
    paths = [
        posixpath.join(folder, name)
        for folder in dict.fromkeys((*folders, *inner))
        for name in module.files.names(folder)[:_MAX_NAMES]
        if name.endswith(_SUFFIXES)
    ]
    for path in dict.fromkeys(paths[:_MAX_FILES]):
        file = module.files.read(path)
        if isinstance(file, SourceFile) and len(file.text) <= _MAX_SIZE:
            yield file


def _folders_in(module: Module, folder: str) -> list[str]:
    return [name for name in module.files.names(folder)[:_MAX_NAMES] if name.endswith("/")]


def _values(file: SourceFile, keys: list[str]) -> Iterator[Setting]:
    """Yield the values below these keys, at any depth of a file."""
    if any(key not in file.text for key in keys):
        return
    spend(len(file.text) // 100)
    reader = lenient_json if file.path.endswith(".json") else lenient_yaml
    root = reader.parse(file.text).root
    pending = [root] if root is not None else []
    while pending:
        node = pending.pop()
        member: Member | None = node.member(*keys)
        if member is not None:
            span = span_of(file.path, file.text, member.key_start, member.node.end)
            yield Setting(member.node, replace(span, snippet=scrub(span.snippet)))
        else:
            pending += [each.node for each in node.members]
