"""Finds the inputs of a training program: the options and variables that set its rank, port or batch.

`init_process_group(rank=args.index)` shows that the option `--index` is the rank. A launch line with the option, or a
variable that the program reads, then sets the rank of that one process.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from preflight.model.job import WHOLE_JOB
from preflight.sources.base import SourceFile, Tree
from preflight.sources.python.module import Module, argument, last, value_of
from preflight.sources.python.outline import dotted
from preflight.sources.python.python_source import parse

#: Programs without one of these words have no inputs that are read here.
_INPUT_WORDS = re.compile(
    r"init_(?:process_group|rpc)\s*\([^)]*(?:rank|world_size|init_method)|RoleMaker\s*\(|distributed\.initialize\s*\("
    r"|environ\[[\"'](?:MASTER_|RANK|WORLD_SIZE|NODE_RANK)[^\]]*\]\s*=|DataLoader\s*\([^)]*batch_size"
)
_MAX_PROGRAM_BYTES = 200_000
_MAX_DEPTH = 8
#: The arguments of a call, each with its quantity and position.
_CALLS: dict[str, dict[str, tuple[str, int | None]]] = {
    "init_process_group": {"rank": ("rank", 4), "world_size": ("world_size", 3)},
    "init_rpc": {"rank": ("rank", 2), "world_size": ("world_size", 3)},
    "initialize": {"process_id": ("rank", 2), "num_processes": ("world_size", 1)},
    "UserDefinedRoleMaker": {"current_id": ("ps_index", None), "worker_num": ("ps_workers", None)},
    "DataLoader": {"batch_size": ("given_batch_size", 1)},
}
_VARIABLES = {
    "RANK": "rank",
    "WORLD_SIZE": "world_size",
    "NODE_RANK": "node_rank",
    "MASTER_ADDR": "master_addr",
    "MASTER_PORT": "master_port",
}
_DEFINES = {"DEFINE_integer", "DEFINE_string", "DEFINE_float", "DEFINE_enum", "DEFINE_bool", "DEFINE_boolean"}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Option:
    """An option that the program declares, or a positional argument, whose names have no dash."""

    dest: str
    names: tuple[str, ...]
    takes: int = 1

    @property
    def positional(self) -> bool:
        """Return whether the argument is positional."""
        return not self.names[0].startswith("-")


@dataclass(frozen=True, slots=True)
class Input:
    """One quantity that a program takes from its command line or environment.

    Args:
        quantity: its name in claims.
        kind: `option`, `word` (`sys.argv[n]`) or `variable`.
        name: the option's destination, the number of the word, or the variable.
        given: maps each input string to the value of the quantity: `Role.WORKER if args.role == "trainer" else ...`.
    """

    quantity: str
    kind: str
    name: str
    given: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ProgramInputs:
    """The inputs of a program, and the options it declares."""

    inputs: tuple[Input, ...] = ()
    options: tuple[Option, ...] = ()


_NOTHING = ProgramInputs()


def program_inputs(file: SourceFile, tree: Tree) -> ProgramInputs:
    """Return the inputs of a program, as far as its own file determines them."""
    if len(file.text) > _MAX_PROGRAM_BYTES or _INPUT_WORDS.search(file.text) is None:
        return _NOTHING
    return _parse_module(file.path, file.text)


@functools.lru_cache(maxsize=64)
def _parse_module(path: str, text: str) -> ProgramInputs:
    file = SourceFile(path, text, "", len(text))
    syntax = parse(file)
    if not isinstance(syntax, ast.Module):
        return _NOTHING
    module = Module(file, syntax, _NO_FILES, WHOLE_JOB)
    options = tuple(_options(module))
    found: dict[str, Input] = {}
    for item in _inputs(module):
        found.setdefault(item.quantity, item)
    return ProgramInputs(tuple(found.values()), options)


class _NoFiles:
    """A tree without files, because only the program's own file is read."""

    def read(self, path: str) -> SourceFile:
        raise NotImplementedError

    def resolve(self, path: str, *, relative_to: str) -> str | None:
        return None

    def names(self, folder: str) -> tuple[str, ...]:
        return ()


_NO_FILES = _NoFiles()


def _inputs(module: Module) -> Iterator[Input]:
    for name, taken in _CALLS.items():
        for call in module.named(name):
            if name == "initialize" and "distributed" not in module.called(call):
                continue
            for keyword, (quantity, position) in taken.items():
                given = argument(call, keyword, position)
                if given is not None:
                    yield from _resolve_input(module, quantity, value_of(given))
            if name == "init_process_group":
                given = argument(call, "init_method", 1)
                if given is not None:
                    yield from _endpoint(module, value_of(given))
            elif name == "UserDefinedRoleMaker":
                given = argument(call, "role")
                if given is not None:
                    yield from _role(module, value_of(given))
    for statement in module.nodes(ast.Assign):
        for target in statement.targets:
            if (
                isinstance(target, ast.Subscript)
                and module.name(target.value) == "os.environ"
                and isinstance(target.slice, ast.Constant)
                and target.slice.value in _VARIABLES
            ):
                yield from _resolve_input(module, _VARIABLES[str(target.slice.value)], statement.value)


def _endpoint(module: Module, expression: ast.expr) -> Iterator[Input]:
    """Yield the host and port of `f"tcp://{args.host}:{args.port}"`."""
    found = module.definition(expression)
    pieces: list[ast.expr] = []
    if isinstance(found, ast.JoinedStr):
        pieces = list(found.values)
    elif isinstance(found, ast.Call) and isinstance(found.func, ast.Attribute) and found.func.attr == "format":
        template = found.func.value
        if isinstance(template, ast.Constant) and str(template.value) == "tcp://{}:{}" and len(found.args) == 2:
            yield from _resolve_input(module, "master_addr", found.args[0])
            yield from _resolve_input(module, "master_port", found.args[1])
        return
    before = ""
    for piece in pieces:
        if isinstance(piece, ast.Constant):
            before += str(piece.value)
        elif isinstance(piece, ast.FormattedValue):
            if before == "tcp://":
                yield from _resolve_input(module, "master_addr", piece.value)
            elif before.startswith("tcp://") and before.endswith(":"):
                yield from _resolve_input(module, "master_port", piece.value)
            before += "\0"


def _role(module: Module, expression: ast.expr) -> Iterator[Input]:
    """Yield the role of `Role.WORKER if args.role == "trainer" else Role.SERVER`."""
    found = module.definition(expression)
    if not isinstance(found, ast.IfExp) or not isinstance(found.test, ast.Compare) or len(found.test.ops) != 1:
        return
    other = found.test.comparators[0]
    if not isinstance(found.test.ops[0], ast.Eq) or not isinstance(other, ast.Constant):
        return
    roles = [_ROLES.get(last(dotted(branch)), "") for branch in (found.body, found.orelse)]
    for item in _resolve_input(module, "ps_role", found.test.left):
        if all(roles):
            yield Input(item.quantity, item.kind, item.name, ((str(other.value), roles[0]), ("", roles[1])))


_ROLES = {"WORKER": "TRAINER", "SERVER": "PSERVER"}


def _resolve_input(module: Module, quantity: str, expression: ast.expr, depth: int = 0) -> Iterator[Input]:
    """Yield the input that an expression takes unchanged, through names, conversions and the arguments of one call."""
    if depth > _MAX_DEPTH:
        return
    found = module.definition(expression)
    if isinstance(found, ast.Call):
        name = module.called(found)
        if name in ("int", "str", "float") and len(found.args) == 1:
            yield from _resolve_input(module, quantity, found.args[0], depth + 1)
        elif name in ("os.getenv", "os.environ.get") and found.args and isinstance(found.args[0], ast.Constant):
            yield Input(quantity, "variable", str(found.args[0].value))
    elif isinstance(found, ast.Subscript) and isinstance(found.slice, ast.Constant):
        key = found.slice.value
        if module.name(found.value) == "sys.argv" and isinstance(key, int) and key > 0:
            yield Input(quantity, "word", str(key))
        elif module.name(found.value) == "os.environ":
            yield Input(quantity, "variable", str(key))
        elif isinstance(key, str):
            yield Input(quantity, "option", key.lstrip("-").strip("<>").replace("-", "_"))
    elif isinstance(found, ast.Attribute):
        # `args.world_size = args.world_size * gpus`: the given value is not the one used.
        if not any(each.attr == found.attr and isinstance(each.ctx, ast.Store) for each in module.nodes(ast.Attribute)):
            yield Input(quantity, "option", found.attr)
    elif isinstance(found, ast.Name):
        yield from _parameter(module, quantity, found, depth)


def _parameter(module: Module, quantity: str, name: ast.Name, depth: int) -> Iterator[Input]:
    """Yield the input of a parameter: an option of a command-line function, or the argument in its only call."""
    node: ast.AST | None = name
    while node is not None and not (
        isinstance(node, _FUNCTIONS) and name.id in [each.arg for each in _parameters(node)]
    ):
        node = module.parent(node)
    if not isinstance(node, _FUNCTIONS):
        return
    if _is_command(module, node):
        yield Input(quantity, "option", name.id)
        return
    calls = module.named(node.name)
    position = [each.arg for each in _parameters(node)].index(name.id)
    givens = [argument(call, name.id, position) for call in calls]
    if len(givens) == 1 and givens[0] is not None:
        yield from _resolve_input(module, quantity, value_of(givens[0]), depth + 1)


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def _is_command(module: Module, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether the parameters of a function are options: of click, typer or fire."""
    for decorator in function.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        if last(dotted(called)) in ("option", "command", "argument"):
            return True
    return any(
        call.args and dotted(call.args[0]) == function.name
        for call in module.named("Fire", "run")
        if module.called(call) in ("fire.Fire", "Fire", "typer.run")
    )


def _options(module: Module) -> Iterator[Option]:
    """Yield the options that the program declares."""
    for call in module.calls:
        short = last(module.called(call)) or getattr(call.func, "attr", "")
        if short == "add_argument" or module.called(call) in ("click.option", "click.argument"):
            yield from _declare_option(call)
        elif short in _DEFINES and call.args and isinstance(call.args[0], ast.Constant):
            name = str(call.args[0].value)
            yield Option(name, (f"--{name}", f"-{name}"), 0 if "bool" in short else 1)
    for holder in module.nodes(ast.ClassDef):
        if any(last(dotted(d.func if isinstance(d, ast.Call) else d)) == "dataclass" for d in holder.decorator_list):
            yield from _fields(holder)
    for function in module.nodes(ast.FunctionDef):
        if _is_command(module, function):
            for each in _parameters(function):
                yield Option(each.arg, (f"--{each.arg.replace('_', '-')}", f"--{each.arg}"))


def _declare_option(call: ast.Call) -> Iterator[Option]:
    names = tuple(
        str(item.value) for item in call.args if isinstance(item, ast.Constant) and isinstance(item.value, str)
    )
    if not names:
        return
    given = argument(call, "dest")
    dest = value_of(given) if given is not None else None
    action = argument(call, "action")
    flagged = argument(call, "is_flag")
    kind = value_of(action) if action is not None else None
    flag = flagged is not None or (isinstance(kind, ast.Constant) and str(kind.value).startswith(("store_", "count")))
    # click takes a name without dashes among the names for the parameter.
    plain = next((name for name in names if not name.startswith("-")), "")
    long = next((name for name in names if name.startswith("--")), names[0])
    named = str(dest.value) if isinstance(dest, ast.Constant) else plain or long.lstrip("-").partition("/")[0]
    spelled = tuple(part for name in names if name.startswith("-") for part in name.split("/"))
    yield Option(named.replace("-", "_"), spelled or (plain,), 0 if flag else 1)


def _fields(holder: ast.ClassDef) -> Iterator[Option]:
    for statement in holder.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            name = statement.target.id
            boolean = isinstance(statement.annotation, ast.Name) and statement.annotation.id == "bool"
            yield Option(name, (f"--{name}", f"--{name.replace('_', '-')}"), 0 if boolean else 1)
