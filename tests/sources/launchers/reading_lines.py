"""Helpers that read a script and return its claims in a form that is easy to compare."""

from __future__ import annotations

from preflight.model.job import Claim, Known, Plain, Relation, Strength, Unresolved
from preflight.sources.base import Reading, SourceFile
from preflight.sources.formats.tree import MemoryTree
from preflight.sources.shell.shell_source import ShellSource


def read(script: str, *, path: str = "run.sh", **files: str) -> Reading:
    """The reading of `script` by the shell source; keyword arguments are further files (`__` for `/`, `_dot_`)."""
    tree = MemoryTree({path: script, **{name.replace("__", "/").replace("_dot_", "."): t for name, t in files.items()}})
    file = tree.read(path)
    assert isinstance(file, SourceFile)
    return ShellSource().read(file, tree)


def only(reading: Reading, quantity: str, *, launch: str | None = None) -> Claim:
    """The single claim about `quantity` (of one launch, or with launch="" of the whole job)."""
    found = [c for c in reading.claims if c.quantity == quantity and (launch is None or c.scope.launch == launch)]
    assert len(found) == 1, [(c.quantity, c.value, c.spelling, c.scope) for c in found]
    return found[0]


def values(
    reading: Reading,
    *,
    source: str | None = None,
    relation: Relation | None = None,
    environment: bool = False,
) -> dict[str, Plain | None]:
    """The values of the launch's own claims by quantity, without settings of frameworks; None for an unresolved one."""
    found: dict[str, Plain | None] = {}
    for claim in reading.claims:
        if claim.quantity.startswith("env.") is not environment or claim.quantity.startswith("setting."):
            continue
        if (source is None or claim.source == source) and (relation is None or claim.relation is relation):
            found[claim.quantity] = claim.value.value if isinstance(claim.value, Known) else None
    return found


def is_default(claim: Claim) -> bool:
    return claim.strength is Strength.DEFAULT


def why(claim: Claim) -> str:
    assert isinstance(claim.value, Unresolved)
    return claim.value.why
