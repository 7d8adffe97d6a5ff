"""The account of a fleet: its nodes, the stories of its runs, and what changed when, in one versioned document."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from preflight._util.json_output import schema_of, to_bytes
from preflight._util.sequences import grouped
from preflight._util.validation import type_adapter
from preflight.commands.history.drifts import drift_stories
from preflight.commands.history.past import Past, changes_of, peers_of
from preflight.commands.history.stories import Kind, Story, failing_nodes, growing_counters, health_of, own_failures

SCHEMA_VERSION = 1
#: Lists of which each item is one line of JSON.
BULK = ("nodes", "changes")
#: What the stories rest on, for readers of the document.
METHOD = (
    "each node against the median of its peers (equal GPUs, else equal processors) in the same run; a change is "
    "reported beyond 6 deviations (1.4826 MAD) of the peers' changes and 6 times its own uncertainty; slopes by Theil "
    "and Sen; failures and counters by a binomial chance below 1 % for the whole fleet"
)


@dataclass(frozen=True, slots=True)
class NodeAccount:
    """How a node fared.

    Args:
        node: its name.
        state: in the newest run that examined it: `passing`, `failing` or `unknown`.
        runs: the number of runs that examined it.
        failures: stretches of runs in which it failed by itself.
        healthy_since: the time of the first of the passing runs that lead to the newest; null if it does not pass now.
        last_failure: the time of its last failure; null without one.
        mean_days_between_failures: null with fewer than two failures.
        properties: what it consists of, as last seen.
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
class NodeStory:
    """What happened to some nodes.

    Args:
        kind: `fails-again`, `down`, `drift`, `step`, `outlier`, `shared-step`, `after-change`, `all-nodes` or
            `counter`.
        nodes: whom it is about.
        quantities: what got worse; empty for failures.
        since: the time of the run that it began in; for `fails-again`, of the last failure.
        change: of the first quantity, as a share of its value or in its unit; null for failures.
        message: the story in one sentence.
        forecast: what follows if it continues; empty where the data do not carry that.
    """

    kind: Kind
    nodes: tuple[str, ...]
    quantities: tuple[str, ...]
    since: str
    change: float | None
    message: str
    forecast: str


@dataclass(frozen=True, slots=True)
class PropertyChange:
    """A property that changed on some nodes in the same run.

    Args:
        at: the time of the first run with the new value.
        name: of the property: `driver`, `kernel` and the like.
        before, after: its values.
        nodes: whom it is about.
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
        database: where it was read from, without a password.
        first, last: the times of the first and the newest run; empty without runs.
        runs: their number.
        stories: those with most nodes first within each kind.
        changes: in the order of time.
        nodes: by name.
        method: what the stories rest on.
    """

    database: str
    first: str
    last: str
    runs: int
    stories: tuple[NodeStory, ...]
    changes: tuple[PropertyChange, ...]
    nodes: tuple[NodeAccount, ...]
    method: str = METHOD
    schema_version: int = SCHEMA_VERSION

    @property
    def blamed(self) -> tuple[str, ...]:
        """The nodes to leave out of a job: those that a story is about, and no other node shares it."""
        own = {node for story in self.stories if story.kind in _OF_ONE for node in story.nodes}
        return tuple(item.node for item in self.nodes if item.node in own)


#: Kinds of stories that are about a node by itself.
_OF_ONE = ("down", "fails-again", "drift", "step", "counter", "outlier")
_ORDER: tuple[Kind, ...] = (
    *("down", "fails-again", "after-change", "all-nodes", "shared-step", "step", "drift", "counter", "outlier"),
)


def account_of(past: Past, database: str) -> Account:
    """What these runs show together."""
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
    last_set = {
        node: next((number for number in reversed(sets) if number is not None), None)
        for node, sets in past.sets.items()
    }
    days = 86_400
    nodes = tuple(
        NodeAccount(
            item.node,
            item.state,
            item.runs,
            item.failures,
            None if item.healthy_since is None else time_of(past, item.healthy_since),
            time_of(past, item.failed_in[-1]) if item.failed_in else None,
            None if item.mean_time_between_failures_s is None else round(item.mean_time_between_failures_s / days, 1),
            past.properties.get(last_set[item.node] or 0, {}),
        )
        for item in health.values()
    )
    together = grouped(((change.run, change.name, change.before, change.after), change.node) for change in changes)
    return Account(
        database=database,
        first=time_of(past, 0) if past.runs else "",
        last=time_of(past, -1) if past.runs else "",
        runs=len(past.runs),
        stories=tuple(_told(past, story) for story in stories),
        changes=tuple(
            PropertyChange(time_of(past, run), name, before, after, tuple(nodes_of))
            for (run, name, before, after), nodes_of in sorted(together.items())
        ),
        nodes=nodes,
    )


def concerning(account: Account, names: Collection[str]) -> Account:
    """The part of an account that concerns these nodes. Their peers are judged all the same."""
    return replace(
        account,
        stories=tuple(story for story in account.stories if any(node in names for node in story.nodes)),
        changes=tuple(item for item in account.changes if any(node in names for node in item.nodes)),
        nodes=tuple(item for item in account.nodes if item.node in names),
    )


def _told(past: Past, story: Story) -> NodeStory:
    change = None if story.change is None else float(f"{story.change:.4g}")
    return NodeStory(
        story.kind, story.nodes, story.quantities, time_of(past, story.since), change, story.message, story.forecast
    )


def time_of(past: Past, run: int) -> str:
    """The time of a run, ISO 8601 in UTC."""
    return datetime.fromtimestamp(past.runs[run].began, timezone.utc).isoformat(timespec="seconds")


def to_json(account: Account) -> bytes:
    """The account as JSON, indented; each node is one line."""
    return to_bytes(account, indent=2, bulk=BULK)


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of the output of `to_json`."""
    return schema_of(type_adapter(Account), "preflight history")
