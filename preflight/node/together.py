"""Cheap requests of one kind, answered one after another by one child instead of each by a fork of its own.

A process costs more than reading a few files below /proc. What takes long or dies in such a child only costs the others
time: whoever has no answer by then is asked again, each in a child of its own and with all of its deadline.
"""

from __future__ import annotations

from preflight.node import process
from preflight.node.running import Running
from preflight.node.wire import Ask, Done, Failed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List

#: So long may a child that answers several take for the next of its answers.
PATIENCE_S = 1.0


class Together(Running):
    """A child that answers several requests. What it answers is kept until all are, and then sent at once."""

    def __init__(self, ask: Ask, pid: int, now_s: float) -> None:
        super().__init__(ask, pid, now_s)
        self.asks: Dict[int, Ask] = {}
        self.kept: List[Any] = []
        self._began_s = now_s

    def is_starved(self, now_s: float) -> bool:
        """Whether it is late only because it gets no processor; it is given more time then, but not without end."""
        stat = process.stat_of(self.pid)
        ends_s = self._began_s + min(ask.deadline_s for ask in self.asks.values())
        if stat is None or stat.state != "R" or now_s > ends_s:
            return False
        self.deadline_at_s = now_s + PATIENCE_S / 2
        return True


class Company:
    """All such children of an agent.

    `begin` starts one for several requests, `alone` a child for a single one; `send` speaks to the head.
    """

    def __init__(
        self,
        begin: Callable[[List[Ask]], Together],
        alone: Callable[[Ask], None],
        send: Callable[[List[Any]], None],
    ) -> None:
        self._begin = begin
        self._alone = alone
        self._send = send
        self._gathered: Dict[str, List[Ask]] = {}
        self._children: List[Together] = []

    def gather(self, ask: Ask) -> None:
        """Take a request that may share a child with others of its kind; `start` follows."""
        self._gathered.setdefault(ask.together, []).append(ask)

    def start(self) -> None:
        """Begin with all that was gathered. Raises nothing: where no process can be started, `alone` says so."""
        gathered, self._gathered = self._gathered, {}
        for asks in gathered.values():
            if len(asks) > 1:
                try:
                    child = self._begin(asks)
                except OSError:
                    pass
                else:
                    child.asks = {ask.id: ask for ask in asks}
                    self._children.append(child)
                    continue
            for ask in asks:
                self._alone(ask)

    def heard(self, child: Together, message: Any, now_s: float) -> None:
        """Keep an answer, and send all when it was the last."""
        if not isinstance(message, (Done, Failed)) or child.asks.pop(message.id, None) is None:
            return
        child.kept.append(message)
        child.deadline_at_s = now_s + PATIENCE_S
        if not child.asks:
            self._part(child)

    def lost(self, child: Together) -> None:
        """It is dead, or took too long: ask again for what it did not answer."""
        if child.answered:
            return
        left = list(child.asks.values())
        child.asks = {}
        self._part(child)
        for ask in left:
            self._alone(ask)

    def cancel(self, ask_id: int) -> bool:
        """Answer a request that nobody waits for; False when it is none of these."""
        for child in self._children:
            if child.asks.pop(ask_id, None) is not None:
                self._send([Failed(ask_id, "cancelled", "it was cancelled")])
                if not child.asks:
                    self._part(child)
                    child.kill_at_s = 0.0
                return True
        return False

    def _part(self, child: Together) -> None:
        child.answered = True
        self._children.remove(child)
        self._send(child.kept)
