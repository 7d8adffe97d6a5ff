"""Claims of configurations that a script builds in Python (torchtitan, Megatron-Bridge, NeMo 2).

A module often has many recipes, of which a launch names one. The claims of a single recipe have the scope of the whole
job; if there are several, each has its own scope, so that their numbers are not mixed up.
"""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.job import WHOLE_JOB, Claim, Scope
from preflight.sources.python.configurations import claims_for_node, configurations
from preflight.sources.python.module import Module

#: The role in which a launch refers to one recipe of a module; the name follows.
ROLE = "recipe "


def claims(module: Module) -> Iterator[Claim]:
    """The claims of all configurations of a module."""
    found = list(configurations(module))
    for one in found:
        scope = WHOLE_JOB if len(found) == 1 else Scope(role=one.name)
        yield from claims_for_node(module, one, scope).claims


def claims_of(module: Module, name: str) -> tuple[Claim, ...]:
    """The claims of the recipe that a launch names."""
    return tuple(
        claim
        for one in configurations(module)
        if one.name == name
        for claim in claims_for_node(module, one, module.scope).claims
    )
