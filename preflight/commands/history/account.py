"""The account of a fleet: its nodes, the stories of its runs, changes over time, and measurements that got worse.

A value is compared with the median of the node's peers in the same run, so that no node is blamed for a slow night or a
warm summer. A node's change is the median of its latest runs less the median of its early runs. A change is a story if
it is

- larger than the quantity's smallest relevant difference,
- six times as large as the uncertainty of these medians, from the node's own noise, and
- six deviations (1.4826 MAD) away from the changes of its peers, if there are enough of them.

Values that changed in one step in the same run on several nodes have a common cause. If values got worse on the nodes
whose driver, kernel or system changed, at the time of the change and compared with the others, the story is about that
change and not about the nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from statistics import median
from typing import Any

from preflight._util.json_output import schema_of, to_bytes
from preflight._util.sequences import grouped
from preflight._util.validation import type_adapter
from preflight.commands.history.past import SOFTWARE, Change, Past, Series, Values, changes_of, peers_of
from preflight.commands.history.stories import (
    OF_A_MEDIAN,
    Kind,
    Story,
    failing_nodes,
    growing_counters,
    health_of,
    join_words,
    known_points,
    noise,
    overlap,
    own_failures,
    shape_of,
    spread,
    step_error,
    theil_sen,
)
from preflight.model.measurements import Quantity

#: Smallest number of peers in a run for a median, and in all runs for the spread of their changes.
MIN_PEERS, MIN_SPREAD = 5, 8
#: Smallest number of values per node.
MIN_RUNS = 12
#: Number of latest runs whose median is compared.
LATEST = 7
DEVIATIONS = 6.0
#: A node with too few peers must change by more, because other causes cannot be excluded.
ALONE = 8.0
#: Smallest distance, in deviations, of a node that was always worse than its peers.
OUTLIER = 8.0
#: Steps of several nodes within this many runs of each other count as one step.
SAME_RUN = 1
MIN_TOGETHER = 3
#: Longest forecast, as a share of the observed time.
_HORIZON = 0.5
_LIMITS = (0.1, 0.2, 0.3, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class Compared:
    """Values by node compared with peers: shares of their median (`is_ratio`), or differences from it."""

    quantity: Quantity
    is_ratio: bool
    own: Mapping[str, Values]
    common: Mapping[str, Values]

    def is_worse(self, change: float) -> bool:
        """Return whether a change makes the quantity worse."""
        return change < 0 if self.quantity.better == "higher" else change > 0

    def least(self, level: float) -> float:
        """Return the smallest relevant change on the scale of `own`; `level` is in the unit of the quantity."""
        if not self.is_ratio:
            return max(self.quantity.least, self.quantity.share * abs(level))
        return max(self.quantity.share, self.quantity.least / level if level > 0 else 0.0)


def compare(series: Series, groups: Mapping[str, Sequence[str]]) -> Compared:
    """Return each value compared with the median of the node's peers in that run."""
    quantity = series.quantity
    is_ratio = quantity.share > 0
    own: dict[str, Values] = {}
    common: dict[str, Values] = {}
    for name, nodes in groups.items():
        several = [series.values[node] for node in nodes if node in series.values]
        if not several:
            continue
        if len(several) < MIN_PEERS:
            own.update((node, _own_changes(series.values[node], is_ratio)) for node in nodes if node in series.values)
            continue
        medians: Values = []
        for column in zip(*several, strict=True):
            values = [value for value in column if value is not None]
            middle = median(values) if len(values) >= MIN_PEERS else None
            # A share of zero is undefined.
            medians.append(middle if middle is None or not is_ratio or middle > 0 else None)
        common[name] = medians
        for node in nodes:
            if node in series.values:
                pairs = zip(series.values[node], medians, strict=True)
                if is_ratio:
                    own[node] = [None if v is None or m is None else v / m for v, m in pairs]
                else:
                    own[node] = [None if v is None or m is None else v - m for v, m in pairs]
    return Compared(quantity, is_ratio, own, common)


def _own_changes(values: Values, is_ratio: bool) -> Values:
    found = [value for value in values if value is not None]
    if not found:
        return values
    level = median(found)
    if is_ratio and level <= 0:
        return [None] * len(values)
    return [None if value is None else value / level if is_ratio else value - level for value in values]


@dataclass(frozen=True, slots=True)
class Worse:
    """A node's measurement that got worse. `since` is the run where it began; levels are relative to peers."""

    compared: Compared
    node: str
    since: int
    is_step: bool
    before: float
    after: float
    error: float

    def fits(self, run: int) -> bool:
        """Return whether a step in this run explains the series nearly as well as the best fit."""
        points = known_points(self.compared.own[self.node])
        at = next((place for place, (number, _) in enumerate(points) if number >= run), len(points))
        return step_error([value for _, value in points], at) <= 1.15 * self.error

    @property
    def quantity(self) -> Quantity:
        return self.compared.quantity

    @property
    def change(self) -> float:
        return self.after / self.before - 1 if self.compared.is_ratio and self.before else self.after - self.before


def _windows(values: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    latest = max(4, min(LATEST, len(values) // 5))
    return values[: max(latest, len(values) // 3)], values[-latest:]


def worse_nodes(compared: Compared, series: Series, groups: Mapping[str, Sequence[str]]) -> Iterator[Worse]:
    """Yield the nodes whose measurement got worse than it was, compared with their peers."""
    for name, nodes in groups.items():
        changes: dict[str, float] = {}
        for node in nodes:
            values = [value for value in compared.own.get(node, ()) if value is not None]
            if len(values) >= MIN_RUNS:
                early, late = _windows(values)
                changes[node] = median(late) - median(early)
        if not changes:
            continue
        alone = name not in compared.common or len(changes) < MIN_SPREAD
        centre, deviation = (0.0, 0.0) if alone else (median(changes.values()), spread(tuple(changes.values())))
        for node, change in changes.items():
            if compared.is_worse(change) and abs(change - centre) > DEVIATIONS * deviation:
                found = _is_confirmed(compared, series, node, change, ALONE if alone else DEVIATIONS)
                if found is not None:
                    yield found


def _is_confirmed(compared: Compared, series: Series, node: str, change: float, deviations: float) -> Worse | None:
    points = known_points(compared.own[node])
    values = [value for _, value in points]
    early, late = _windows(values)
    level = median(value for value in series.values[node] if value is not None)
    least = compared.least(level)
    error = OF_A_MEDIAN * noise(values) * (1 / len(early) + 1 / len(late)) ** 0.5
    if abs(change) < least or abs(change) < deviations * error:
        return None
    # A single noisy week is not a change: nearly all of the latest values must be worse than before.
    before = median(early)
    if sum(compared.is_worse(value - before) and abs(value - before) > least / 3 for value in late) < 0.8 * len(late):
        return None
    shape = shape_of(values)
    after = shape.after if shape.is_step else median(late)
    return Worse(compared, node, points[shape.at][0], shape.is_step, shape.before, after, shape.error)


def outliers(
    compared: Compared, groups: Mapping[str, Sequence[str]], explained: set[str]
) -> Iterator[tuple[str, float, float]]:
    """Yield nodes that were always worse than their peers: the node, its level, and the deviation of its peers."""
    for name, nodes in groups.items():
        if name not in compared.common:
            continue
        values_of = {node: [v for v in compared.own.get(node, ()) if v is not None] for node in nodes}
        levels = {node: median(values) for node, values in values_of.items() if len(values) >= MIN_RUNS}
        if len(levels) < MIN_SPREAD:
            continue
        centre = median(levels.values())
        deviation = spread(tuple(levels.values()))
        usual = [value for value in compared.common[name] if value is not None]
        least = 2 * compared.least(median(usual))
        for node, level in levels.items():
            away = level - centre
            if node in explained or not compared.is_worse(away) or abs(away) < max(least, OUTLIER * deviation):
                continue
            if abs(away) < 3 * spread(values_of[node]):
                continue
            yield node, away, deviation


@dataclass(frozen=True, slots=True)
class Update:
    """Nodes of one group whose software changed in the same way: the first run with the new version, by node."""

    group: str
    what: tuple[tuple[str, str, str], ...]
    runs: Mapping[str, int]

    @property
    def text(self) -> str:
        """Return `driver 550.54.15 -> 550.90.07 and kernel ...`."""
        return join_words([f"{name} {before} -> {after}" for name, before, after in self.what])


def updates_of(changes: Sequence[Change], groups: Mapping[str, Sequence[str]]) -> list[Update]:
    """Return the software changes by group and by changed component."""
    group_of = {node: name for name, nodes in groups.items() for node in nodes}
    found: dict[tuple[str, tuple[str, str, str]], dict[str, int]] = {}
    for change in changes:
        if change.name in SOFTWARE:
            what = (change.name, change.before, change.after)
            found.setdefault((group_of[change.node], what), {})[change.node] = change.run
    # Changes on the same nodes in the same runs cannot be told apart.
    same = grouped(((group, tuple(sorted(runs.items()))), what) for (group, what), runs in found.items())
    updates = [Update(group, tuple(sorted(several)), dict(runs)) for (group, runs), several in same.items()]
    return sorted(updates, key=lambda item: (item.group, item.what))


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of an update on a quantity: the median `change` of its nodes, less that of the other nodes."""

    update: Update
    quantity: Quantity
    change: float
    nodes: tuple[str, ...]


def effect_of(update: Update, series: Series, compared: Compared, updates: Sequence[Update]) -> Effect | None:
    """Return the effect of an update on a quantity if it is a worsening and not due to chance; otherwise None."""
    if len(update.runs) < MIN_TOGETHER:
        return None
    changes: dict[str, float] = {}
    others: dict[int, float] = {}
    for node, run in update.runs.items():
        change = _change_across(series.values.get(node, ()), run, compared.is_ratio)
        if change is None:
            continue
        if run not in others:
            # Nodes that were updated at about the same time cannot serve as the comparison.
            busy = {
                other
                for item in updates
                for other, at in item.runs.items()
                if other in update.runs or (item is not update and abs(at - run) < LATEST)
            }
            near = [
                value
                for other, values in series.values.items()
                if other not in busy and (value := _change_across(values, run, compared.is_ratio)) is not None
            ]
            others[run] = median(near) if len(near) >= MIN_TOGETHER else 0.0
        changes[node] = change - others[run]
    if len(changes) < MIN_TOGETHER:
        return None
    values = tuple(changes.values())
    change = median(values)
    level = median(v for node in changes for v in series.values[node] if v is not None)
    if not compared.is_worse(change) or abs(change) < compared.least(level):
        return None
    if sum(compared.is_worse(value) for value in values) < 0.9 * len(values):
        return None
    error = OF_A_MEDIAN * spread(values) / len(values) ** 0.5
    # Whole nights also differ: the medians of the group before and after are as uncertain as these nights.
    common = compared.common.get(update.group)
    nights = [value for value in common or () if value is not None]
    if compared.is_ratio and nights:
        middle = median(nights)
        nights = [value / middle for value in nights]
    error = max(error, OF_A_MEDIAN * noise(nights) * (2 / LATEST) ** 0.5)
    if abs(change) < DEVIATIONS * error:
        return None
    return Effect(update, series.quantity, change, tuple(sorted(changes)))


def _without_side_effects(effects: Sequence[Effect]) -> list[Effect]:
    """Return the effects; of two updates on mostly the same nodes, only the one with the larger effect."""
    found: list[Effect] = []
    for effect in sorted(effects, key=lambda item: -abs(item.change)):
        if all(overlap(effect.nodes, other.nodes) < 0.5 for other in found):
            found.append(effect)
    return found


def _change_across(values: Sequence[float | None], run: int, is_ratio: bool) -> float | None:
    """Return the change of a node's values across the start of a run, from the medians of adjacent runs."""
    before = [value for value in values[max(0, run - LATEST) : run] if value is not None]
    after = [value for value in values[run : run + LATEST] if value is not None]
    if min(len(before), len(after)) < 4:
        return None
    return median(after) / median(before) - 1 if is_ratio else median(after) - median(before)


def worsened_groups(compared: Compared, explained: set[str]) -> Iterator[tuple[str, int, float]]:
    """Yield the groups (except `explained`) that got worse in one step, compared with the other groups."""
    for name, values in compared.common.items():
        if name in explained:
            continue
        others = [other for key, other in compared.common.items() if key != name]
        points = []
        for run, value in known_points(values):
            rest = [other[run] for other in others]
            beside = [item for item in rest if item is not None]
            if others and not beside:
                continue
            base = median(beside) if beside else (1.0 if compared.is_ratio else 0.0)
            points.append((run, value / base if compared.is_ratio else value - base))
        if len(points) < MIN_RUNS:
            continue
        series = [value for _, value in points]
        early, late = _windows(series)
        change = median(late) - median(early)
        level = median(value for value in values if value is not None)
        scale = median(early) if compared.is_ratio else 1.0
        blocks = [median(series[at : at + LATEST]) for at in range(0, len(series) - LATEST + 1, LATEST)]
        error = OF_A_MEDIAN * noise(series) * (1 / len(early) + 1 / len(late)) ** 0.5
        error = max(error, noise(blocks))
        if not compared.is_worse(change) or abs(change) / scale < compared.least(level) or abs(change) < ALONE * error:
            continue
        shape = shape_of(series)
        if shape.is_step:
            yield name, points[shape.at][0], change / scale


# Stories


def drift_stories(past: Past, groups: Mapping[str, Sequence[str]], changes: Sequence[Change]) -> Iterator[Story]:
    """Yield every story about gauges."""
    updates = updates_of(changes, groups)
    effects: list[Effect] = []
    worse: list[Worse] = []
    wholes: list[Story] = []
    odd: dict[str, list[tuple[Quantity, float, bool]]] = {}
    for series in past.series.values():
        quantity = series.quantity
        if quantity.kind != "gauge" or quantity.better == "none":
            continue
        compared = compare(series, groups)
        found = _without_side_effects(
            [effect for item in updates if (effect := effect_of(item, series, compared, updates)) is not None]
        )
        effects += found
        explained = {node for effect in found for node in effect.nodes}
        of_nodes = [item for item in worse_nodes(compared, series, groups) if item.node not in explained]
        worse += of_nodes
        for name, run, change in worsened_groups(compared, {effect.update.group for effect in found}):
            what = f"all nodes with {name}" if name else "all nodes"
            amount = _amount(quantity, change, compared.is_ratio)
            message = f"{what} got worse at once, but none of their known properties changed: {amount}"
            nodes, since = tuple(groups[name]), past.time_of(run)
            wholes.append(Story("all-nodes", nodes, (quantity.name,), since, change, message, ""))
        named_nodes = {*explained, *(item.node for item in of_nodes)}
        for node, away, _ in outliers(compared, groups, named_nodes):
            odd.setdefault(node, []).append((quantity, away, compared.is_ratio))
    yield from _update_stories(past, effects)
    yield from wholes
    yield from _worse_stories(past, worse)
    for node in sorted(odd):
        parts = [_amount(quantity, away, is_ratio) for quantity, away, is_ratio in odd[node]]
        names = tuple(quantity.name for quantity, _, _ in odd[node])
        message = f"was always worse than comparable nodes: {join_words(parts)}"
        yield Story("outlier", (node,), names, past.time_of(0), odd[node][0][1], message, "")


def _update_stories(past: Past, effects: Sequence[Effect]) -> Iterator[Story]:
    by_update = grouped((id(effect.update), effect) for effect in effects)
    for several in by_update.values():
        update = several[0].update
        parts = [_amount(item.quantity, item.change, item.quantity.share > 0) for item in several]
        nodes = tuple(sorted({node for item in several for node in item.nodes}))
        model = f" ({update.group})" if update.group else ""
        message = f"got worse when {update.text}{model}: {join_words(parts)}"
        names = tuple(item.quantity.name for item in several)
        since = past.time_of(min(update.runs.values()))
        yield Story("after-change", nodes, names, since, several[0].change, message, "")


def _worse_stories(past: Past, worse: Sequence[Worse]) -> Iterator[Story]:
    """Yield stories of steps that several nodes share, followed by those of single nodes."""
    shared: list[list[Worse]] = []
    remaining = list(worse)
    for name in sorted({item.quantity.name for item in worse}):
        steps = sorted(
            (item for item in remaining if item.quantity.name == name and item.is_step), key=lambda i: (i.since, i.node)
        )
        start = 0
        while start < len(steps):
            near = [item for item in steps[start:] if item.since <= steps[start].since + SAME_RUN]
            if len(near) >= MIN_TOGETHER:
                # A near fit belongs to the same run: noise moves the step of a node by some runs.
                middle = sorted(item.since for item in near)[len(near) // 2]
                near = [item for item in remaining if item.quantity.name == name and item.fits(middle)]
                shared.append(near)
                remaining = [item for item in remaining if item not in near]
                start = next((n for n, item in enumerate(steps) if n >= start and item in remaining), len(steps))
            else:
                start += 1
    while shared:
        first = shared[0]
        same = [
            group
            for group in shared
            if abs(_middle_run(group) - _middle_run(first)) <= 2 * SAME_RUN + 1
            and overlap((i.node for i in group), (i.node for i in first)) >= 0.5
        ]
        shared = [group for group in shared if group not in same]
        yield _shared_step_story(past, same)
        # The same nodes may have changes of their own that only follow from the shared step.
        nodes = {item.node for group in same for item in group}
        remaining = [item for item in remaining if item.node not in nodes or not item.fits(_middle_run(first))]
    by_node = grouped((item.node, item) for item in remaining)
    for node in sorted(by_node):
        yield _node_story(past, node, by_node[node])


def _middle_run(group: Sequence[Worse]) -> int:
    return sorted(item.since for item in group)[len(group) // 2]


def _shared_step_story(past: Past, groups: Sequence[Sequence[Worse]]) -> Story:
    nodes = tuple(sorted({item.node for group in groups for item in group}))
    parts = [
        _amount(group[0].quantity, median(item.change for item in group), group[0].compared.is_ratio)
        for group in groups
    ]
    message = (
        f"got worse in the same run, but comparable nodes did not: {join_words(parts)}; look for what these "
        "nodes have in common"
    )
    names = tuple(group[0].quantity.name for group in groups)
    change = median(item.change for item in groups[0])
    return Story("shared-step", nodes, names, past.time_of(_middle_run(groups[0])), change, message, "")


def _node_story(past: Past, node: str, worse: Sequence[Worse]) -> Story:
    is_step = all(item.is_step for item in worse)
    parts = [_amount(item.quantity, item.change, item.compared.is_ratio) for item in worse]
    how = "in one step" if is_step else "slowly"
    message = f"got worse {how}, relative to comparable nodes: {join_words(parts)}"
    since = past.time_of(min(item.since for item in worse))
    forecast = "" if is_step else next(filter(None, (_forecast(past, item) for item in worse if not item.is_step)), "")
    names = tuple(item.quantity.name for item in worse)
    return Story("step" if is_step else "drift", (node,), names, since, worse[0].change, message, forecast)


def _forecast(past: Past, worse: Worse) -> str:
    """Return when a slow change reaches the next limit, if the slope is certain enough; otherwise an empty string."""
    if not worse.compared.is_ratio:
        return ""
    points = [point for point in known_points(worse.compared.own[worse.node]) if point[0] >= worse.since]
    if len(points) < 2 * LATEST:
        return ""
    times = [(past.runs[run].began, value) for run, value in points]
    slope = theil_sen(times)
    sign = -1.0 if worse.quantity.better == "higher" else 1.0
    low, high = sorted((sign * slope.low, sign * slope.high))
    # An interval wider than its half would be meaningless.
    if low <= 0 or high > 2.5 * low:
        return ""
    now = sign * (worse.after - 1.0)
    limit = next((item for item in _LIMITS if item > now + 0.02), None)
    if limit is None:
        return ""
    soon, late = (limit - now) / high, (limit - now) / low
    observed = times[-1][0] - times[0][0]
    if late > observed * (1 + _HORIZON):
        return ""
    side = "below" if sign < 0 else "above"
    first, last = day(times[-1][0] + soon), day(times[-1][0] + late)
    reached = f"{limit * 100:.0f} % {side} comparable nodes"
    return f"at this rate it is {reached} between {first} and {last} (95 % interval of the slope)"


def day(seconds: float) -> str:
    """Return the day (UTC) of a time in seconds since the epoch."""
    return datetime.fromtimestamp(seconds, timezone.utc).date().isoformat()


def _amount(quantity: Quantity, change: float, is_ratio: bool) -> str:
    """Format a change such as `throughput over its links 12 % lower`."""
    side = "higher" if change > 0 else "lower"
    if is_ratio:
        return f"{quantity.title} {abs(change):.0%} {side}".replace("%", " %")
    unit = f" {quantity.unit.replace('_', ' ')}" if quantity.unit else ""
    return f"{quantity.title} {abs(change):.3g}{unit} {side}"


SCHEMA_VERSION = 1
#: Lists whose items are written as one line of JSON each.
BULK = ("nodes", "changes")
#: The method behind the stories, for readers of the document.
METHOD = (
    "each node is compared with the median of its peers (same GPUs, or else same processors) in the same run; a "
    "change is reported beyond 6 deviations (1.4826 MAD) of the peers' changes and 6 times its own uncertainty; "
    "slopes by Theil and Sen; failures and counters by a binomial chance below 1 % for the whole fleet"
)


@dataclass(frozen=True, slots=True)
class NodeAccount:
    """The record of a node.

    Args:
        node: its name.
        state: in the newest run that examined it: `passing`, `failing` or `unknown`.
        runs: the number of runs that examined it.
        failures: the number of periods of runs in which only it failed.
        healthy_since: the time of the first of the passing runs that lead to the newest; null if it does not pass now.
        last_failure: the time of its last failure; null without one.
        mean_days_between_failures: null with fewer than two failures.
        properties: its components, as last seen.
    """

    node: str
    state: str
    runs: int
    failures: int
    healthy_since: str | None
    last_failure: str | None
    mean_days_between_failures: float | None
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PropertyChange:
    """A property that changed on some nodes in the same run.

    Args:
        at: the time of the first run with the new value.
        name: of the property: `driver`, `kernel` and the like.
        before, after: its values.
        nodes: the nodes with the change.
    """

    at: str
    name: str
    before: str
    after: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Account:
    """The account of a fleet.

    Args:
        database: its address, without a password.
        first, last: the times of the first and the newest run; empty without runs.
        runs: their number.
        stories: those with most nodes first within each kind.
        changes: in the order of time.
        nodes: by name.
        method: the method behind the stories.
    """

    database: str
    first: str
    last: str
    runs: int
    stories: tuple[Story, ...]
    changes: tuple[PropertyChange, ...]
    nodes: tuple[NodeAccount, ...]
    method: str = METHOD
    schema_version: int = SCHEMA_VERSION

    @property
    def blamed_nodes(self) -> tuple[str, ...]:
        """Return the nodes to exclude from a job: those with a story that no other node shares."""
        own = {node for story in self.stories if story.kind in _OF_ONE for node in story.nodes}
        return tuple(item.node for item in self.nodes if item.node in own)


#: Kinds of stories that are about a node by itself.
_OF_ONE = ("down", "fails-again", "drift", "step", "counter", "outlier")
_ORDER: tuple[Kind, ...] = (
    *("down", "fails-again", "after-change", "all-nodes", "shared-step", "step", "drift", "counter", "outlier"),
)


def account_of(past: Past, database: str) -> Account:
    """Return the account of these runs."""
    groups = peers_of(past)
    own = own_failures(past)
    health = health_of(past, own)
    changes = tuple(changes_of(past))
    stories = [
        *failing_nodes(past, own, health),
        *drift_stories(past, groups, changes),
        *growing_counters(past, groups),
    ]
    stories.sort(key=lambda story: (_ORDER.index(story.kind), -len(story.nodes), story.nodes, story.quantities))
    days = 86_400
    nodes = tuple(
        NodeAccount(
            item.node,
            item.state,
            item.runs,
            item.failures,
            None if item.healthy_since is None else past.time_of(item.healthy_since),
            past.time_of(item.failed_in[-1]) if item.failed_in else None,
            None if item.mean_time_between_failures_s is None else round(item.mean_time_between_failures_s / days, 1),
            past.last_properties(item.node),
        )
        for item in health.values()
    )
    together = grouped(((change.run, change.name, change.before, change.after), change.node) for change in changes)
    return Account(
        database=database,
        first=past.time_of(0) if past.runs else "",
        last=past.time_of(-1) if past.runs else "",
        runs=len(past.runs),
        stories=tuple(stories),
        changes=tuple(
            PropertyChange(past.time_of(run), name, before, after, tuple(nodes_of))
            for (run, name, before, after), nodes_of in sorted(together.items())
        ),
        nodes=nodes,
    )


def restrict_to(account: Account, names: Collection[str]) -> Account:
    """Return the part of an account that concerns these nodes. Comparisons with all peers are kept."""
    return replace(
        account,
        stories=tuple(story for story in account.stories if any(node in names for node in story.nodes)),
        changes=tuple(item for item in account.changes if any(node in names for node in item.nodes)),
        nodes=tuple(item for item in account.nodes if item.node in names),
    )


def to_json(account: Account) -> bytes:
    """Return the account as indented JSON, with one line per node."""
    return to_bytes(account, indent=2, bulk=BULK)


def schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of the output of `to_json`."""
    return schema_of(type_adapter(Account), "preflight history")
