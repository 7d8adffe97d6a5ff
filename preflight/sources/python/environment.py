"""Claims about variables that the script sets for itself.

An assignment in the script takes effect after the launcher and the shell, so it has the strength of a flag;
`setdefault`, and an assignment after `if "X" not in os.environ`, set only a missing value.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from preflight._util.redaction import HIDDEN, scrub
from preflight._util.secret_names import is_secret
from preflight.model.job import Claim, Strength, Unresolved, Value, alternatives, lift
from preflight.model.job.quantities import ENVIRONMENT_PREFIX
from preflight.model.job.value import Plain
from preflight.sources.python.module import Module

_ENVIRON = "os.environ"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}", re.ASCII)
#: One pattern for all names: compiling one for each costs more than everything else that a long script needs.
_UNSET = re.compile(r"""not \(?["'](\w{1,100})["'] in os\.environ|["'](\w{1,100})["'] not in os\.environ""", re.ASCII)


def claims(module: Module) -> Iterator[Claim]:
    """All claims about `os.environ`."""
    for node in module.nodes(ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript) and module.name(target.value) == _ENVIRON:
                yield from _assignment_claims(module, target.slice, node.value, node)
    for call in module.calls:
        yield from _call_claims(module, call)


def _call_claims(module: Module, call: ast.Call) -> Iterator[Claim]:
    name = module.called(call)
    if name == f"{_ENVIRON}.setdefault" and len(call.args) == 2:
        yield from _assignment_claims(module, call.args[0], call.args[1], call, strength=Strength.DEFAULT)
    elif name == "os.putenv" and len(call.args) == 2:
        yield from _assignment_claims(module, call.args[0], call.args[1], call)
    elif name == f"{_ENVIRON}.update":
        for keyword in call.keywords:
            if keyword.arg is not None:
                yield from _assignment_claims(module, ast.Constant(keyword.arg), keyword.value, keyword)
        for given in call.args[:1]:
            table = module.definition(given)
            if isinstance(table, ast.Dict):
                for key, value in zip(table.keys, table.values, strict=True):
                    if key is not None:
                        yield from _assignment_claims(module, key, value, value)


def _assignment_claims(
    module: Module, key: ast.expr, value: ast.expr, at: ast.AST, *, strength: Strength = Strength.FLAG
) -> Iterator[Claim]:
    name = key.value if isinstance(key, ast.Constant) else next(iter(_known_values(module.fold(key))), None)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return
    fallback = _fallback(module, name, value)
    if fallback is not None:
        value, strength = fallback, Strength.DEFAULT
    condition = module.condition(at)
    if any(name in match.groups() for match in _UNSET.finditer(condition)):
        strength, condition = Strength.DEFAULT, ""
    claim = module.claim(
        ENVIRONMENT_PREFIX + name,
        lift(_as_text, module.fold(value)),
        at,
        strength=strength,
        condition=condition,
    )
    claim = replace(claim, span=module.span(value))
    yield _without_secret(claim, name) if is_secret(name) else claim


def _fallback(module: Module, name: str, value: ast.expr) -> ast.expr | None:
    """The default in `os.environ["X"] = os.environ.get("X", default)`; None for anything else."""
    if (
        isinstance(value, ast.Call)
        and module.called(value) in ("os.environ.get", "os.getenv")
        and len(value.args) == 2
        and isinstance(value.args[0], ast.Constant)
        and value.args[0].value == name
    ):
        return value.args[1]
    return None


def _known_values(value: Value) -> tuple[Plain, ...]:
    found = alternatives(value)
    return found if len(found) == 1 else ()


def _as_text(item: Plain) -> str:
    # Only texts can be assigned; a number would raise TypeError in the script, and is ignored.
    if isinstance(item, str):
        return scrub(item)
    raise TypeError("the value of a variable must be a string")


def _without_secret(claim: Claim, name: str) -> Claim:
    """The claim and the snippet of its location without the value."""
    return replace(
        claim,
        value=Unresolved("looks like a secret and is not kept"),
        spelling=f"{name}={HIDDEN}",
        span=replace(claim.span, snippet=""),
    )
