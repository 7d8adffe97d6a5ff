"""Claims about the scheduler's variables that a script reads."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from preflight.model.job import Claim
from preflight.sources.python.module import Module
from preflight.sources.python.rank_conditions import variable_read

_SCHEDULER = re.compile(r"SLURM_[A-Z0-9_]+|SLURMD_[A-Z0-9_]+|OMPI_[A-Z0-9_]+|PBS_[A-Z0-9_]+|LSB_[A-Z0-9_]+")


def claims(module: Module) -> Iterator[Claim]:
    """All claims about variables of a scheduler that are read; those the script sets itself are its own."""
    own = set()
    for node in module.nodes(ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript) and module.name(target.value) == "os.environ":
                own.add(getattr(module.fold(target.slice), "value", None))
    if _SCHEDULER.search(module.file.text) is None:
        return
    places: list[ast.expr] = [*module.named("get", "getenv")]
    places += [node for node in module.nodes(ast.Subscript) if isinstance(node.ctx, ast.Load)]
    for place in places:
        name = variable_read(module, place)
        if name is not None and _SCHEDULER.fullmatch(name) and name not in own:
            yield module.claim("variable_read", name, place, condition="")
