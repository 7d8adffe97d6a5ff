"""Bar charts of numbers of one unit; if there are very many bars, their outline and the outliers."""

from __future__ import annotations

from collections.abc import Sequence

from preflight.model.charts import Bar, Bars
from preflight.reporters.html.drawing.numbers import format_number, format_range, share
from preflight.reporters.html.drawing.row_table import cell_view, is_known
from preflight.reporters.html.drawing.shapes import BarsView, BarView

#: Up to this many bars, each has a row of its own.
MAX_BARS = 40
#: With more: the odd ones, and this many of the longest and of the shortest.
_EXTREMES = 6
_MAX_ODD = 24
_PROFILE_HEIGHT = 100


def bars_view(bars: Bars) -> BarsView:
    """Build the view of a bar chart."""
    longest = max((value for bar in bars.bars if (value := _value(bar)) is not None), default=0.0)
    many = len(bars.bars) > MAX_BARS
    shown = _choose_bars(bars.bars) if many else bars.bars
    return BarsView(
        id=bars.id,
        title=bars.title,
        note=bars.note,
        unit=bars.unit,
        bars=tuple(_bar(bar, bars.unit, longest) for bar in shown),
        bars_note=_summarize_others(bars, shown) if many else "",
        profile=_profile(bars.bars, longest) if many else "",
        profile_width=len(bars.bars),
        profile_note=f"All {len(bars.bars):,} in their order; the highest is {format_number(longest, bars.unit)}."
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


def _choose_bars(bars: Sequence[Bar]) -> tuple[Bar, ...]:
    """Return the odd bars and those at both ends, in their order."""
    odd = [number for number, bar in enumerate(bars) if bar.odd or _value(bar) is None][:_MAX_ODD]
    ordered = sorted((value, number) for number, bar in enumerate(bars) if (value := _value(bar)) is not None)
    ends = [number for _, number in (*ordered[:_EXTREMES], *ordered[-_EXTREMES:])]
    return tuple(bars[number] for number in sorted({*odd, *ends}))


def _summarize_others(bars: Bars, shown: Sequence[Bar]) -> str:
    chosen = set(map(id, shown))
    others = [bar for bar in bars.bars if id(bar) not in chosen]
    values = [value for bar in others if (value := _value(bar)) is not None]
    between_them = f": {format_range(values, bars.unit)}" if values else ""
    listed = "The table lists those that stand out, the highest and the lowest"
    return f"{listed}; {len(others):,} others are between{between_them}."


def _profile(bars: Sequence[Bar], longest: float) -> str:
    """Return the outline of all bars as a path, in a box one unit wide per bar and 100 units high."""
    path = [f"M0 {_PROFILE_HEIGHT}"]
    for bar in bars:
        value = _value(bar) or 0.0
        height = float(share(value, longest))
        path.append(f"V{_PROFILE_HEIGHT - height:.4g}h1")
    return "".join((*path, f"V{_PROFILE_HEIGHT}Z"))
