"""Claims about the script's own command line: the default values of its options."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from preflight._util.redaction import scrub
from preflight._util.secret_names import is_secret
from preflight.model.job import Claim, Strength, Unresolved, Value, alternatives, lift
from preflight.model.job.quantities import QUANTITIES
from preflight.model.job.value import Plain
from preflight.sources.python.module import Module, argument, value_of
from preflight.sources.python.outline import dotted
from preflight.sources.python.words import OPTIONS

#: Option names (without dashes, `-` as `_`) with the same meaning in every known script. `--batch-size` and
#: `--world-size` are not among them: their meaning differs between scripts.
OPTION_QUANTITY = {name: quantity for quantity, names in OPTIONS.items() for name in names}
_LOCAL_RANK = ("--local_rank", "--local-rank")


def claims(module: Module) -> Iterator[Claim]:
    """All claims about options and their defaults."""
    for call in module.calls:
        if not isinstance(call.func, ast.Attribute):
            continue
        if call.func.attr == "add_argument" or module.called(call) == "click.option":
            yield from _option(module, call)
    yield from _strict_parser(module)


def _strict_parser(module: Module) -> Iterator[Claim]:
    """State that the script's only parser declares all options itself by name, and accepts no others."""
    parsers = {node.name: node for node in module.nodes(ast.ClassDef) if _is_parser(module, node)}
    makers = [call for call in module.calls if module.called(call) in ("argparse.ArgumentParser", *parsers)]
    methods = {id(call): call.func.attr for call in module.calls if isinstance(call.func, ast.Attribute)}
    if len(makers) != 1 or "parse_known_args" in methods.values() or argument(makers[0], "parents") is not None:
        return
    if "REMAINDER" in module.file.text or "sys.argv" in module.file.text:
        # The rest of the line goes to a positional, or the script changes the line before it is parsed.
        return
    if isinstance(module.parent(makers[0]), (ast.Call, ast.Return)):
        return
    if any(_is_passed_on(module, name) for name in _parsers(module, makers[0], list(parsers.values()))):
        return
    parses: list[ast.Call] = []
    for call in module.calls:
        method = methods.get(id(call))
        if method == "add_argument" and not all(isinstance(item, ast.Constant) for item in call.args):
            return
        # `super().parse_args(argv)` in a class of parsers
        if method == "parse_args" and not any(outer in parsers.values() for outer in module.outline.above(call)):
            parses.append(call)
    if len(parses) == 1 and not parses[0].args and not parses[0].keywords:
        yield module.claim("strict_arguments", True, parses[0])
        names = [
            str(item.value)
            for call in module.calls
            if methods.get(id(call)) == "add_argument"
            for item in call.args
            if isinstance(item, ast.Constant) and str(item.value).startswith("-")
        ]
        helps = argument(makers[0], "add_help")
        if helps is None:
            names += ["-h", "--help"]
        if "BooleanOptionalAction" in module.file.text:
            names += [f"--no-{name[2:]}" for name in names if name.startswith("--")]
        yield module.claim("declared_options", tuple(dict.fromkeys(names)), parses[0])


def _parsers(module: Module, maker: ast.Call, classes: list[ast.ClassDef]) -> set[str]:
    """The names of a parser and of the groups of its options; `self` in a class of parsers."""
    groups = module.named("add_argument_group", "add_mutually_exclusive_group", "add_subparsers")
    return {module.bound_to(maker), *map(module.bound_to, groups), "self" if classes else ""} - {""}


def _is_passed_on(module: Module, name: str) -> bool:
    """Whether a parser is used in another way than by its methods, so that others may add options."""
    nodes: list[ast.Name | ast.Attribute] = [*module.nodes(ast.Name), *module.nodes(ast.Attribute)]
    for node in nodes:
        if dotted(node) != name or not isinstance(node.ctx, ast.Load):
            continue
        outer = module.parent(node)
        if not isinstance(outer, ast.Attribute):
            # `super(Parser, self)` in a class of parsers
            if not (isinstance(outer, ast.Call) and dotted(outer.func) == "super"):
                return True
        elif outer.attr == "add_argument" and not (
            isinstance(above := module.parent(outer), ast.Call) and above.func is outer
        ):
            return True
    return False


def _is_parser(module: Module, node: ast.ClassDef) -> bool:
    return [module.name(base) for base in node.bases] == ["argparse.ArgumentParser"]


def declared_options(module: Module) -> Iterator[Claim]:
    """The options of the only parser of a module that a script imports."""
    return (claim for claim in _strict_parser(module) if claim.quantity == "declared_options")


def _option(module: Module, call: ast.Call) -> Iterator[Claim]:
    written = [item for item in call.args if isinstance(item, ast.Constant) and isinstance(item.value, str)]
    names = [str(item.value) for item in written]
    for item, name in zip(written, names, strict=True):
        if name in _LOCAL_RANK:
            yield module.claim("local_rank_argument", name, item, spelling=name)
    given = argument(call, "default")
    long = next((name for name in names if name.startswith("--")), None)
    if long is None or given is None or is_secret(long):
        return
    value = _convert_default(module, call, module.fold(value_of(given)))
    found = alternatives(value)
    if not found or any(item is None or item == "" for item in found):
        return
    spelling = f"{long}={module.text(value_of(given))}"
    yield module.claim(
        "argument_default",
        lift(lambda item: scrub(str(item)), value),
        given,
        strength=Strength.DEFAULT,
        spelling=spelling,
    )
    quantity = OPTION_QUANTITY.get(long.lstrip("-").replace("-", "_"))
    if quantity is None or any(isinstance(item, tuple) for item in found):
        return
    if not any(isinstance(item, (int, float)) and item < 0 for item in found):
        if QUANTITIES[quantity].kind is int:
            # `default="29500"` without a type: the script itself converts it to a number somewhere.
            value = lift(_as_integer, value)
        yield module.claim(quantity, value, given, strength=Strength.DEFAULT, spelling=spelling)


def _convert_default(module: Module, call: ast.Call, value: Value) -> Value:
    """Convert a default that is a string, as argparse does: `type=int, default="8"` is 8."""
    given = argument(call, "type")
    if given is None or module.name(value_of(given)) != "int":
        return value
    read = lift(_as_integer, value)
    return value if isinstance(read, Unresolved) else read


def _as_integer(item: Plain) -> Plain:
    return int(item) if isinstance(item, str) and len(item) < 20 else item
