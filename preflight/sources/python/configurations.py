"""Reads configurations that a Python function builds as the tree that a file would result in.

`Trainer.Config(parallelism=ParallelismConfig(tensor_parallel_degree=2))`, `cfg = base(); cfg.model.seq_length = 4096`
and `run.Config(nl.Trainer, devices=8)` become objects with members, each with its location, so that the tables of
`configs/framework_files` read them. Functions of the same module are followed; values from other modules are unknown.

A module often has many recipes, of which a launch names one. The claims of a single recipe have the scope of the whole
job; if there are several, each has its own scope, so that their numbers are not mixed up.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from preflight._util.budget import spend
from preflight.model.job import WHOLE_JOB, Claim, Known, Scope, Strength
from preflight.sources.configs.framework_files import PYTHON_FRAMEWORKS, Framework, keys_in_force, state_settings
from preflight.sources.formats.structured import Kind, Member, Node, NodeClaims
from preflight.sources.python.module import Module, last

#: Functions that call each other are followed to this depth.
_MAX_DEPTH = 8
_MAX_PARTS = 12
_MAX_STATEMENTS = 5_000
#: Calls that build what their first argument names: `run.Config(nl.Trainer, devices=8)`.
_OF_RECIPES = {"num_nodes": "num_nodes", "num_gpus_per_node": "devices"}
_BUILDERS = frozenset(("Config", "Partial"))


@dataclass(slots=True)
class Tree:
    """A configuration under construction; `node` is the value of a leaf."""

    key_start: int = 0
    key_end: int = 0
    node: Node | None = None
    members: dict[str, Tree] = field(default_factory=dict)

    def copy(self) -> Tree:
        """Return a copy that can be changed independently."""
        spend(1)
        return Tree(self.key_start, self.key_end, self.node, {key: one.copy() for key, one in self.members.items()})

    def as_node(self) -> Node:
        """Return the object as a file would contain it."""
        if self.node is not None and not self.members:
            return self.node
        members = tuple(
            Member(key, inner.key_start, inner.key_end, inner.as_node()) for key, inner in self.members.items()
        )
        return Node(Kind.OBJECT, self.key_start, self.key_end, members=members)


@dataclass(frozen=True, slots=True)
class Configuration:
    """A configuration that a function returns, or that a script builds: its name, tree and framework."""

    name: str
    root: Node
    framework: Framework


def configurations(module: Module) -> Iterator[Configuration]:
    """Yield every configuration of a known framework in a module, in source order."""
    frameworks = [item for item in PYTHON_FRAMEWORKS if any(sign in module.file.text for sign in item.imports)]
    if not frameworks:
        return
    builder = _Builder(module)
    for name, tree in builder.all():
        root = tree.as_node()
        for framework in frameworks:
            if len(list(keys_in_force(framework, root))) >= framework.min_keys:
                yield Configuration(name, root, framework)
                break


def claims_for_node(module: Module, configuration: Configuration, scope: Scope) -> NodeClaims:
    """Return the claims of one configuration."""
    node_claims = NodeClaims(module.file, configuration.framework.name, scope, strength=Strength.CONFIG)
    for key, member in keys_in_force(configuration.framework, configuration.root):
        node_claims.add_member(key.quantity, member, key.read, relation=key.relation)
    # The settings of one recipe among several are judged where a launch names it.
    if configuration.framework.settings and not scope.role:
        state_settings(node_claims, configuration.root, configuration.framework.name)
    if configuration.framework.also is not None:
        configuration.framework.also(node_claims, configuration.root)
    return node_claims


#: No arguments.
_NOTHING: Mapping[str, Tree] = MappingProxyType({})


class _Builder:
    """Builds the configurations that the functions of one module return."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._functions = {item.name: item for item in module.tree.body if isinstance(item, ast.FunctionDef)}
        self._returned: dict[str, Tree] = {}
        self._steps = 0

    def all(self) -> Iterator[tuple[str, Tree]]:
        """Yield the configuration that each function returns, and the one that the module itself builds."""
        for name in self._functions:
            returned = self._result(name, 0)
            if returned.members:
                yield name, returned
        local: dict[str, Tree] = {}
        body = [item for item in self._module.tree.body if not isinstance(item, (ast.FunctionDef, ast.ClassDef))]
        self._run(body, local, 0, certain=True)
        for name, tree in local.items():
            if tree.members:
                yield name, tree

    def _result(self, name: str, depth: int, given: Mapping[str, Tree] = _NOTHING) -> Tree:
        """Return the value that a function returns with its defaults, or with the arguments of a call."""
        if given:
            return self._evaluate(name, depth, given)
        if name not in self._returned:
            # Marked during evaluation, so that recursion ends.
            self._returned[name] = Tree()
            self._returned[name] = self._evaluate(name, depth, given)
        return self._returned[name]

    def _evaluate(self, name: str, depth: int, given: Mapping[str, Tree]) -> Tree:
        function = self._functions[name]
        local = {**self._defaults(function), **{key: tree.copy() for key, tree in given.items()}}
        parameters = set(local)
        returned = self._run(function.body, local, depth, certain=True)
        if returned is not None:
            return returned
        # If a function runs its configuration, such as `main`, its largest configuration counts.
        return max((tree for key, tree in local.items() if key not in parameters), key=_size, default=Tree())

    def _defaults(self, function: ast.FunctionDef) -> dict[str, Tree]:
        """Return the parameters whose default is a constant."""
        arguments = function.args
        positional = [*arguments.posonlyargs, *arguments.args]
        pairs = list(zip(positional[len(positional) - len(arguments.defaults) :], arguments.defaults, strict=True))
        pairs += [(a, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is not None]
        return {one.arg: Tree(node=self._leaf(default)) for one, default in pairs if isinstance(default, ast.Constant)}

    def _arguments(self, name: str, call: ast.Call, local: dict[str, Tree], depth: int) -> dict[str, Tree]:
        """Return the arguments of a call by the names of the parameters."""
        arguments = self._functions[name].args
        names = [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
        found = dict(zip(names, call.args, strict=False))
        found.update({keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None})
        return {
            key: self._tree(value, local, depth) for key, value in found.items() if not isinstance(value, ast.Starred)
        }

    def _run(self, body: list[ast.stmt], local: dict[str, Tree], depth: int, *, certain: bool) -> Tree | None:
        """Evaluate statements; values set in a branch are uncertain."""
        returned: Tree | None = None
        for statement in body:
            self._steps += 1
            if self._steps > _MAX_STATEMENTS:
                break
            spend(1)
            if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                for target in targets:
                    self._assign(target, statement.value, local, depth, certain=certain)
            elif isinstance(statement, ast.Return) and statement.value is not None:
                found = self._tree(statement.value, local, depth)
                if certain:
                    return found
                returned = returned or Tree()
            elif isinstance(statement, (ast.If, ast.For, ast.While, ast.With, ast.Try)):
                main = isinstance(statement, ast.If) and "__name__" in self._module.text(statement.test)
                inside = certain and (main or isinstance(statement, ast.With))
                for part in ("body", "orelse", "finalbody"):
                    self._run(getattr(statement, part, []), local, depth, certain=inside)
                for handler in getattr(statement, "handlers", ()):
                    self._run(handler.body, local, depth, certain=False)
        return returned

    def _assign(self, target: ast.expr, value: ast.expr, local: dict[str, Tree], depth: int, *, certain: bool) -> None:
        path: list[str] = []
        inner = target
        while isinstance(inner, ast.Attribute) and len(path) < _MAX_PARTS:
            path.insert(0, inner.attr)
            inner = inner.value
        if not isinstance(inner, ast.Name):
            return
        made = self._tree(value, local, depth)
        if not certain and made.node is not None:
            made = Tree(node=Node(Kind.TEMPLATE, made.node.start, made.node.end, "set in one branch only"))
        start, _ = self._module.positions.bounds(target)
        _, end = self._module.positions.bounds(target)
        if not path:
            if certain or inner.id not in local:
                local[inner.id] = made.copy()
            return
        above = local.setdefault(inner.id, Tree())
        for part in path[:-1]:
            above = above.members.setdefault(part, Tree(start, end))
        made = made.copy()
        made.key_start, made.key_end = start, end
        above.members[path[-1]] = made

    def _tree(self, value: ast.expr, local: dict[str, Tree], depth: int) -> Tree:
        if isinstance(value, ast.Name) and value.id in local:
            return local[value.id]
        if isinstance(value, ast.Call):
            return self._call(value, local, depth)
        return Tree(node=self._leaf(value))

    def _call(self, call: ast.Call, local: dict[str, Tree], depth: int) -> Tree:
        name = self._module.called(call)
        if name in self._functions and depth < _MAX_DEPTH:
            return self._result(name, depth + 1, self._arguments(name, call, local, depth + 1)).copy()
        if last(name).endswith("_recipe"):
            return self._recipe(call, local, depth)
        if not (last(name)[:1].isupper() or last(name) in _BUILDERS):
            return Tree(node=self._leaf(call))
        made = Tree()
        for keyword in call.keywords:
            if keyword.arg is None:
                continue
            inner = self._tree(keyword.value, local, depth).copy() if depth < _MAX_DEPTH * 2 else Tree()
            start, _ = self._module.positions.bounds(keyword)
            inner.key_start, inner.key_end = start, start + len(keyword.arg)
            made.members[keyword.arg] = inner
        return made

    def _recipe(self, call: ast.Call, local: dict[str, Tree], depth: int) -> Tree:
        """Return `llm.llama3_8b.pretrain_recipe(num_nodes=2, num_gpus_per_node=8)`: NeMo passes both to the trainer."""
        made = Tree()
        for keyword in call.keywords:
            name = _OF_RECIPES.get(keyword.arg or "")
            if name is None:
                continue
            start, _ = self._module.positions.bounds(keyword)
            trainer = made.members.setdefault("trainer", Tree(start, start))
            given = self._tree(keyword.value, local, depth).copy()
            given.key_start, given.key_end = start, start + len(keyword.arg or "")
            trainer.members[name] = given
        return made

    def _leaf(self, value: ast.expr) -> Node:
        start, end = self._module.positions.bounds(value)
        folded = self._module.fold(value)
        if isinstance(folded, Known) and isinstance(folded.value, tuple):
            return Node(Kind.ARRAY, start, end, items=tuple(Node(Kind.SCALAR, start, end, v) for v in folded.value))
        if isinstance(folded, Known):
            return Node(Kind.SCALAR, start, end, folded.value)
        return Node(Kind.TEMPLATE, start, end, self._module.text(value))


def _size(tree: Tree) -> int:
    return 1 + sum(_size(inner) for inner in tree.members.values())


#: The role in which a launch refers to one recipe of a module; the name follows.
ROLE = "recipe "


def claims(module: Module) -> Iterator[Claim]:
    """Yield the claims of all configurations of a module."""
    found = list(configurations(module))
    for one in found:
        scope = WHOLE_JOB if len(found) == 1 else Scope(role=one.name)
        yield from claims_for_node(module, one, scope).claims


def claims_of(module: Module, name: str) -> tuple[Claim, ...]:
    """Return the claims of the recipe that a launch names."""
    return tuple(
        claim
        for one in configurations(module)
        if one.name == name
        for claim in claims_for_node(module, one, module.scope).claims
    )
