"""A simulated fleet: nights of healthy noise, and stories planted in it, as the reports that `preflight nodes` makes.

Healthy nodes differ from each other, whole nights are slower than others, the room gets warmer over a season, nodes
fail once for reasons that pass, counters grow everywhere by a little and in rare bursts, some nodes restart, some are
missing in some nights, and a driver arrives that changes nothing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone

from preflight.commands.history import stories
from preflight.commands.history.account import Account
from preflight.engine.report import Report
from preflight.model.findings import Confidence, Evidence, Finding, Severity
from preflight.model.measurements import Measurements, NodeProperties, Quantity
from preflight.model.recording import Node, NodeRecord, StageRecord
from preflight_checks.charts.node_tables import QUANTITIES
from tests.builders import judged, make_recording

FIRST = datetime(2026, 6, 1, 3, 0, tzinfo=timezone.utc)
COUNTERS = {name: QUANTITIES[name] for name in ("gpu_ecc_corrected", "gpu_pcie_replays")}
CARRIER = Quantity("nic_carrier_changes", "carrier changes of the interface in use", kind="counter")
GAUGES = (
    QUANTITIES["gpu_temperature"],
    QUANTITIES["clock_offset"],
    QUANTITIES["gpu_clock_limit"],
    QUANTITIES["node_bandwidth"],
    QUANTITIES["node_latency"],
    QUANTITIES["rank_pace"],
)


@dataclass
class Sample:
    """One node in one night, as a story may change it. `failing` maps a check's id to its message."""

    gauges: dict[str, float]
    grown: dict[str, int]
    properties: dict[str, str]
    failing: dict[str, str] = field(default_factory=dict)
    problem: str = ""
    restarted: bool = False
    missing: bool = False


Story = Callable[[int, int, Sample], None]


@dataclass(frozen=True)
class Fleet:
    """A fleet and what happens to it. A story changes the sample of a night and the index of a node."""

    size: int = 500
    nights: int = 90
    seed: int = 1
    stories: tuple[Story, ...] = ()
    fails: float = 0.006

    @property
    def names(self) -> tuple[str, ...]:
        """The nodes in order."""
        return tuple(f"node{number:03d}" for number in range(1, self.size + 1))

    def reports(self) -> Iterator[Report]:
        """One report for each night."""
        chance = random.Random(self.seed)
        base = judged(make_recording(verb="nodes"))
        level = [self._levels(chance, index) for index in range(self.size)]
        counts = [dict.fromkeys((*COUNTERS, CARRIER.name), 0) for _ in range(self.size)]
        for night in range(self.nights):
            weather = {
                "gpu_temperature": 5 * night / 90 + chance.gauss(0, 1),
                "node_bandwidth": -abs(chance.gauss(0, 0.02)),
                "node_latency": abs(chance.gauss(0, 0.03)),
                "rank_pace": chance.gauss(0, 0.004),
            }
            samples = []
            for index in range(self.size):
                sample = self._healthy(chance, night, index, level[index], weather)
                for story in self.stories:
                    story(night, index, sample)
                samples.append(sample)
            yield self._report(base, night, samples, counts)

    def model(self, index: int) -> str:
        """Two models: the first 60 % of the nodes, and the rest."""
        return "NVIDIA H100 80GB HBM3" if index < 0.6 * self.size else "NVIDIA A100-SXM4-80GB"

    def _levels(self, chance: random.Random, index: int) -> dict[str, float]:
        fast = index < 0.6 * self.size
        return {
            "gpu_temperature": chance.gauss(46, 3),
            "gpu_clock_limit": 1.98e9 if fast else 1.41e9,
            "node_bandwidth": (9.2e9 if fast else 8.1e9) * math.exp(chance.gauss(0, 0.02)),
            "node_latency": 45e-6 * math.exp(chance.gauss(0, 0.1)),
            "rank_pace": (0.010 if fast else 0.021) * math.exp(chance.gauss(0, 0.01)),
            # Older cables and cards err more often, all their life.
            "errs": chance.expovariate(1.0),
        }

    def _healthy(
        self, chance: random.Random, night: int, index: int, level: dict[str, float], weather: dict[str, float]
    ) -> Sample:
        gauges = {
            "gpu_temperature": round(level["gpu_temperature"] + weather["gpu_temperature"] + chance.gauss(0, 1.5)),
            "clock_offset": abs(chance.gauss(0, 0.002)) + (0.3 if chance.random() < 0.002 else 0),
            "gpu_clock_limit": level["gpu_clock_limit"],
        }
        for quantity, sigma in (
            (QUANTITIES["node_bandwidth"], 0.03),
            (QUANTITIES["node_latency"], 0.08),
            (QUANTITIES["rank_pace"], 0.01),
        ):
            noise = chance.gauss(0, sigma)
            if chance.random() < 0.01:
                noise += 0.4 * chance.random() * (-1 if quantity.better == "higher" else 1)
            gauges[quantity.name] = level[quantity.name] * math.exp(noise + weather[quantity.name])
        grown = {
            "gpu_ecc_corrected": (chance.random() < 0.01 * level["errs"] and chance.randint(1, 3)) or 0,
            "gpu_pcie_replays": _poisson(chance, 0.3 * level["errs"]),
            CARRIER.name: 1 if chance.random() < 0.01 else 0,
        }
        if chance.random() < 0.0005:
            grown["gpu_ecc_corrected"] += chance.randint(100, 5000)
        sample = Sample(
            gauges,
            grown,
            {
                "driver": "550.54.15" if night < 30 else "550.90.07",
                "kernel": "5.15.0-105",
                "gpu": self.model(index),
                "gpus": "8",
                "os": "ubuntu 22.04",
            },
            restarted=chance.random() < 0.01,
            missing=chance.random() < 0.01,
        )
        if chance.random() < self.fails:
            rule, words = chance.choice(
                (("SYS002", "tasks wait"), ("DSK001", "/tmp is full"), ("GPU004", "GPU is used"))
            )
            sample.failing[rule] = words
        if night == 50:
            # The shared file system was away for everybody.
            sample.failing["DAT001"] = "the data folder does not answer"
        return sample

    def _report(self, base: Report, night: int, samples: list[Sample], counts: list[dict[str, int]]) -> Report:
        created = FIRST + timedelta(days=night)
        records, failing = [], {}  # type: ignore[var-annotated]
        gauges: dict[str, dict[str, float]] = {quantity.name: {} for quantity in GAUGES}
        counters: dict[str, dict[str, float]] = {name: {} for name in (*COUNTERS, CARRIER.name)}
        properties = []
        for index, (name, sample) in enumerate(zip(self.names, samples, strict=True)):
            for counter, grown in sample.grown.items():
                counts[index][counter] = (0 if sample.restarted else counts[index][counter]) + grown
            if sample.missing:
                continue
            records.append(
                NodeRecord(
                    Node(name, len(records), name),
                    sample.problem,
                    "timeout" if sample.problem else "",
                    round_trip_s=0.01 + index * 1e-6 + night * 1e-7 + self.seed * 1e-9,
                )
            )
            if sample.problem:
                continue
            for rule, words in sample.failing.items():
                failing.setdefault((rule, words), []).append(name)
            for quantity in gauges:
                gauges[quantity][name] = sample.gauges[quantity]
            for counter in counters:
                counters[counter][name] = counts[index][counter]
            names = tuple(sorted(sample.properties))
            properties.append(NodeProperties(name, names, tuple(sample.properties[key] for key in names)))
        findings = tuple(
            Finding(
                rule,
                f"name-{rule.lower()}",
                Severity.ERROR,
                Confidence.HIGH,
                words,
                words,
                evidence=(Evidence("probe", "seen"),),
                nodes=tuple(names),
            )
            for (rule, words), names in sorted(failing.items())
        )
        quantities = {quantity.name: quantity for quantity in (*GAUGES, *COUNTERS.values(), CARRIER)}
        return replace(
            base,
            run=replace(
                base.run,
                verb="nodes",
                created=created.isoformat(),
                stages=(StageRecord("node", 0.0, 1.0 + night), StageRecord("link", 1.0, 2.0)),
            ),
            nodes=tuple(records),
            findings=findings,
            measurements=tuple(
                Measurements(quantities[name], tuple(values), tuple(map(float, values.values())))
                for name, values in {**gauges, **counters}.items()
            ),
            properties=tuple(properties),
        )


def _poisson(chance: random.Random, mean: float) -> int:
    limit, count, product = math.exp(-mean), 0, chance.random()
    while product > limit:
        count, product = count + 1, product * chance.random()
    return count


# Twelve stories to plant in a fleet, at nodes, nights and sizes drawn from a seed; and what must be told of each.


@dataclass(frozen=True)
class Planted:
    """A story, and what is expected of it: its kind, its nodes, and one of the quantities that it names."""

    name: str
    kind: str
    nodes: tuple[str, ...]
    quantity: str
    story: Story

    def is_told_by(self, told: stories.Story) -> bool:
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
    bandwidth, latency, pace = "node_bandwidth", "node_latency", "rank_pace"
    change = scaled(bandwidth, chance.uniform(0.65, 0.78), nights - start)
    plant("slow drift", "drift", alone[4:5], bandwidth, _from(start, {alone[4]}, change))

    start, by = chance.randint(15, 40), chance.uniform(14, 20)

    def warmer(sample: Sample, since: int) -> None:
        sample.gauges["gpu_temperature"] += by * min(1.0, since / (nights - start))

    plant("dust", "drift", alone[5:6], "gpu_temperature", _from(start, {alone[5]}, warmer))
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
    limit = "gpu_clock_limit"
    plant("capped", "outlier", alone[9:], limit, _from(0, {alone[9]}, scaled(limit, chance.uniform(0.6, 0.85))))
    return tuple(found)


def missed_and_false(planted: tuple[Planted, ...], account: Account) -> tuple[list[str], list[stories.Story]]:
    """The planted stories that are not told, and those told that are not planted."""
    missed = [item.name for item in planted if not any(item.is_told_by(story) for story in account.stories)]
    false = [story for story in account.stories if not any(item.is_told_by(story) for item in planted)]
    return missed, false
