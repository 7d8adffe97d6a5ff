"""Links over time: one row for each direction of a link, one cell for each run, the worst first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from preflight.commands.history.past import Past
from preflight.model.measurements import Quantity
from preflight.reporters.html.drawing.numbers import Scale, scale_of, share
from preflight.reporters.html.drawing.shapes import Swatch
from preflight.services.fleet_page.fleet_view import Pages
from preflight.services.fleet_page.reading import LinkSeries
from preflight.services.fleet_page.showing import Block, day, value_of

#: Links of a page.
PAGE_LINKS = 25


@dataclass(frozen=True, slots=True)
class LinkLine:
    """A direction of a link. `change` compares its newest value with its own median."""

    node: str
    peer: str
    blocks: tuple[Block, ...]
    latest: str
    when: str
    usual: str
    change: str
    runs: int
    worse: bool


@dataclass(frozen=True, slots=True)
class LinksView:
    """Everything that the page of links shows, in words."""

    title: str
    note: str
    period: tuple[str, str]
    legend: tuple[Swatch, ...]
    lines: tuple[LinkLine, ...]
    pages: Pages


def links_view(past: Past, quantity: Quantity, links: Sequence[LinkSeries], page: int) -> LinksView:
    """Build the page: the links whose newest value is worst, compared with the median of all links in that run."""
    beside = _medians(links, len(past.runs))
    ordered = sorted(links, key=lambda item: (-_badness(item, quantity, beside), item.node, item.peer))
    start = (page - 1) * PAGE_LINKS
    shown = ordered[start : start + PAGE_LINKS]
    values = [value for item in links for value in item.values if value is not None]
    scale = scale_of(values) if values else None
    better = {"higher": "more is better", "lower": "less is better"}.get(quantity.better, "")
    return LinksView(
        title=f"{quantity.title[:1].upper()}{quantity.title[1:]}",
        note=f"The links whose newest value is worst, compared with the others of its run, come first; {better}."
        if better
        else "By name of the node.",
        period=(day(past.runs[0].began), day(past.runs[-1].began)),
        legend=tuple(_legend(scale, quantity)),
        lines=tuple(_line(item, past, quantity, scale) for item in shown),
        pages=Pages(page, max(1, -(-len(ordered) // PAGE_LINKS)), len(ordered)),
    )


def _medians(links: Sequence[LinkSeries], runs: int) -> list[float | None]:
    found: list[list[float]] = [[] for _ in range(runs)]
    for item in links:
        for place, value in enumerate(item.values):
            if value is not None:
                found[place].append(value)
    return [median(values) if values else None for values in found]


def _newest(item: LinkSeries) -> int:
    return max(place for place, value in enumerate(item.values) if value is not None)


def _badness(item: LinkSeries, quantity: Quantity, beside: Sequence[float | None]) -> float:
    """How many times worse than the median of its run the newest value is; 0 for a quantity that is neither."""
    place = _newest(item)
    value, usual = item.values[place], beside[place]
    if value is None or usual is None or quantity.better not in ("higher", "lower"):
        return 0.0
    if quantity.better == "higher":
        return usual / value if value > 0 else float("inf")
    return value / usual if usual > 0 else value


def _legend(scale: Scale | None, quantity: Quantity) -> list[Swatch]:
    if scale is None:
        return []
    edges = (scale.minimum, *scale.bounds, scale.maximum)
    styles = [style for style, _ in scale.labels("")]
    found = [
        Swatch(
            style,
            f"{value_of(quantity, edges[n])} to {value_of(quantity, edges[min(n + 1, len(edges) - 1)])}",
            str(n + 1),
        )
        for n, style in enumerate(styles)
    ]
    return [*found, Swatch("nothing", "not measured", "·")]


def _line(item: LinkSeries, past: Past, quantity: Quantity, scale: Scale | None) -> LinkLine:
    known = [value for value in item.values if value is not None]
    place, usual = _newest(item), median(known)
    latest = item.values[place]
    assert latest is not None and scale is not None
    change = (latest - usual) / abs(usual) if usual else 0.0
    worse = change < -0.1 if quantity.better == "higher" else change > 0.1
    size = len(past.runs)
    return LinkLine(
        item.node,
        item.peer,
        tuple(
            Block(
                share(at, size),
                share(1, size),
                scale.style(value),
                f"{day(past.runs[at].began)}: {value_of(quantity, value)}",
            )
            for at, value in enumerate(item.values)
            if value is not None
        ),
        value_of(quantity, latest),
        day(past.runs[place].began),
        value_of(quantity, usual),
        f"{change:+.0%}" if abs(change) >= 0.005 else "±0%",
        len(known),
        worse and quantity.better != "none",
    )
