"""Claims about the scheduler's variables that a script reads; its own are not among them."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Claim, Known, Places, Scope, Strength
from preflight.lazy.patterns import lazy_pattern
from preflight.sources.base import SourceFile

_READ = lazy_pattern(r"\$\{?(SLURM_[A-Z0-9_]+)")
# The look behind comes second, so that the search runs from one `SLURM_` to the next.
_ASSIGNED = lazy_pattern(r"SLURM_(?<![\w$]SLURM_)[A-Z0-9_]+(?=\+?=)")
_READ_OR_UNSET = lazy_pattern(r"\b(?:read|unset)\s+(?:-\w+\s+)*(SLURM_[A-Z0-9_]+)")


def claims(file: SourceFile, scope: Scope) -> Iterator[Claim]:
    """Each variable of Slurm that the script reads and does not set, at the first place."""
    if "SLURM_" not in file.text:
        return
    own = {*_ASSIGNED.findall(file.text), *_READ_OR_UNSET.findall(file.text)}
    places = Places(file.path, file.text)
    start = 0
    for line in file.text.split("\n"):
        for match in _READ.finditer(line) if "SLURM_" in line and not line.lstrip().startswith("#") else ():
            name = match.group(1)
            if name in own:
                continue
            own.add(name)
            end = match.end() + (line[match.end() : match.end() + 1] == "}")
            span = places.span(start + match.start(), start + end)
            spelling = line[match.start() : end]
            yield Claim("variable_read", Known(name), span, spelling, "shell", scope=scope, strength=Strength.FLAG)
        start += len(line) + 1
