"""The link stage over fake sessions: listeners, measurements in turns, and the deadline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, cast

import anyio

from preflight.agent.wire import AgentRequest, Done, Event, Failed
from preflight.model.recording import Unavailable
from preflight.model.requests import Request
from preflight.runner.fleet import OpenFleet
from preflight.runner.observer import END_SHARE, Observer
from preflight.runner.preparation import ContextChoice

NAMES = ("a", "b", "c", "d")


class Session:
    """A node that answers by `answer`, and listens until it is cancelled."""

    def __init__(self, name: str, fleet: Fleet) -> None:
        self.name, self.fleet = name, fleet

    async def run(self, ask: AgentRequest, on_event: Callable[[Event], None] | None = None) -> Done | Failed:
        self.fleet.asked.append((self.name, ask))
        if ask.target == "m:listen":
            if self.name in self.fleet.deaf:
                return Failed(0, "denied", "it may not listen")
            if self.name not in self.fleet.slow:
                assert on_event is not None
                on_event(Event(0, 0.0, "child", {"listening": {"at": self.name}}))
                on_event(Event(0, 0.1, "child", {"heard": "somebody"}))
            try:
                await anyio.sleep_forever()
            finally:
                self.fleet.ended.append(self.name)
        if self.name in self.fleet.frozen:
            # Its agent was stopped: it neither answers nor observes the deadline.
            await anyio.sleep_forever()
        peers = tuple(ask.params.get("listening", ()))
        here = {self.name, *peers}
        assert ask.target != "m:measure" or not here & self.fleet.busy, "a node takes part in two measurements"
        if ask.target == "m:measure":
            self.fleet.busy |= here
        with anyio.move_on_after(ask.deadline_s):
            await anyio.sleep(self.fleet.takes_s)
            self.fleet.busy -= here
            return Done(0, {"peers": peers, "unheard": ask.params.get("unheard")})
        self.fleet.busy -= here
        return Failed(0, "timeout", "no answer")


class Fleet:
    """The part of a fleet that `Observer` uses."""

    def __init__(
        self,
        *,
        takes_s: float = 0.0,
        deaf: Sequence[str] = (),
        slow: Sequence[str] = (),
        frozen: Sequence[str] = (),
        names: Sequence[str] = NAMES,
    ) -> None:
        self.takes_s, self.deaf, self.slow, self.frozen = takes_s, deaf, slow, frozen
        self.asked: list[tuple[str, AgentRequest]] = []
        self.ended: list[str] = []
        self.busy: set[str] = set()
        self.sessions = {name: Session(name, self) for name in names}


LISTEN = [Request("m:listen", name) for name in NAMES]
DIAL = [Request("m:dial", name, peers=tuple(set(NAMES) - {name}), listen="m:listen") for name in NAMES]
PAIRS = [("a", "b"), ("a", "c"), ("a", "d"), ("b", "c"), ("b", "d"), ("c", "d")]
MEASURE = [Request("m:measure", a, peers=(b,), listen="m:listen", exclusive=True) for a, b in PAIRS]


def observe(
    fleet: Fleet, requests: Sequence[Request], *more: Sequence[Request], deadline_s: float = 10.0
) -> tuple[Observer, float]:
    """The observations, and how long they took."""

    async def main() -> tuple[Observer, float]:
        began = anyio.current_time()
        context = ContextChoice(None, "", "none")
        observer = Observer(cast(OpenFleet, fleet), context, lambda: anyio.current_time() - began, lambda step: None)
        waves = iter(more)

        async def follow_up() -> Sequence[Request]:
            return next(waves, ())

        with anyio.fail_after(20):
            await observer.links(requests, follow_up, deadline_s=deadline_s)
        return observer, anyio.current_time() - began

    return anyio.run(main)


def values(observer: Observer, probe: str) -> dict[str, Any]:
    return {record.request.node: record.value for record in observer.facts if record.request.probe == probe}


def test_all_nodes_dial_while_all_listen_and_reports_are_kept() -> None:
    fleet = Fleet()
    observer, _ = observe(fleet, [*LISTEN, *DIAL])
    assert {node: sorted(value["peers"]) for node, value in values(observer, "m:dial").items()} == {
        name: sorted(set(NAMES) - {name}) for name in NAMES
    }
    assert values(observer, "m:listen") == {name: {"at": name} for name in NAMES}
    assert [event.data for event in observer.events] == [{"heard": "somebody"}] * 4
    assert sorted(fleet.ended) == list(NAMES)


def test_listeners_are_started_once_for_all_waves() -> None:
    fleet = Fleet()
    observer, _ = observe(fleet, [*LISTEN, *DIAL], MEASURE)
    assert sum(ask.target == "m:listen" for _, ask in fleet.asked) == 4
    assert sum(record.request.probe == "m:measure" and record.value is not None for record in observer.facts) == 6


def test_measurements_take_turns() -> None:
    _, took_s = observe(Fleet(takes_s=0.1), [*LISTEN, *MEASURE])
    assert took_s >= 0.3


def test_dialling_nodes_learn_which_peers_cannot_listen() -> None:
    observer, _ = observe(Fleet(deaf=("b",)), [*LISTEN, *DIAL])
    assert values(observer, "m:dial")["a"]["unheard"] == {"b": "it may not listen"}
    (record,) = [r for r in observer.facts if r.request.probe == "m:listen" and r.unavailable is not None]
    assert record.request.node == "b"
    alone, _ = observe(Fleet(deaf=("b",)), [*LISTEN, MEASURE[0]])
    (blocked,) = [r.unavailable for r in alone.facts if r.request.probe == "m:measure"]
    assert blocked == Unavailable("blocked", "b could not listen: it may not listen")


def test_no_node_listens_without_a_request() -> None:
    observer, _ = observe(Fleet(), [*LISTEN[:1], DIAL[0]])
    (record,) = [r for r in observer.facts if r.request.probe == "m:dial"]
    assert record.unavailable is not None and "it was not requested to listen" in record.unavailable.reason


def test_the_deadline_holds_and_untried_requests_are_recorded() -> None:
    observer, _ = observe(Fleet(takes_s=30.0), [*LISTEN, *MEASURE], deadline_s=1.5)
    reasons = [r.unavailable.reason for r in observer.facts if r.unavailable is not None]
    assert len(reasons) == 6
    assert "the link stage ended before it was tried" in reasons


def test_running_requests_end_shortly_before_the_deadline() -> None:
    fleet = Fleet(takes_s=30.0)
    observe(fleet, [*LISTEN, *MEASURE], deadline_s=2.0)
    (first, *_) = (ask for _, ask in fleet.asked if ask.target == "m:measure")
    assert first.deadline_s <= 2.0 * (1 - END_SHARE)


def test_sixty_four_nodes_with_frozen_agents_keep_the_deadline() -> None:
    names = [f"node{index}" for index in range(64)]
    fleet = Fleet(frozen=names[:60], names=names)
    listen = [Request("m:listen", name) for name in names]
    dial = [Request("m:dial", name, peers=tuple({*names} - {name}), listen="m:listen") for name in names]
    measure = [Request("m:measure", a, peers=(b,), listen="m:listen", exclusive=True) for a, b in pairwise(names)]
    observer, _ = observe(fleet, [*listen, *dial], measure, deadline_s=1.5)
    # Without a deadline of the stage it would never end.
    answered = {record.request.node for record in observer.facts if record.request.probe == "m:dial" and record.value}
    assert answered == {*names[60:]}
    late = [record for record in observer.facts if record.request.probe == "m:dial" and record.unavailable is not None]
    assert {record.request.node for record in late} == {*names[:60]}
    assert all("before the link stage ended" in record.unavailable.reason for record in late if record.unavailable)
