"""Twelve stories to plant in a fleet, at nodes, nights and sizes drawn from a seed; and what must be told of each."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from preflight.commands.history.account import Account, NodeStory
from preflight_checks.charts import link_matrices as links
from preflight_checks.charts import node_tables as node_values
from preflight_checks.charts import rank_timelines as ranks
from tests.commands.history.fleet import CARRIER, Fleet, Sample, Story


@dataclass(frozen=True)
class Planted:
    """A story, and what is expected of it: its kind, its nodes, and one of the quantities that it names."""

    name: str
    kind: str
    nodes: tuple[str, ...]
    quantity: str
    story: Story

    def is_told_by(self, told: NodeStory) -> bool:
        """Whether a story of the account is this one: at least nine tenths of its nodes, and no other."""
        right = set(told.nodes) & set(self.nodes)
        if told.kind != self.kind or len(right) < 0.9 * len(self.nodes) or len(right) < len(told.nodes):
            return False
        return not self.quantity or self.quantity in told.quantities


def _from(start: int, chosen: set[int], change: Callable[[Sample, int], None]) -> Story:
    """A story of these nodes that begins in this night; `change` gets the nights since."""

    def story(night: int, index: int, sample: Sample) -> None:
        if index in chosen and night >= start:
            change(sample, night - start)

    return story


def twelve(seed: int, size: int = 500, nights: int = 90) -> tuple[Planted, ...]:
    """The twelve stories for a fleet of this size."""
    chance = random.Random(seed * 7919 + 13)
    fleet = Fleet(size, nights)
    fast = [index for index in range(size) if "H100" in fleet.model(index)]
    slow = [index for index in range(size) if "H100" not in fleet.model(index)]
    first = chance.randrange(0, len(fast) - 16)
    behind_switch = list(range(first, first + 16))
    updated = chance.sample([index for index in fast if index not in behind_switch], min(40, size // 12))
    free = [index for index in fast if index not in behind_switch and index not in updated]
    alone = chance.sample(free, 10)
    names = fleet.names
    found: list[Planted] = []

    def plant(name: str, kind: str, indices: list[int], quantity: str, story: Story) -> None:
        found.append(Planted(name, kind, tuple(sorted(names[index] for index in indices)), quantity, story))

    def failing(nights_of: set[int], indices: set[int], rule: str) -> Story:
        def story(night: int, index: int, sample: Sample) -> None:
            if index in indices and night in nights_of:
                sample.failing[rule] = "an error that comes and goes"
                sample.missing = False

        return story

    bad = set(chance.sample(range(2, nights, 2), 11))
    plant("lemon", "fails-again", alone[:1], "", failing(bad, {alone[0]}, "GPU010"))
    bad = set(chance.sample(range(2, nights, 2), 10))
    plant("pair", "fails-again", alone[1:3], "", failing(bad, set(alone[1:3]), "LNK004"))

    def silent(sample: Sample, since: int) -> None:
        sample.problem, sample.missing = "it did not answer within 8 s", False

    plant("down", "down", alone[3:4], "", _from(nights - chance.randint(5, 12), {alone[3]}, silent))

    def scaled(name: str, factor: float, over: int = 1) -> Callable[[Sample, int], None]:
        def change(sample: Sample, since: int) -> None:
            sample.gauges[name] *= 1 + (factor - 1) * min(1.0, (since + 1) / over)

        return change

    start = chance.randint(20, 40)
    bandwidth, latency, pace = links.NODE_BANDWIDTH.name, links.NODE_LATENCY.name, ranks.PACE.name
    change = scaled(bandwidth, chance.uniform(0.65, 0.78), nights - start)
    plant("slow drift", "drift", alone[4:5], bandwidth, _from(start, {alone[4]}, change))

    start, by = chance.randint(15, 40), chance.uniform(14, 20)

    def warmer(sample: Sample, since: int) -> None:
        sample.gauges[node_values.TEMPERATURE.name] += by * min(1.0, since / (nights - start))

    plant("dust", "drift", alone[5:6], node_values.TEMPERATURE.name, _from(start, {alone[5]}, warmer))
    start = chance.randint(30, nights - 12)
    plant("slow node", "step", alone[6:7], pace, _from(start, {alone[6]}, scaled(pace, chance.uniform(1.12, 1.3))))
    start = chance.randint(35, nights - 15)
    slower = chance.uniform(1.07, 1.12)

    def driver(sample: Sample, since: int) -> None:
        sample.properties["driver"] = "555.42.06"
        sample.gauges[pace] *= slower

    plant("driver", "after-change", slow, pace, _from(start, set(slow), driver))
    start, first_night = chance.randint(35, nights - 20), {index: chance.randint(0, 5) for index in updated}

    def kernel(night: int, index: int, sample: Sample) -> None:
        if index in first_night and night >= start + first_night[index]:
            sample.properties["kernel"] = "6.8.0-31"
            sample.gauges[latency] *= 1.35

    plant("kernel", "after-change", updated, latency, kernel)
    start, share = chance.randint(25, nights - 12), chance.uniform(0.72, 0.85)

    def switch(sample: Sample, since: int) -> None:
        sample.gauges[bandwidth] *= share
        sample.gauges[latency] *= 1.5

    plant("switch", "shared-step", behind_switch, bandwidth, _from(start, set(behind_switch), switch))

    def counting(name: str, start: int, chance_of: float, most: int) -> Callable[[Sample, int], None]:
        draw = random.Random(seed + start)

        def change(sample: Sample, since: int) -> None:
            if draw.random() < chance_of:
                sample.grown[name] += draw.randint(most // 4, most)

        return change

    start = chance.randint(10, nights - 30)
    errors = counting("gpu_ecc_corrected", start, 0.6, 40)
    plant("memory errors", "counter", alone[7:8], "gpu_ecc_corrected", _from(start, {alone[7]}, errors))
    start = chance.randint(10, nights - 30)
    flaps = counting(CARRIER.name, start, 0.5, 12)
    plant("link flaps", "counter", alone[8:9], CARRIER.name, _from(start, {alone[8]}, flaps))
    limit = node_values.CLOCK_LIMIT.name
    plant("capped", "outlier", alone[9:], limit, _from(0, {alone[9]}, scaled(limit, chance.uniform(0.6, 0.85))))
    return tuple(found)


def missed_and_false(planted: tuple[Planted, ...], account: Account) -> tuple[list[str], list[NodeStory]]:
    """The planted stories that are not told, and those told that are not planted."""
    missed = [item.name for item in planted if not any(item.is_told_by(story) for story in account.stories)]
    false = [story for story in account.stories if not any(item.is_told_by(story) for item in planted)]
    return missed, false
