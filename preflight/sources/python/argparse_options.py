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
