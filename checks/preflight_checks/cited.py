"""The decorator of this pack's checks, which takes their evidence from `data/evidence.toml`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from preflight.plugins import authoring
from preflight_checks.comparison import table


@dataclass(frozen=True, slots=True, kw_only=True)
class check(authoring.check):
    """A check of this pack. Raises ValueError as `authoring.check` does, also if the file has no row for its id."""

    evidence: Sequence[authoring.Citation] = ()

    def __post_init__(self) -> None:
        rows = table("evidence").get(self.id, ())
        object.__setattr__(self, "evidence", [row if isinstance(row, str) else tuple(row) for row in rows])
        authoring.check.__post_init__(self)
