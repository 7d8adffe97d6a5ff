"""Nodes that fail again and again, nodes that no longer pass, and how long each has been healthy.

A fault that more than a tenth of the nodes share in a run is not a failure of any of them. What is left is counted in
stretches: a node that fails in three runs in a row failed once. A node fails again and again if so many stretches have
a chance below one in a hundred for the whole fleet, at the rate at which the other nodes fail (binomial).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from preflight.commands.history.past import Failure, Past
from preflight.commands.history.robust import tail
from preflight.commands.history.stories import Story, listed, overlap

#: The chance of one wrong story in the whole fleet.
DOUBT = 0.01
#: Fewer stretches of failure, and fewer runs in a row, are never a story.
MIN_STRETCHES, MIN_DOWN = 3, 3
#: A fault of more than this share of the nodes of a run has a cause outside each of them.
SHARED = 0.1
#: A node that fails again and again does so this many times as often as the others.
FACTOR = 4.0
_ALIKE = 0.7


@dataclass(frozen=True, slots=True)
class Health:
    """How a node fared.

    Args:
        node: its name.
        state: in the newest run that examined it.
        runs: the number of runs that examined it.
        failures: stretches of runs in which it failed by itself.
        failed_in: the numbers of these runs.
        healthy_since: the first run of the passing ones that lead to the newest; null if it does not pass now.
        mean_time_between_failures_s: the time it was observed, without its failures, for each stretch; null with fewer
            than two.
    """

    node: str
    state: str
    runs: int
    failures: int
    failed_in: tuple[int, ...]
    healthy_since: int | None
    mean_time_between_failures_s: float | None


def own_failures(past: Past) -> dict[str, list[Failure]]:
    """The failures of each node that the others of the run do not share."""
    present = [0] * len(past.runs)
    for states in past.states.values():
        for run, state in enumerate(states):
            present[run] += state is not None
    together = Counter((item.run, item.rule) for item in {(f.run, f.rule, f.node): f for f in past.failures}.values())
    found: dict[str, list[Failure]] = {}
    for item in past.failures:
        if together[item.run, item.rule] <= max(1.0, SHARED * present[item.run]):
            found.setdefault(item.node, []).append(item)
    return found


def health_of(past: Past, own: Mapping[str, Sequence[Failure]]) -> dict[str, Health]:
    """How every node fared, by name."""
    found = {}
    for node, states in past.states.items():
        examined = [run for run, state in enumerate(states) if state is not None]
        failed = {item.run for item in own.get(node, ())}
        stretches, before = 0, False
        for run in examined:
            # A run that could not tell neither ends nor begins a stretch.
            if states[run] == "unknown":
                continue
            stretches += run in failed and not before
            before = run in failed
        since = None
        for run in reversed(examined):
            if states[run] != "passing":
                break
            since = run
        found[node] = Health(
            node,
            states[examined[-1]] or "",
            len(examined),
            stretches,
            tuple(sorted(failed)),
            since,
            _between(past, examined, failed, stretches),
        )
    return found


def _between(past: Past, examined: Sequence[int], failed: set[int], stretches: int) -> float | None:
    if stretches < 2:
        return None
    observed = past.runs[examined[-1]].began - past.runs[examined[0]].began
    return observed * (len(examined) - len(failed)) / len(examined) / stretches


def failing_nodes(past: Past, own: Mapping[str, Sequence[Failure]], health: Mapping[str, Health]) -> Iterator[Story]:
    """The stories of nodes that fail again and again, and of those that fail in every run since some time."""
    down = {node: runs for node in past.nodes if len(runs := _down(past, health[node])) >= MIN_DOWN}
    others = [item for node, item in health.items() if node not in down]
    rate = (sum(len(item.failed_in) for item in others) + 1) / (sum(item.runs for item in others) + 1)
    down = {node: runs for node, runs in down.items() if rate ** len(runs) * len(health) < DOUBT}
    again = _again(health)
    for nodes in _alike({node: health[node].failed_in for node in again}):
        last = max(health[nodes[0]].failed_in)
        item = health[nodes[0]]
        reasons = Counter(
            failure.name or failure.rule or "no answer"
            for failure in {(f.run, f.rule): f for f in own[nodes[0]]}.values()
        )
        why = listed([f"{name} ({count})" for name, count in sorted(reasons.items(), key=lambda r: (-r[1], r[0]))[:3]])
        text = f"failed in {item.failures} separate stretches of {item.runs} runs: {why}"
        if len(nodes) > 1:
            text = f"fail in the same runs, in {item.failures} separate stretches of {item.runs}: {why}"
        yield Story("fails-again", nodes, (), last, None, text)
    for runs in sorted(set(down.values())):
        nodes = tuple(node for node in sorted(down) if down[node] == runs)
        last_of = {node: max(own[node], key=lambda item: item.run) for node in nodes}
        for message in sorted({item.name or item.message for item in last_of.values()}):
            some = tuple(node for node in nodes if (last_of[node].name or last_of[node].message) == message)
            seen = f"in each of the last {len(runs)} runs that examined {'it' if len(some) == 1 else 'them'}: {message}"
            yield Story("down", some, (), runs[0], None, f"failed {seen}")


def _down(past: Past, health: Health) -> tuple[int, ...]:
    """The runs up to the newest in which a node failed by itself, without one in which it passed."""
    found: list[int] = []
    failed = set(health.failed_in)
    for run in reversed(range(len(past.runs))):
        state = past.states[health.node][run]
        if state is None or state == "unknown":
            continue
        if run not in failed:
            break
        found.append(run)
    return tuple(reversed(found))


def _again(health: Mapping[str, Health]) -> list[str]:
    """The nodes that fail more often than chance allows; the rate of the others is that of nodes not found so far."""
    found: set[str] = set()
    for _ in range(4):
        others = [item for node, item in health.items() if node not in found]
        runs = sum(item.runs for item in others)
        # At least one failure is assumed, so that the first failure of a perfect fleet is no proof.
        rate = (sum(item.failures for item in others) + 1) / (runs + 1)
        before = set(found)
        for node, item in health.items():
            if item.failures < max(MIN_STRETCHES, FACTOR * rate * item.runs):
                continue
            if tail(item.failures, item.runs, rate) * len(health) < DOUBT:
                found.add(node)
        if found == before:
            break
    return sorted(found)


def _alike(runs_of: Mapping[str, Sequence[int]]) -> Iterator[tuple[str, ...]]:
    """Groups of nodes that fail in the same runs."""
    left = dict(runs_of)
    while left:
        first = next(iter(left))
        same = tuple(node for node, runs in left.items() if overlap(left[first], runs) >= _ALIKE)
        for node in same:
            del left[node]
        yield same
