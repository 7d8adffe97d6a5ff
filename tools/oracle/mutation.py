"""Changes one to three settings of a valid configuration."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Mapping
from typing import Any

from tools.oracle.cases import Change

Settings = dict[str, Any]
#: Of a value of each type, the values of another type that users write by mistake.
_OTHER_TYPES: dict[type, tuple[Any, ...]] = {
    bool: ("yes", "maybe", 2, None),
    int: ("eight", "8", 2.5, [8], True, None),
    float: ("fast", "1e-4", [0.1], None),
    str: (1, True, ["x"], None),
    list: ("x", 3),
    dict: ("x", [1], 3, True),
}
NUMBERS = (0, -1, 1, 3, 7, 1_000_000)
#: How often each kind of change is drawn.
_KINDS = {"value": 9, "type": 3, "range": 3, "unknown": 2, "removed": 2}


def mutants(
    seed: Settings,
    space: Mapping[str, tuple[Any, ...]],
    *,
    number: int,
    random_seed: int,
    keep: frozenset[str],
    numbers: tuple[int, ...] = NUMBERS,
) -> Iterator[tuple[Settings, tuple[Change, ...]]]:
    """Yield changed configurations and their changes, which depend only on the arguments.

    Args:
        space: by key (joined by dots), values to try, right or wrong.
        number: how many are drawn; duplicates are left out.
        keep: keys that are not changed.
        numbers: replacements for numbers.
    """
    draw = random.Random(random_seed)
    seen: set[str] = set()
    for _ in range(number):
        settings, changes = copy.deepcopy(seed), []
        for _ in range(draw.choice((1, 1, 1, 2, 2, 3))):
            change = _drawn(draw, settings, space, keep, numbers)
            if change is None or any(_overlap(change.key, other.key) for other in changes):
                continue
            apply(settings, change)
            changes.append(change)
        if changes and repr(settings) not in seen:
            seen.add(repr(settings))
            yield settings, tuple(changes)


def apply(settings: Settings, change: Change) -> None:
    *above, name = change.key.split(".")
    section = settings
    for key in above:
        inner = section.get(key)
        if not isinstance(inner, dict):
            inner = section[key] = {}
        section = inner
    if change.kind == "removed":
        section.pop(name, None)
    else:
        section[name] = change.value


def keys_of(settings: Settings, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every key, joined by dots, with its value; also sections."""
    for key, value in settings.items():
        path = f"{above}.{key}" if above else key
        yield path, value
        if isinstance(value, dict):
            yield from keys_of(value, path)


def _overlap(one: str, other: str) -> bool:
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def _drawn(
    draw: random.Random,
    settings: Settings,
    space: Mapping[str, tuple[Any, ...]],
    keep: frozenset[str],
    numbers: tuple[int, ...],
) -> Change | None:
    present = [(key, value) for key, value in keys_of(settings) if key not in keep]
    kind = draw.choices(list(_KINDS), weights=list(_KINDS.values()))[0]
    if kind == "value":
        key = draw.choice(sorted(space))
        return Change(key, kind, draw.choice(space[key]))
    if not present:
        return None
    key, value = draw.choice(present)
    if kind == "type":
        return Change(key, kind, draw.choice(_OTHER_TYPES.get(type(value), ("x",))))
    if kind == "range":
        of_numbers = [item for item in present if type(item[1]) in (int, float)]
        return Change(draw.choice(of_numbers)[0], kind, draw.choice(numbers)) if of_numbers else None
    if kind == "unknown":
        above, _, name = key.rpartition(".")
        wrong = _misspelt(draw, name)
        return Change(f"{above}.{wrong}" if above else wrong, kind, value)
    return Change(key, "removed")


def _misspelt(draw: random.Random, name: str) -> str:
    if len(name) < 3:
        return f"{name}s"
    place = draw.randrange(1, max(2, len(name) - 1))
    return draw.choice((name[:place] + name[place + 1 :], name[:place] + name[place] + name[place:], f"{name}s"))
