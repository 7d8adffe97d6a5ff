"""Which nodes are equal, so that one can be compared with the others, and when a node became another one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from preflight.commands.history.past import Past

#: Nodes with the same values of these are peers.
_HARDWARE = ("gpu", "gpus", "processor")
#: What changes when a node is updated; its hardware is not part of that.
SOFTWARE = ("driver", "cuda", "kernel", "os")


def peers_of(past: Past) -> dict[str, tuple[str, ...]]:
    """The groups of equal nodes, by a text that names their hardware, as each was last seen."""
    found: dict[str, list[str]] = {}
    for node, sets in past.sets.items():
        last = next((number for number in reversed(sets) if number is not None), None)
        found.setdefault(_hardware(past.properties.get(last, {}) if last is not None else {}), []).append(node)
    return {name: tuple(nodes) for name, nodes in sorted(found.items())}


def _hardware(properties: Mapping[str, str]) -> str:
    gpu, gpus = properties.get("gpu", ""), properties.get("gpus", "")
    if gpu and gpu != "none":
        return f"{gpus} x {gpu}" if gpus else gpu
    return ", ".join(properties[name] for name in _HARDWARE if properties.get(name, "none") not in ("", "none", "0"))


@dataclass(frozen=True, slots=True)
class Change:
    """One property of a node that changed. `run` is the first one with the new value."""

    run: int
    node: str
    name: str
    before: str
    after: str


def changes_of(past: Past) -> Iterator[Change]:
    """Every change of a property of a node, by node and then in the order of time."""
    for node, sets in past.sets.items():
        known: dict[str, str] = {}
        last: int | None = None
        for run, number in enumerate(sets):
            if number is None or number == last:
                continue
            last = number
            properties = past.properties.get(number, {})
            for name, value in properties.items():
                if known.get(name, value) != value:
                    yield Change(run, node, name, known[name], value)
            known.update(properties)
