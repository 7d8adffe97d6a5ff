"""Numbers of one unit as bars; of very many the outline of all, and those that stand out."""

from __future__ import annotations

from collections.abc import Sequence

from preflight.exhibit import Bar, Bars
from preflight.reporters.html.drawing.numbers import between, share, told
from preflight.reporters.html.drawing.table import cell_view, is_known
from preflight.reporters.html.drawing.view import BarsView, BarView

#: Up to so many bars each has a row of its own.
MOST_BARS = 40
#: Of more: the odd ones, and so many of the longest and of the shortest.
_EXTREMES = 6
_MOST_ODD = 24
_PROFILE_HEIGHT = 100


def bars_view(bars: Bars) -> BarsView:
    """The drawing of bars."""
    longest = max((value for bar in bars.bars if (value := _value(bar)) is not None), default=0.0)
    many = len(bars.bars) > MOST_BARS
    shown = _chosen(bars.bars) if many else bars.bars
    return BarsView(
        id=bars.id,
        title=bars.title,
        note=bars.note,
        unit=bars.unit,
        bars=tuple(_bar(bar, bars.unit, longest) for bar in shown),
        bars_note=_others(bars, shown) if many else "",
        profile=_profile(bars.bars, longest) if many else "",
        profile_width=len(bars.bars),
        profile_note=f"All {len(bars.bars):,} in their order, the highest is {told(longest, bars.unit)}."
        if many
        else "",
        has_groups=any(bar.group and bar.group != bar.label for bar in bars.bars),
    )


def _value(bar: Bar) -> float | None:
    return bar.value if is_known(bar.value) else None


def _bar(bar: Bar, unit: str, longest: float) -> BarView:
    value = _value(bar)
    cell = cell_view(value, unit, odd=bar.odd, why=bar.why)
    return BarView(bar.label, bar.group, share(value, longest) if value is not None else "0", cell)


def _chosen(bars: Sequence[Bar]) -> tuple[Bar, ...]:
    """The odd ones and the ends, in their order."""
    odd = [number for number, bar in enumerate(bars) if bar.odd or _value(bar) is None][:_MOST_ODD]
    ordered = sorted((value, number) for number, bar in enumerate(bars) if (value := _value(bar)) is not None)
    ends = [number for _, number in (*ordered[:_EXTREMES], *ordered[-_EXTREMES:])]
    return tuple(bars[number] for number in sorted({*odd, *ends}))


def _others(bars: Bars, shown: Sequence[Bar]) -> str:
    chosen = set(map(id, shown))
    others = [bar for bar in bars.bars if id(bar) not in chosen]
    values = [value for bar in others if (value := _value(bar)) is not None]
    between_them = f": {between(values, bars.unit)}" if values else ""
    return f"Listed are those that stand out and the ends. {len(others):,} others lie between{between_them}."


def _profile(bars: Sequence[Bar], longest: float) -> str:
    """The outline of all bars as a path in a box of one unit a bar and 100 units of height."""
    path = [f"M0 {_PROFILE_HEIGHT}"]
    for bar in bars:
        value = _value(bar) or 0.0
        height = float(share(value, longest))
        path.append(f"V{_PROFILE_HEIGHT - height:.4g}h1")
    return "".join((*path, f"V{_PROFILE_HEIGHT}Z"))
