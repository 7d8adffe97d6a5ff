"""The parts of a program that a run never reaches."""

from __future__ import annotations

import ast
import functools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from preflight.sources.python.simulation.libraries import names

#: A file, and the first and last line of a part of it.
Part = tuple[str, int, int]

#: Functions that libraries call under a name of theirs, beside those with two underscores.
_CALLED_BY_LIBRARIES = {"forward", *names("hooks")}
#: Calls whose arguments name a class without making anything of it.
_ASKING = {"isinstance", "issubclass", "super"}
#: Statements whose parts run or do not, as their condition or what they go through says.
_BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def names_in(tree: ast.AST) -> Iterator[str]:
    """Yield the names that are used in a tree, and its texts, which may name something."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@functools.lru_cache(maxsize=256)
def _named(tree: ast.Module) -> Counter[str]:
    """Return how often each name is used in a module; several runs ask for it."""
    return Counter(names_in(tree))


def uncalled(trees: Mapping[str, ast.Module], called: Collection[ast.AST]) -> Iterator[Part]:
    """Yield the functions that nothing in the modules of a run calls or names, or that another one of the name
    replaces.
    """
    for path, tree in trees.items():
        for node, own_uses, is_replaced in _plain_functions(tree):
            if node in called:
                continue
            uses = 0 if is_replaced else sum(_named(other)[node.name] for other in trees.values())
            if is_replaced or uses == own_uses:
                yield path, node.lineno, node.end_lineno or node.lineno


@functools.lru_cache(maxsize=256)
def _plain_functions(tree: ast.Module) -> Sequence[tuple[ast.FunctionDef | ast.AsyncFunctionDef, int, bool]]:
    """Return a module's functions without decorators, each with the uses of its name inside, and whether another one
    replaces it.
    """
    return [
        (node, Counter(names_in(node))[node.name], _is_replaced(node, tree.body[number + 1 :]))
        for number, node in enumerate(tree.body)
        if isinstance(node, _FUNCTIONS) and not node.decorator_list
    ]


def _is_replaced(node: ast.FunctionDef | ast.AsyncFunctionDef, following: Sequence[ast.stmt]) -> bool:
    """Return whether a function of the same name follows before the name is used."""
    for other in following:
        if isinstance(other, _FUNCTIONS) and other.name == node.name and not other.decorator_list:
            return True
        if not isinstance(other, _FUNCTIONS) and node.name in names_in(other):
            return False
    return False


def not_reached(
    trees: Mapping[str, ast.Module], called: Collection[ast.AST], executed: Collection[ast.AST]
) -> Iterator[Part]:
    """Yield the statements that a run leaves out in its modules, and in the functions that only the user's own code
    calls.
    """
    kept = frozenset().union(*map(_kept_names, trees.values()))
    for path, tree in trees.items():
        bodies = [tree.body] if any(each in executed for each in tree.body) else []
        bodies += [node.body for node, name in _own_bodies(tree) if node in called and name not in kept]
        for body in bodies:
            for left_out in _left_out(body, executed):
                yield path, left_out.lineno, left_out.end_lineno or left_out.lineno


@functools.lru_cache(maxsize=256)
def _own_bodies(tree: ast.Module) -> Sequence[tuple[ast.FunctionDef | ast.AsyncFunctionDef, str]]:
    """Return the functions that only the user's own code calls, and constructors, each with the name of its callers."""
    found: list[tuple[ast.FunctionDef | ast.AsyncFunctionDef, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            inits = (each for each in node.body if isinstance(each, _FUNCTIONS) and each.name == "__init__")
            found += [(each, node.name) for each in inits]
        elif isinstance(node, _FUNCTIONS) and not _is_for_libraries(node.name) and not node.decorator_list:
            found.append((node, node.name))
    return found


def _is_for_libraries(name: str) -> bool:
    return name in _CALLED_BY_LIBRARIES or (name.startswith("__") and name.endswith("__"))


def _left_out(body: Sequence[ast.stmt], executed: Collection[ast.AST]) -> Iterator[ast.stmt]:
    """Yield the statements of a body that were not executed; where an exception may end one early, it is not asked."""
    for statement in body:
        if isinstance(statement, (*_FUNCTIONS, ast.ClassDef, ast.Pass)):
            continue
        if statement not in executed:
            yield statement
        elif isinstance(statement, _BLOCKS):
            yield from _left_out(statement.body, executed)
            yield from _left_out(getattr(statement, "orelse", ()), executed)


@functools.lru_cache(maxsize=256)
def _kept_names(tree: ast.Module) -> frozenset[str]:
    """Return the names that something other than a call in the tree may call: passed, stored, or named in a text."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            given = () if isinstance(node.func, ast.Name) and node.func.id in _ASKING else node.args
            for argument in (*given, *(each.value for each in node.keywords)):
                found.update(_names_of(argument))
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.Return, ast.NamedExpr, ast.Yield)):
            found.update(_names_of(node.value))
        elif isinstance(node, ast.alias) and node.asname is not None:
            found.add(node.name.rpartition(".")[2])
        elif isinstance(node, _FUNCTIONS):
            for default in (*node.args.defaults, *node.args.kw_defaults):
                found.update(_names_of(default))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return frozenset(found)


def _names_of(node: ast.expr | None) -> Iterator[str]:
    """Yield the names that an expression passes on unchanged, without those that it calls or whose attributes it
    reads.
    """
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr
    elif node is not None and not isinstance(node, ast.Call):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                yield from _names_of(child)
