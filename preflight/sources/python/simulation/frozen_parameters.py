"""Parameters that a program takes out of training, and puts back after its model was wrapped.

DistributedDataParallel and Paddle's DataParallel look at `requires_grad` (`stop_gradient`, `trainable`) once, when they
are made: what was frozen then is never exchanged (torch/nn/parallel/distributed.py, `_build_params_for_reducer`;
python/paddle/distributed/parallel.py, `init_reducer`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from preflight.sources.base import SourceFile

#: The attributes and methods, and the value by which a parameter takes part in training.
TRAINED_IF = {"requires_grad": True, "requires_grad_": True, "stop_gradient": False, "trainable": True}
#: What looks at the attributes once.
WRAPPERS = ("DistributedDataParallel", "paddle.DataParallel")
_PARAMETERS = re.compile(r"\.(?:named_)?(?:parameters|sublayers|modules|named_modules)\(.*\)$")


class Switch(NamedTuple):
    """An assignment that takes parameters out of training or puts them back.

    Args:
        after: the number of calls in the program before.
        part: the part of the model, as written, without the model itself: `backbone`; empty for the whole model.
    """

    after: int
    is_on: bool
    part: str
    file: SourceFile
    node: ast.expr


def switch(target: ast.Attribute, value: object, file: SourceFile, around: ast.AST, after: int) -> Switch | None:
    """Return the effect of an attribute assignment on parameters; None if there is no known effect."""
    trained = TRAINED_IF.get(target.attr)
    if trained is None or not isinstance(value, bool):
        return None
    owner = ast.unparse(target.value)
    for node in ast.walk(around):
        if isinstance(node, ast.For) and target in ast.walk(node) and owner in _names(node.target):
            owner = ast.unparse(node.iter)
    if target.attr != "requires_grad_" and not _PARAMETERS.search(owner):
        return None
    return Switch(after, value is trained, _part(_PARAMETERS.sub("", owner)), file, target)


def _names(target: ast.expr) -> list[str]:
    """Return the loop variables of a loop."""
    return [each.id for each in ast.walk(target) if isinstance(each, ast.Name)]


def _part(model: str) -> str:
    """Return the normalised name of a part of a model: `self.net.module.layer4` and `net.layer4` are one part."""
    names = [name for name in model.split(".") if name not in ("self", "module", "_layers")]
    return names[-1] if len(names) > 1 or model.startswith("self.") else ""


def unfrozen(switches: Sequence[Switch], wraps: Sequence[int]) -> Iterator[tuple[Switch, Switch, int | None]]:
    """Yield each part that is put back after it was frozen, and the last wrapping if it was frozen then.

    Args:
        wraps: how many calls the program had made before each wrapping.
    """
    for number, on in enumerate(switches):
        before = [each for each in switches[:number] if each.part == on.part or "" in (each.part, on.part)]
        if not on.is_on or not wraps or not any(not each.is_on for each in before):
            continue
        then = [each for each in before if each.after <= wraps[-1] < on.after]
        frozen = then[-1] if then and not then[-1].is_on else None
        yield on, frozen or next(each for each in reversed(before) if not each.is_on), wraps[-1] if frozen else None
