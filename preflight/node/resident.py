"""Requests in the job context: one process stays there, and forks for each of them.

To enter a context may take seconds: set-up lines, a container, an interpreter on a network file system. So it is
entered once. Whoever stays there (`preflight.node.inside`) is an agent itself, with a child, a deadline and a
post-mortem for each request; here is how the agent outside sees it.
"""

from __future__ import annotations

import time

from preflight.node import bootstrap, process
from preflight.node.running import Running, command_of
from preflight.node.wire import Ask, Beat, Cancel, Done, Event, Failed, Ready, Signal, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

#: So much later than the one inside, which knows what it waited for, its answer is given here.
BACKSTOP_S = 2.0
#: A context that could not be entered is not tried again for so long: each try may take seconds.
RETRY_S = 10.0
_FOREVER = float("inf")


class Guest:
    """One request below a resident. `handed` once it was told to start it."""

    def __init__(self, ask: Ask, now_s: float) -> None:
        self.ask = ask
        self.handed = False
        self._asked_s = now_s

    @property
    def due_s(self) -> float:
        """When it is answered here, if it was not from inside."""
        allowed = self.ask.start_s + self.ask.deadline_s
        return self._asked_s + allowed + (BACKSTOP_S if self.handed else 0.0)

    def hand_over(self, now_s: float) -> Ask:
        """The request as whoever is in the context gets it: entering took some of its time."""
        self.handed = True
        ask = self.ask
        spent = max(0.0, now_s - self._asked_s - ask.start_s)
        return Ask(ask.id, ask.target, ask.params, ask.deadline_s, spent_s=spent, together=ask.together)


class Resident(Running):
    """The process in one context, and the requests below it."""

    def __init__(self, ask: Ask, pid: int, now_s: float) -> None:
        super().__init__(ask, pid, now_s)
        # Nobody asked for it: it has no deadline, and only its guests are answered.
        self.answered = True
        self.guests: Dict[int, Guest] = {}

    def first_words(self, bundle: bytes) -> bytes:
        """What its loader is sent."""
        return bootstrap.first_words(bundle, "preflight.node.inside:main", {})

    def waiting_for_it(self, guest: Guest) -> str:
        """What a request that was not answered from inside waited for."""
        command = " ".join(command_of(self.ask.context)) if self.ask.context is not None else ""
        if not self.started:
            return "the job context to start (`%s`)" % command
        stat = process.stat_of(self.seen_pid())
        state = {"D": ", which is stuck in the kernel (state D)", "T": ", which is stopped", "t": ", which is stopped"}
        return "%s below the process in the job context (`%s`)%s" % (
            guest.ask.target,
            command,
            state.get(stat.state, "") if stat is not None else "",
        )

    def epitaph(self, guest: Guest, code: int) -> Failed:
        """Why a request has no answer, now that the process above it has ended with `code`."""
        if not self.started:
            why = self.post_mortem(code)
            return Failed(guest.ask.id, why.kind, why.reason, why.detail, why.exit_code)
        reason = "%s: the process in the job context that runs it %s" % (guest.ask.target, process.ending(code))
        return Failed(guest.ask.id, "crashed", reason, self.error_text(), code)


class Lodgings:
    """All residents of an agent by context.

    `enter` starts one, `send` speaks to the head, `feed` writes what a resident is to be told.
    """

    def __init__(
        self,
        enter: Callable[[Ask], Resident],
        send: Callable[[Any], None],
        feed: Callable[[Running], None],
    ) -> None:
        self._enter = enter
        self._send = send
        self._feed = feed
        self._residents: Dict[str, Resident] = {}
        #: Why a context could not be entered, and until when that is believed.
        self._closed: Dict[str, Tuple[float, Failed]] = {}

    def take(self, ask: Ask, now_s: float) -> None:
        """Run a request in its context. Raises OSError when the node is out of processes or descriptors."""
        assert ask.context is not None
        key = repr(ask.context)
        until, why = self._closed.get(key, (0.0, None))
        if why is not None and now_s < until:
            self._send(Failed(ask.id, why.kind, why.reason, why.detail, why.exit_code))
            return
        resident = self._residents.get(key)
        if resident is None:
            resident = self._enter(Ask(0, "the job context", {}, _FOREVER, ask.context))
            self._residents[key] = resident
        guest = resident.guests[ask.id] = Guest(ask, now_s)
        if resident.started:
            self._hand_over(resident, guest, now_s)
            self._feed(resident)

    def begun(self, resident: Resident, now_s: float) -> None:
        """Its Python has spoken: hand over what waits; the caller feeds it."""
        for guest in resident.guests.values():
            self._hand_over(resident, guest, now_s)

    def heard(self, resident: Resident, message: Any) -> None:
        """Relay what came from inside."""
        if isinstance(message, Ready):
            resident.inner_pid = message.pid
        elif isinstance(message, (Done, Failed)):
            if resident.guests.pop(message.id, None) is not None:
                self._send(message)
        elif isinstance(message, Event) and message.id in resident.guests:
            self._send(message)

    def cancel(self, ask_id: int) -> None:
        """Have the child of a request killed; nothing happens when there is none."""
        resident = self._host_of(ask_id)
        if resident is not None:
            guest = resident.guests.pop(ask_id)
            self._send(Failed(ask_id, "cancelled", "it was cancelled"))
            if guest.handed:
                self._tell(resident, Cancel(ask_id))

    def dump(self, ask_id: int) -> None:
        """Have the child of a request say where its threads are."""
        resident = self._host_of(ask_id)
        if resident is not None and resident.guests[ask_id].handed:
            self._tell(resident, Signal(ask_id))

    def beat(self) -> None:
        """Tell all residents that the agent is still here."""
        for resident in self._residents.values():
            if resident.started:
                self._tell(resident, Beat(time.time()))

    def moments(self) -> List[float]:
        """When `mind` has something to do."""
        return [guest.due_s for resident in self._residents.values() for guest in resident.guests.values()]

    def mind(self, now_s: float) -> None:
        """Answer what was not answered from inside, and take leave of a resident that is stuck."""
        for key, resident in list(self._residents.items()):
            late = [guest for guest in resident.guests.values() if now_s >= guest.due_s]
            for guest in late:
                del resident.guests[guest.ask.id]
                allowed = guest.ask.start_s + guest.ask.deadline_s
                reason = "no answer within %.3g s, waiting for %s" % (allowed, resident.waiting_for_it(guest))
                self._send(Failed(guest.ask.id, "timeout", reason, resident.error_text()))
            # One that is merely slow to start is waited for by whoever asks next.
            if any(guest.handed for guest in late):
                resident.kill_at_s = 0.0
                del self._residents[key]

    def ended(self, resident: Resident, code: int, now_s: float) -> None:
        """Answer what ran below a resident that is no more."""
        for guest in resident.guests.values():
            self._send(resident.epitaph(guest, code))
        resident.guests.clear()
        key = repr(resident.ask.context)
        if self._residents.get(key) is resident:
            del self._residents[key]
            if not resident.started:
                self._closed[key] = (now_s + RETRY_S, resident.post_mortem(code))

    def _host_of(self, ask_id: int) -> Optional[Resident]:
        for resident in self._residents.values():
            if ask_id in resident.guests:
                return resident
        return None

    def _hand_over(self, resident: Resident, guest: Guest, now_s: float) -> None:
        resident.to_feed += encode(guest.hand_over(now_s))

    def _tell(self, resident: Resident, message: Any) -> None:
        resident.to_feed += encode(message)
        self._feed(resident)
