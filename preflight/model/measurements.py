"""Measurements of a run's nodes and links, as numbers that can be compared with those of other runs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

_NAME = re.compile(r"[a-z][a-z0-9_]{0,99}")


@dataclass(frozen=True, slots=True)
class Quantity:
    """A quantity that is measured on nodes or links.

    Args:
        name: a name in lower case with underscores, as in a metric: `gpu_temperature`.
        title: a few words for people.
        unit: the unit of the values: `celsius`, `seconds`; empty for a count.
        kind: `gauge` for a present value, `counter` for a number that only grows until the node restarts.
        better: whether `higher` or `lower` values are good; `none` if neither are.
        least: the smallest relevant difference, in `unit`.
        share: the smallest relevant difference, as a share of the value.

    Raises ValueError for a name or a unit of another form, and for a title of several lines.
    """

    name: str
    title: str
    unit: str = ""
    kind: Literal["gauge", "counter"] = "gauge"
    better: Literal["higher", "lower", "none"] = "lower"
    least: float = 0.0
    share: float = 0.0

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or (self.unit and not _NAME.fullmatch(self.unit)):
            raise ValueError(f"quantity {self.name!r} in {self.unit!r}: expected lower case, digits and underscores")
        if not self.title.isprintable() or "\\" in self.title:
            raise ValueError(f"the title of quantity {self.name} must be one line of plain words")


@dataclass(frozen=True, slots=True)
class Measurements:
    """The values of one quantity in one run; the three lists have one entry for each value.

    Args:
        quantity: the measured quantity.
        nodes: the node of each value; for a link, the sending node.
        peers: the receiving node of each link; empty for a quantity of nodes.
        values: the values in the unit of the quantity.

    Raises ValueError if the lists differ in length.
    """

    quantity: Quantity
    nodes: tuple[str, ...]
    values: tuple[float, ...]
    peers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.nodes) != len(self.values) or (self.peers and len(self.peers) != len(self.nodes)):
            raise ValueError(f"{self.quantity.name} has {len(self.values)} values for {len(self.nodes)} nodes")


@dataclass(frozen=True, slots=True)
class NodeProperties:
    """The known components of a node: `driver`, `kernel`, `gpu` and the like.

    Args:
        node: the name of the node.
        names: the names of the known properties, in order.
        values: one value for each of the properties.
    """

    node: str
    names: tuple[str, ...]
    values: tuple[str, ...]

    @property
    def items(self) -> dict[str, str]:
        """Return the values by name."""
        return dict(zip(self.names, self.values, strict=True))
