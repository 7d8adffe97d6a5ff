"""The options that a program declares with argparse, for values that consist of what a launch line gives for them.

An option counts only where its value in the program is certainly that of the command line: the program has one parser
and parses the line once, and neither the script nor a module of it changes what the parser returned.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from preflight.model.job import Known
from preflight.model.job.value import Part, ProgramOption
from preflight.sources.python.module import SPAWNS, Module, argument
from preflight.sources.python.outline import Function
from preflight.sources.python.program import Place, Program

#: What may give options another value than the command line, or change the line.
_CHANGES = re.compile(
    r"\bset_defaults\b|setattr(?:__)?\(|\bdelattr\(|__dict__|\bsys\.argv\b(?!\[0\])|\bconfigargparse\b|\bREMAINDER\b"
    r"|\bfrom sys import\b.*\bargv\b|nargs=[\"']\.\.\."
)
#: Arguments of a parser that leave the values of options alone.
_OF_PARSER = frozenset(("description", "prog", "usage", "epilog", "formatter_class", "add_help", "allow_abbrev"))
#: Arguments of `add_argument` that leave the value of an option what the line says.
_OF_OPTION = frozenset(("type", "default", "help", "required", "dest", "action", "choices", "metavar"))
_TYPES = ("str", "int", "float")
_SWITCHES = ("store_true", "store_false")
#: Functions, and libraries, that look at the options without changing them.
_LOOK = frozenset(
    (
        *("print", "str", "repr", "len", "sorted", "isinstance", "hasattr", "getattr", "type", "id", "vars"),
        *("json", "yaml", "pprint", "logging", "logger", "log", "wandb", "torch", "deepspeed", "paddle", "os", "copy"),
    )
)
#: Functions that hand the options on are followed to this depth.
_MAX_DEPTH = 4


class Options:
    """The options of a program, read on first use."""

    def __init__(self, program: Program) -> None:
        self.program = program
        #: The text of expressions of the program, by their identity.
        self.pieces: dict[int, list[Part]] = {}
        self._found: tuple[Place, dict[str, ProgramOption]] | None = None
        self._is_read = False

    def of(self, attribute: ast.Attribute, module: Module | None = None) -> ProgramOption | None:
        """The option whose value an attribute in a module of the program is; None for any other attribute."""
        option = self.held_by(attribute.attr)
        return option if option is not None and self.is_parsed(attribute.value, module) else None

    def held_by(self, holder: str) -> ProgramOption | None:
        """The option whose value an attribute of this name holds."""
        return self._read[1].get(holder) if self._read is not None else None

    def declarations(self) -> Iterator[tuple[Module, ast.Call, ProgramOption]]:
        """The options with the calls that declare them."""
        for module in self.program.modules:
            for call in module.named("add_argument"):
                option = self.held_by(_holder(call, _names(call)))
                if option is not None and option.names == _names(call):
                    yield module, call, option

    @property
    def parse(self) -> Place | None:
        """The call that parses the line; None if there are no options."""
        return self._read[0] if self._read is not None else None

    def is_parsed(self, expression: ast.expr, module: Module | None = None) -> bool:
        """Whether an expression in a module of the program is certainly what the parser returned."""
        if self._read is None:
            return False
        return _is_parsed(self.program, module or self.program.script, expression, self._read[0].expression, 0)

    @property
    def _read(self) -> tuple[Place, dict[str, ProgramOption]] | None:
        if not self._is_read:
            # Folding the defaults may ask again.
            self._is_read = True
            self._found = _declared(self.program)
        return self._found


def of_argument(module: Module) -> Callable[[ast.Attribute], ProgramOption | None]:
    """A function that gives, for an attribute of an argument of a module's function, the option that it may hold."""

    def option_of(attribute: ast.Attribute) -> ProgramOption | None:
        function = module.outline.function_of(attribute)
        arguments = (*function.args.posonlyargs, *function.args.args) if function is not None else ()
        if not isinstance(attribute.value, ast.Name) or all(each.arg != attribute.value.id for each in arguments):
            return None
        return ProgramOption((), "", None, False, attribute.attr)

    return option_of


def _declared(program: Program) -> tuple[Place, dict[str, ProgramOption]] | None:
    """The call that parses the line, and the options by the attributes that hold them; None if that is not certain."""
    found = _parser(program)
    if found is None or not program.is_complete:
        return None
    parsed, modules = found
    if any(_CHANGES.search(module.file.text) for module in program.modules):
        return None
    if not all(_looks(module, call) for module in program.modules for call in module.named("vars")):
        return None
    if any(_is_passed_on(program, module, parsed.expression) for module in program.modules):
        return None
    changed = {name for module in program.modules for name in _assigned(module.nodes(ast.Attribute))}
    options: dict[str, ProgramOption] = {}
    for module, call in [(each, call) for each in modules for call in each.named("add_argument")]:
        names = _names(call)
        if any(keyword.arg is None for keyword in call.keywords) or len(names) < len(call.args) or not names:
            return None
        if not names[0].startswith("-") and argument(call, "nargs") is not None:
            # It may take the words of options.
            return None
        holder, option = _holder(call, names), _option(module, call, names)
        # A launcher may give the local rank itself.
        if holder in changed or holder in options or holder == "local_rank":
            option = option._replace(kind="")
        options[holder] = option
    # A word that is not known, after one of these, is its value.
    valued = frozenset(name for option in options.values() if option.kind in _TYPES for name in option.names)
    known = {holder: option._replace(valued=valued) for holder, option in options.items() if option.kind}
    return parsed, known


def _parser(program: Program) -> tuple[Place, list[Module]] | None:
    """The only call that parses the line, and the modules with it and with its parser; None if there are several.

    A script with a parser uses its own; one without has it in a module.
    """
    script = program.script
    for modules in ([script], list(program.modules)):
        made = [Place(module, call) for module in modules for call in module.calls if _is_parser(module, call)]
        if made:
            break
    # A function of the script's own often has the same name.
    parses = [
        Place(module, call)
        for module in dict.fromkeys((script, *(place.module for place in made)))
        for call in module.named("parse_args", "parse_known_args")
        if isinstance(call.func, ast.Attribute) and not program.functions(module, call.func)
    ]
    if len(made) != 1 or len(parses) != 1:
        return None
    (module, maker), parse = made[0], parses[0].expression
    plain = (
        isinstance(maker, ast.Call)
        and module.called(maker) == "argparse.ArgumentParser"
        and len(maker.args) <= 1
        and {keyword.arg for keyword in maker.keywords} <= _OF_PARSER
        and isinstance(parse, ast.Call)
        and not (parse.args or parse.keywords)
        and not module.named("add_subparsers")
    )
    return (parses[0], list(dict.fromkeys((parses[0].module, module)))) if plain else None


def _is_parser(module: Module, call: ast.Call) -> bool:
    return re.search(r"Arg\w*Parser$", module.called(call)) is not None


def _names(call: ast.Call) -> tuple[str, ...]:
    """The spellings of an option in a call of `add_argument`."""
    return tuple(item.value for item in call.args if isinstance(item, ast.Constant) and isinstance(item.value, str))


def _holder(call: ast.Call, names: Sequence[str]) -> str:
    """The attribute that holds the value of an option."""
    long = next((name for name in names if name.startswith("--")), names[0] if names else "")
    given = next((keyword.value for keyword in call.keywords if keyword.arg == "dest"), None)
    return _constant(given) or long.lstrip("-").replace("-", "_")


def _option(module: Module, call: ast.Call, names: tuple[str, ...]) -> ProgramOption:
    given = {keyword.arg or "": keyword.value for keyword in call.keywords}
    kind = _kind(given) if names[0].startswith("-") else ""
    default = (
        module.fold(given["default"])
        if "default" in given
        else Known(kind == "store_false" if kind in _SWITCHES else None)
    )
    known = isinstance(default, Known) and "required" not in given
    value = default.value if isinstance(default, Known) else None
    return ProgramOption(names, kind, value, known, _holder(call, names))


def _constant(expression: ast.expr | None) -> str:
    return expression.value if isinstance(expression, ast.Constant) and isinstance(expression.value, str) else ""


def _kind(given: dict[str, ast.expr]) -> str:
    if not given.keys() <= _OF_OPTION:
        return ""
    action = given.get("action")
    if action is not None and _constant(action) != "store":
        return _constant(action) if _constant(action) in _SWITCHES else ""
    kind = given.get("type")
    if kind is None:
        return "str"
    return kind.id if isinstance(kind, ast.Name) and kind.id in _TYPES else ""


def _assigned(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The attributes that are assigned or deleted."""
    return (node.attr for node in nodes if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load))


def _looks(module: Module, call: ast.Call) -> bool:
    """Whether the result of `vars(args)` is only passed to a function that leaves it alone."""
    user = module.parent(call)
    if isinstance(user, ast.Call):
        return module.called(user).partition(".")[0] in _LOOK and not module.called(user).endswith(".update")
    return isinstance(user, ast.FormattedValue)


def _is_passed_on(program: Program, module: Module, parsed: ast.expr) -> bool:
    """Whether a module hands the options to what is neither there to be read, nor known to leave them alone."""
    own = [other.file.path for other in program.modules if other is not module]
    classes = {node.name for node in module.nodes(ast.ClassDef)}
    held = (each for each in module.nodes(ast.Name) if isinstance(each.ctx, ast.Load) and _is_held(module, each))
    if any(_is_parsed(program, module, each, parsed, 0) for each in held):
        return True
    for call in module.calls:
        name = module.called(call)
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        if not any(isinstance(item, ast.Name) and _is_parsed(program, module, item, parsed, 0) for item in given):
            continue
        if name.partition(".")[0] in _LOOK or name in classes or module.outline.functions(name.rpartition(".")[2]):
            continue
        if not any(_is_in(name, path) for path in own):
            return True
    return False


def _is_held(module: Module, name: ast.Name) -> bool:
    """Whether something else holds the value of a name, with which it may go anywhere; not the arguments of a spawn."""
    holder = module.parent(name)
    if isinstance(holder, ast.Tuple):
        around = module.parent(holder)
        call = module.parent(around) if isinstance(around, ast.keyword) else around
        if isinstance(call, ast.Call) and module.called(call) in SPAWNS:
            return False
    is_double_starred = isinstance(holder, ast.keyword) and holder.arg is None
    return is_double_starred or isinstance(holder, (ast.Tuple, ast.List, ast.Dict, ast.Set, ast.Starred))


def _is_in(name: str, path: str) -> bool:
    """Whether a dotted name may be of the module at a path: `utils.dist.setup` in `src/utils/dist.py`."""
    stem = "/" + path.removesuffix(".py").removesuffix("/__init__")
    parts = name.strip(".").split(".")
    return any(stem.endswith("/" + "/".join(parts[:length])) for length in range(1, len(parts)))


def _is_parsed(program: Program, module: Module, expression: ast.expr, parsed: ast.expr, depth: int) -> bool:
    """Whether an expression is certainly what the parser returned."""
    module, made = program.meaning(module, expression)
    if made is parsed:
        return True
    if depth == _MAX_DEPTH:
        return False
    if isinstance(made, ast.Call):
        functions = program.functions(module, made.func)
        return bool(functions) and all(_returns(program, *each, parsed, depth) for each in functions)
    if not isinstance(made, ast.Name):
        return False
    if _is_first_of(module, made.id, parsed):
        return True
    function = module.outline.function_of(made)
    if function is None or all(item.arg != made.id for item in (*function.args.posonlyargs, *function.args.args)):
        return False
    given = [program.argument(function, call, made.id, module) for call in program.calls(function) if call.is_plain]
    return bool(given) and all(place is not None and _is_parsed(program, *place, parsed, depth + 1) for place in given)


def _is_first_of(module: Module, name: str, parsed: ast.expr) -> bool:
    """Whether a name is bound once, by `name, rest = parser.parse_known_args()`."""
    bound = [node for node in module.nodes(ast.Name) if node.id == name and isinstance(node.ctx, ast.Store)]
    statement = module.parent(parsed)
    target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
    return len(bound) == 1 and isinstance(target, ast.Tuple) and bool(target.elts) and target.elts[0] is bound[0]


def _returns(program: Program, module: Module, function: Function, parsed: ast.expr, depth: int) -> bool:
    """Whether every `return` of a function gives what the parser returned."""
    values = [
        node.value
        for node in module.nodes(ast.Return)
        if node.value is not None and module.outline.function_of(node) is function
    ]
    return bool(values) and all(_is_parsed(program, module, value, parsed, depth + 1) for value in values)
