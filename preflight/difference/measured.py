"""What two reports measured of the same links and ranks, and which of it got worse by more than the noise."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from preflight.difference.model import Measured, Regression
from preflight.difference.noise import Limits, noise_of
from preflight.exhibit import Bars, Exhibit, Matrix
from preflight.matrix import Cell, shapes

#: What was measured of one thing: of a pair of nodes, or of a rank and its node.
Key = tuple[str, str]
#: Where this share of all got worse by more than the noise, it is the fleet that got worse.
_FLEET = 0.75
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6}


@dataclass(frozen=True, slots=True)
class _Quantity:
    """An exhibit that is compared. `least_s`: smaller differences of times are not told, however large their factor.

    The limits: TCP over a quiet network repeats within some 10 %, small messages and short steps on busy hosts within
    some 30 %.
    """

    id: str
    limits: Limits
    more_is_better: bool = False
    least_s: float = 0.0


QUANTITIES = (
    _Quantity("links.bandwidth", Limits(1.25, 2.0), more_is_better=True),
    _Quantity("links.latency", Limits(1.5, 3.0), least_s=50e-6),
    _Quantity("smoke.step_times", Limits(1.25, 2.0), least_s=1e-3),
    _Quantity("smoke.stragglers", Limits(1.25, 2.0), least_s=1e-3),
)


def of_measurements(old: Sequence[Exhibit], new: Sequence[Exhibit]) -> tuple[Measured, ...]:
    """Every quantity that both reports measured of at least one link or rank."""
    return tuple(_measured(old, new))


def _measured(old: Sequence[Exhibit], new: Sequence[Exhibit]) -> Iterator[Measured]:
    before = {item.id: item for item in old if isinstance(item, Matrix | Bars)}
    after = {item.id: item for item in new if isinstance(item, Matrix | Bars)}
    for quantity in QUANTITIES:
        was, now = before.get(quantity.id), after.get(quantity.id)
        if was is None or now is None or type(was) is not type(now) or was.unit != now.unit:
            continue
        earlier, later = _values(was), _values(now)
        both = {key: (earlier[key], later[key]) for key in later if key in earlier}
        if not both:
            continue
        missing, added = len(earlier) - len(both), len(later) - len(both)
        way = _Way(_by_shape, " to ".join) if isinstance(now, Matrix) else _Way(_by_node, lambda key: key[1])
        yield _judged(quantity, way, now, both, missing=missing, added=added)


def _values(exhibit: Matrix | Bars) -> dict[Key, float]:
    """What was measured, and not more: neither pairs that were not tried nor what could not be told."""
    if isinstance(exhibit, Bars):
        named = [((bar.group, bar.label), bar.value) for bar in exhibit.bars]
    else:
        rows, columns = exhibit.rows, exhibit.columns
        named = [
            ((rows[mark.row], columns[mark.column]), mark.value)
            for mark in exhibit.marks
            if 0 <= mark.row < len(rows) and 0 <= mark.column < len(columns)
        ]
    return {key: float(value) for key, value in named if value is not None and value > 0}


#: Keys with what explains them: in words, and as nodes.
Group = tuple[str, tuple[str, ...], list[Key]]


@dataclass(frozen=True, slots=True)
class _Way:
    """How keys of one kind of exhibit are grouped, and spoken of."""

    grouped: Callable[[Sequence[Key], Iterable[Key]], Iterator[Group]]
    spoken: Callable[[Key], str]


def _judged(
    quantity: _Quantity,
    way: _Way,
    shown: Matrix | Bars,
    both: Mapping[Key, tuple[float, float]],
    *,
    missing: int,
    added: int,
) -> Measured:
    ratios = {key: was / now if quantity.more_is_better else now / was for key, (was, now) in both.items()}
    noise = noise_of(list(ratios.values()), quantity.limits)
    middle = statistics.median(ratios.values())
    least = quantity.least_s / _SECONDS[shown.unit] if shown.unit in _SECONDS else 0.0
    moved = {key for key, (was, now) in both.items() if abs(now - was) >= least}
    of_fleet = {key for key in moved if ratios[key] > noise.allowed}
    worse: list[Regression] = []
    usual = 1.0
    if len(ratios) > 2 and len(of_fleet) >= _FLEET * len(ratios):
        # All of them together; on top of that only those that lost more than the others did.
        worse.append(_regression((f"all {len(ratios)}", (), sorted(of_fleet)), way, both, ratios))
        usual = middle
    bad = {key for key in moved if ratios[key] > noise.allowed * usual}
    worse.extend(_regression(group, way, both, ratios) for group in way.grouped(sorted(ratios), bad))
    better = sum(1 / ratio > noise.allowed and key in moved for key, ratio in ratios.items())
    return Measured(
        quantity.id, shown.title, shown.unit, len(both), missing, added, _rounded(middle), noise, tuple(worse), better
    )


def _regression(
    group: Group, way: _Way, both: Mapping[Key, tuple[float, float]], ratios: Mapping[Key, float]
) -> Regression:
    where, nodes, keys = group
    return Regression(
        where=where,
        nodes=nodes,
        subjects=tuple(map(way.spoken, keys)),
        before=_rounded(statistics.median(both[key][0] for key in keys)),
        after=_rounded(statistics.median(both[key][1] for key in keys)),
        factor=_rounded(statistics.median(ratios[key] for key in keys)),
    )


def _by_shape(every: Sequence[Key], bad: Iterable[Key]) -> Iterator[Group]:
    """Pairs by the row, column or node that explains them."""
    slow = set(bad)
    words = {"inbound": "to {}", "outbound": "from {}", "isolated": "from and to {}", "around": "around {}"}
    cells = [Cell(*key, "way", None) for key in every]
    for shape in shapes(cells, lambda cell: cell.pair in slow):
        keys = sorted({cell.pair for cell in shape.cells})
        if shape.kind == "pair":
            way = "{} and {}" if shape.mutual else "{} to {}"
            yield way.format(*keys[0]), shape.nodes, keys
        elif shape.kind == "everybody":
            yield f"all {len(keys)}", (), keys
        else:
            yield words[shape.kind].format(shape.node), shape.nodes, keys


def _by_node(every: Sequence[Key], bad: Iterable[Key]) -> Iterator[Group]:
    """Ranks by the node that they are on."""
    of_node: dict[str, list[Key]] = {}
    for key in sorted(bad):
        of_node.setdefault(key[0], []).append(key)
    for node, keys in of_node.items():
        labels = ", ".join(label for _, label in keys)
        where = f"{labels} on {node}" if node and node not in labels else labels
        yield where, (node,) if node else (), keys


def _rounded(value: float) -> float:
    """With four digits: more are noise, and a reader compares them."""
    return float(f"{value:.4g}")
