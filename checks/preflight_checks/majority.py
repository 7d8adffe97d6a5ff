"""What most nodes have, and which ones differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Generic, TypeVar

from preflight.lazy.dataclasses import dataclass
from preflight_checks.demands import fold

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Split(Generic[T]):
    """The commonest value, the nodes with another, and whether more than half of all nodes have the common one."""

    common: T
    agreeing: tuple[str, ...]
    odd: dict[str, T]
    clear: bool

    @property
    def first_odd(self) -> tuple[str, T]:
        """The first node with another value, as an example; there must be one."""
        return next(iter(self.odd.items()))

    @property
    def spoken(self) -> str:
        """Who has what: the odd nodes one by one, the others by their number."""
        odd = fold(f"{node}: {value}" for node, value in self.odd.items())
        return f"{odd}; {len(self.agreeing)} {'node has' if len(self.agreeing) == 1 else 'nodes have'} {self.common}"


def split(values: Mapping[str, T]) -> Split[T] | None:
    """How the nodes' values divide; None without values. Of equally common ones the first node's counts."""
    if not values:
        return None
    counts = Counter(values.values())
    common, most = counts.most_common(1)[0]
    agreeing = tuple(node for node, value in values.items() if value == common)
    odd = {node: value for node, value in values.items() if value != common}
    return Split(common, agreeing, odd, 2 * most > len(values))
