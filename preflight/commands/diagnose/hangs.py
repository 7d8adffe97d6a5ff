"""Explains a hang from the dumps or stacks of several ranks: the collective, and where each rank was."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from preflight._util.hostnames import number_ranges
from preflight._util.sequences import grouped
from preflight.commands.diagnose.flight_recorder import Call, Dump
from preflight.commands.diagnose.log_lines import is_library

Kind = Literal["missing", "stuck", "order", "other", "sizes"]

#: Operations in which ranks may pass tensors of different sizes.
_UNEVEN = ("all_to_all", "alltoall", "gather", "scatter", "send", "recv", "coalesced")
#: Largest number of collectives of one group that ranks wait in; a job has one or two.
_MAX_NUMBERS = 1000
#: Largest number of ranks that are described one by one.
MAX_DESCRIBED = 16


@dataclass(frozen=True, slots=True)
class Hang:
    """Ranks that wait in a collective that cannot end.

    Args:
        kind: `missing`: some ranks did not reach it. `stuck`: some do not finish what others finished. `order`: ranks
            call the same collectives in a different order. `other`: a rank is in a different collective. `sizes`: the
            tensors differ.
        ranks: the ranks that differ from the others.
        waiting: the ranks that entered it.
        text: a description of the difference.
        places: what each rank does, one line each.
        place: `path:line` of the user's program where the first of `ranks` is, or where the others wait.
        path: dump of the first of `ranks` that has one, or of a waiting rank.
    """

    kind: Kind
    ranks: tuple[int, ...]
    waiting: tuple[int, ...]
    text: str
    places: tuple[str, ...]
    place: str
    path: str


def find_hang(dumps: Sequence[Dump]) -> Hang | None:
    """Return the collective whose ranks call different operations, otherwise the ranks that all others wait for."""
    by_rank = {dump.rank: dump for dump in dumps}
    groups = _positions(by_rank)
    # Ranks that differ matter more than missing ranks, which may wait in the other group.
    found = [hang for name in sorted(groups) if (hang := _first_difference(groups[name], by_rank)) is not None]
    found.sort(key=lambda hang: ("order", "other", "sizes").index(hang.kind))
    return found[0] if found else _find_awaited(groups, by_rank)


def ranks_without_dump(dumps: Sequence[Dump]) -> tuple[int, ...]:
    """Return the ranks that left no dump although other dumps list them in their groups."""
    listed = {rank for dump in dumps for ranks in dump.groups.values() for rank in ranks}
    return tuple(sorted(listed - {dump.rank for dump in dumps}))


@dataclass(frozen=True, slots=True)
class _Positions:
    """The progress of each rank of a group.

    Args:
        calls: the collectives of each rank, by number.
        waits: the first collective that a rank has entered but not finished.
        reached: the first collective that a rank has not finished, or half a step after the last one that it entered;
            ranks without a dump, and those that may have called more than their dump shows, are left out.
        lost: ranks in the group that left no dump.
    """

    calls: Mapping[int, Mapping[int, Call]]
    waits: Mapping[int, int]
    reached: Mapping[int, float]
    lost: tuple[int, ...]

    def awaited(self, number: int) -> tuple[int, ...]:
        """Return the ranks that hold up a collective, preferably ranks with a dump, because others may be anywhere."""
        return tuple(rank for rank, reached in self.reached.items() if reached < number) or self.lost

    def is_held_up(self, number: int, rank: int) -> bool:
        if rank in self.reached:
            return self.reached[rank] < number
        return rank in self.lost and rank in self.awaited(number)


def _positions(dumps: Mapping[int, Dump]) -> dict[str, _Positions]:
    """Return how far each rank came in each group in which a rank waits."""
    listed = _listed_groups(dumps)
    calls: dict[str, dict[int, dict[int, Call]]] = {}
    in_pairs: set[str] = set()
    for rank, dump in dumps.items():
        for call in dump.calls:
            if call.pair is not None:
                in_pairs.add(call.group)
            else:
                # Of several calls with one number, the first counts.
                calls.setdefault(call.group, {}).setdefault(rank, {}).setdefault(call.sequence, call)
    positions: dict[str, _Positions] = {}
    for group, by_rank in calls.items():
        waits = {
            rank: min(call.sequence for call in own.values() if not call.is_finished)
            for rank, own in by_rank.items()
            if not all(call.is_finished for call in own.values())
        }
        if not waits:
            continue
        members = _members(group, by_rank, dumps, listed)
        reached: dict[int, float] = {}
        for rank in members:
            counts = dumps[rank].reached.get(group) if rank in dumps and group not in in_pairs else None
            if rank in by_rank:
                reached[rank] = waits.get(rank, max(by_rank[rank]) + 0.5)
            elif counts is not None:
                reached[rank] = counts.finished + 1 if counts.finished < counts.entered else counts.entered + 0.5
            elif rank in dumps and dumps[rank].is_whole:
                reached[rank] = 0.5
        lost = tuple(rank for rank in members if rank not in dumps)
        positions[group] = _Positions(by_rank, waits, reached, lost)
    return positions


def _listed_groups(dumps: Mapping[int, Dump]) -> dict[str, tuple[int, ...]]:
    ranks_by_group = ((group, ranks) for dump in dumps.values() for group, ranks in dump.groups.items() if ranks)
    return {group: tuple(sorted(set(lists[0]))) for group, lists in grouped(ranks_by_group).items()}


def _members(
    group: str, calls: Mapping[int, object], dumps: Mapping[int, Dump], listed: Mapping[str, tuple[int, ...]]
) -> tuple[int, ...]:
    """Return the ranks of a group: those that a dump lists, otherwise those that called something in it."""
    # The default group has the name "0" in its calls, and with some backends "" in the list.
    if found := listed.get(group) or (listed.get("") if group == "0" else None):
        return found
    # Every rank is in the default group, so that a gap between most of the numbers is a rank without a dump.
    has_gaps = group == "0" and max(dumps) < 2 * len(dumps)
    return tuple(range(max(dumps) + 1)) if has_gaps else tuple(sorted(calls))


def _first_difference(group: _Positions, dumps: Mapping[int, Dump]) -> Hang | None:
    """Return the first unfinished collective of a group that the ranks call differently."""
    unfinished = {call.sequence for own in group.calls.values() for call in own.values() if not call.is_finished}
    for number in sorted(unfinished):
        here = {rank: own[number] for rank, own in sorted(group.calls.items()) if number in own}
        if (hang := _describe_mismatch(number, here, group.calls, dumps)) is not None:
            return hang
    return None


def _find_awaited(groups: Mapping[str, _Positions], dumps: Mapping[int, Dump]) -> Hang | None:
    """Return the ranks that others wait for and that wait for no rank; otherwise those that wait for each other."""
    # A rank may have queued its later calls behind the first.
    for first in (_is_any_call, _is_first_call):
        edges = _edges(groups, dumps, first)
        awaited = {rank for ranks in edges.values() for rank in ranks}
        if odd := sorted(rank for rank in awaited if not edges.get(rank)):
            return _describe_missing(odd, groups, dumps, text="")
    edges = _edges(groups, dumps, _is_any_call)
    awaited = {rank for ranks in edges.values() for rank in ranks}
    while (inner := {rank for own in awaited for rank in edges[own] if rank in awaited}) != awaited:
        awaited = inner
    each_other = f"{format_ranks(awaited)} wait for each other, and the dumps do not show which rank is at fault: "
    return _describe_missing(sorted(awaited), groups, dumps, text=each_other) if awaited else None


def _is_any_call(_: Dump, __: Call) -> bool:
    return True


def _is_first_call(dump: Dump, call: Call) -> bool:
    return next(other for other in dump.calls if not other.is_finished) is call


def _edges(
    groups: Mapping[str, _Positions], dumps: Mapping[int, Dump], counts: Callable[[Dump, Call], bool]
) -> dict[int, set[int]]:
    """Return the ranks that each rank waits for in its unfinished calls."""
    edges: dict[int, set[int]] = {}
    for group in groups.values():
        held_up = {number: group.awaited(number) for number in sorted(set(group.waits.values()))[:_MAX_NUMBERS]}
        for rank, number in group.waits.items():
            if number in held_up and counts(dumps[rank], group.calls[rank][number]):
                edges.setdefault(rank, set()).update(held_up[number])
    for rank, peer, call in _unanswered_calls(dumps):
        # A sender may be through although the receiver is not, so that the numbers of collectives count more.
        if rank not in edges.get(peer, ()) and counts(dumps[rank], call):
            edges.setdefault(rank, set()).add(peer)
    return edges


def _unanswered_calls(dumps: Mapping[int, Dump]) -> Iterator[tuple[int, int, Call]]:
    """Return each rank with more unfinished point-to-point calls to a peer than the peer has, and the first one."""
    unanswered: dict[tuple[str, int, int], dict[int, list[Call]]] = {}
    members: dict[str, tuple[int, ...]] = {}
    listed = _listed_groups(dumps)
    for rank, dump in dumps.items():
        for call in dump.calls:
            if call.pair is None or call.is_finished:
                continue
            if call.group not in members:
                members[call.group] = _members(call.group, dumps, dumps, listed)
            if max(call.pair) < len(members[call.group]):
                sender, receiver = (members[call.group][at] for at in call.pair)
                unanswered.setdefault((call.group, sender, receiver), {}).setdefault(rank, []).append(call)
    for (_, sender, receiver), calls in sorted(unanswered.items(), key=lambda item: item[0]):
        for rank, peer in ((sender, receiver), (receiver, sender)):
            if len(calls.get(rank, ())) > len(calls.get(peer, ())):
                yield rank, peer, calls[rank][0]


@dataclass(frozen=True, slots=True)
class _Delay:
    """The reason why others wait for a rank: a collective that only this rank did not finish or reach."""

    group: str
    number: int
    is_entered: bool

    def text(self, ranks: Sequence[int], group: _Positions, dumps: Mapping[int, Dump]) -> str:
        here = self.here(group)
        what = f"collective {self.number} of {_group(here)}, {next(iter(here.values())).operation}"
        if self.is_entered:
            return f"{format_ranks(ranks)} did not finish {what}, which others in the group finished"
        if not any(rank in dumps for rank in ranks):
            return f"{format_ranks(ranks)} left no dump, and may be why the other ranks wait in {what}"
        waits = f"{format_ranks(here)} {'waits' if len(here) == 1 else 'wait'}"
        return f"{format_ranks(ranks)} did not reach {what}, in which {waits}"

    def here(self, group: _Positions) -> dict[int, Call]:
        return {rank: own[self.number] for rank, own in sorted(group.calls.items()) if self.number in own}


def _delays(rank: int, groups: Mapping[str, _Positions]) -> Iterator[tuple[int, _Delay]]:
    """Yield the collectives in which a rank holds up others, each with the number of ranks held up."""
    for name, group in sorted(groups.items()):
        reached = group.reached.get(rank, 0)
        numbers = Counter(group.waits.values())
        late = [number for number in numbers if group.is_held_up(number, rank)]
        waiting = sum(numbers[number] for number in late)
        if late and rank in group.waits and group.waits[rank] == reached:
            yield waiting, _Delay(name, group.waits[rank], is_entered=True)
        elif late:
            yield waiting, _Delay(name, min(late), is_entered=False)


def _describe_missing(
    numbers: Sequence[int], groups: Mapping[str, _Positions], dumps: Mapping[int, Dump], *, text: str
) -> Hang:
    """Describe the collective that each of these ranks did not reach or did not finish."""
    by_delay: dict[_Delay, list[int]] = {}
    here: dict[int, Call] = {}
    for rank in numbers:
        found = list(_delays(rank, groups))
        if found:
            by_delay.setdefault(max(found, key=lambda item: (item[1].is_entered, item[0]))[1], []).append(rank)
    parts = [delay.text(ranks, groups[delay.group], dumps) for delay, ranks in by_delay.items()]
    for delay in by_delay:
        here |= {rank: call for rank, call in delay.here(groups[delay.group]).items() if rank not in numbers}
    named_ranks = {rank for ranks in by_delay.values() for rank in ranks}
    for rank, peer, call in _unanswered_calls(dumps):
        if peer in numbers and peer not in named_ranks:
            named_ranks.add(peer)
            here.setdefault(rank, call)
            parts.append(f"rank {peer} did not reach the {call.operation} that rank {rank} waits in")
    now = {
        rank: next((call for call in dumps[rank].calls if not call.is_finished), dumps[rank].calls[-1])
        for rank in numbers
        if rank in dumps and dumps[rank].calls
    }
    entered = {rank for delay, ranks in by_delay.items() if delay.is_entered for rank in ranks}
    waiting = {rank for rank, call in now.items() if not call.is_finished} - entered
    # A missing rank that waits in another group waits for ranks that wait for it.
    kind: Kind = "other" if waiting else "stuck" if entered == set(numbers) else "missing"
    return _hang(kind, numbers, here, text + "; ".join(parts), here | now, dumps)


def _describe_mismatch(
    number: int, call_by_rank: Mapping[int, Call], calls: Mapping[int, Mapping[int, Call]], dumps: Mapping[int, Dump]
) -> Hang | None:
    operations = Counter(call.operation for call in call_by_rank.values())
    if len(operations) > 1:
        common = _most_common(operations, call_by_rank)
        odd = sorted(rank for rank, call in call_by_rank.items() if call.operation != common)
        swapped = all(_is_swapped(number, rank, common, call_by_rank, calls) for rank in odd)
        text = (
            f"collective {number} of {_group(call_by_rank)} is {call_by_rank[odd[0]].operation} on "
            f"{format_ranks(odd)}, but {common} on the others"
        )
        return _hang(
            "order" if swapped else "other", odd, call_by_rank, text, _latest_calls(call_by_rank, dumps), dumps
        )
    operation = next(iter(operations), "")
    shapes = Counter((call.shapes, call.dtypes) for call in call_by_rank.values())
    if len(shapes) > 1 and not any(word in operation for word in _UNEVEN):
        usual = max(shapes, key=lambda shape: (shapes[shape], -min(_with(shape, call_by_rank))))
        odd = sorted(set(call_by_rank) - set(_with(usual, call_by_rank)))
        first = call_by_rank[odd[0]]
        text = (
            f"collective {number} of {_group(call_by_rank)}, {operation}, has {first.shapes} {first.dtypes} on "
            f"{format_ranks(odd)}, but {usual[0]} {usual[1]} on the others"
        )
        return _hang("sizes", odd, call_by_rank, text, _latest_calls(call_by_rank, dumps), dumps)
    return None


def _most_common(operations: Counter[str], calls: Mapping[int, Call]) -> str:
    """Return the operation of most ranks; of two equally frequent operations, that of the lowest rank."""
    return max(
        operations, key=lambda name: (operations[name], -min(r for r, c in calls.items() if c.operation == name))
    )


def _with(shape: tuple[str, str], calls: Mapping[int, Call]) -> list[int]:
    return [rank for rank, call in calls.items() if (call.shapes, call.dtypes) == shape]


def _is_swapped(
    number: int, rank: int, common: str, call_by_rank: Mapping[int, Call], calls: Mapping[int, Mapping[int, Call]]
) -> bool:
    """Return whether a rank and the others make two calls in opposite order; one order suffices if unknown."""
    own_next = calls[rank].get(number + 1)
    other_next = {call.operation for other in call_by_rank if other != rank and (call := calls[other].get(number + 1))}
    if own_next is None:
        return call_by_rank[rank].operation in other_next
    return own_next.operation == common and (not other_next or call_by_rank[rank].operation in other_next)


def _latest_calls(calls: Mapping[int, Call], dumps: Mapping[int, Dump]) -> dict[int, Call]:
    """Return the current call of each rank: a later one if the rank finished this one."""
    return {rank: dumps[rank].calls[-1] if call.is_finished else call for rank, call in calls.items()}


def _hang(
    kind: Kind,
    odd: Sequence[int],
    here: Mapping[int, Call],
    text: str,
    now: Mapping[int, Call],
    dumps: Mapping[int, Dump],
) -> Hang:
    odd_with_call = [rank for rank in odd if rank in now]
    first = now.get(odd_with_call[0]) if odd_with_call else None
    waiting = tuple(rank for rank in sorted(here) if rank not in odd)
    place = next((now[rank].place for rank in (*odd_with_call, *waiting) if rank in now and now[rank].place), "")
    if first is not None and first.is_finished and waiting:
        # The rank has left its collective, so the location where the others wait is more useful.
        place = now[waiting[0]].place or place
    source = next((rank for rank in (*odd, *waiting) if rank in dumps), None)
    lines = [_describe_place(rank, now.get(rank), has_dump=rank in dumps) for rank in odd[:MAX_DESCRIBED]]
    by_call = grouped((_describe_call(now[rank]), rank) for rank in waiting)
    lines += [f"{format_ranks(found)}: {what}" for what, found in by_call.items()][:MAX_DESCRIBED]
    return Hang(kind, tuple(odd), waiting, text, tuple(lines), place, dumps[source].path if source is not None else "")


def _describe_place(rank: int, call: Call | None, *, has_dump: bool) -> str:
    return f"rank {rank}: {_describe_call(call) if call is not None else 'in no collective' if has_dump else 'no dump'}"


def _describe_call(call: Call) -> str:
    where = f", at {call.place}" if call.place else ""
    shapes = f" of {call.shapes} {call.dtypes}" if call.shapes else ""
    what = f"{call.operation}{shapes}, collective {call.sequence} of group {call.description or call.group}{where}"
    return f"left {what}" if call.is_finished else f"in {what}"


def _group(calls: Mapping[int, Call]) -> str:
    call = next(iter(calls.values()))
    return f"group {call.description or call.group}"


def format_ranks(ranks: Iterable[int]) -> str:
    """Return `rank 3` or `ranks 0-2, 5`."""
    numbers = set(ranks)
    return f"rank{'' if len(numbers) == 1 else 's'} {', '.join(number_ranges(numbers))}"


#: Largest dump that is read.
MAX_BYTES = 8 << 20
_MAX_LINES = 100_000
_PROCESS = re.compile(r"Process (?P<pid>\d{1,10}): ")
_VERSION = re.compile(r"(?m)^Python v\d")
_THREAD = re.compile(r'Thread [\w]{1,20}(?: \([^)\n]{1,40}\))?: ?"?(?P<name>[^"\n]{0,80})"?')
_FRAME = re.compile(r"\s{1,8}(?P<function>[^(\n]{1,200}) \((?P<path>[^()\n]{1,400}):(?P<line>\d{1,9})\)$")
#: Files whose functions are collectives; a wrapper such as FSDP also computes below torch/distributed.
_COLLECTIVE_FILES = ("distributed_c10d.py", "torch/distributed/_functional_collectives.py", "horovod/torch/mpi_ops.py")
#: Functions in these files that are not collectives.
_WRAPPERS = ("wrapper", "_wrap", "inner", "decorate_context")


@dataclass(frozen=True, slots=True)
class Stack:
    """The position of a rank's main thread: its collective, if any, and the innermost user function."""

    rank: int
    path: str
    collective: str
    place: str
    function: str


def looks_like_stacks(head: bytes) -> bool:
    """Return whether a file is a dump of stacks, by its first bytes."""
    text = head[:4096].decode("utf-8", "replace")
    return _PROCESS.match(text) is not None and _VERSION.search(text) is not None


def read_stack(text: str, rank: int, path: str) -> Stack | None:
    """Return the stack of the main thread in a dump of one process, or None if it has no frames."""
    frames: list[tuple[str, str]] = []
    others: list[tuple[str, str]] = []
    is_main = False
    for line in text.splitlines()[:_MAX_LINES]:
        if (thread := _THREAD.match(line)) is not None:
            is_main = thread["name"] == "MainThread"
        elif (frame := _FRAME.match(line)) is not None:
            (frames if is_main else others).append((frame["function"].strip(), f"{frame['path']}:{frame['line']}"))
    frames = frames or others
    if not frames:
        return None
    own = next(((function, place) for function, place in frames if not _is_library(place)), frames[0])
    collective = next(
        (
            function
            for function, place in frames
            if any(name in place for name in _COLLECTIVE_FILES) and function not in _WRAPPERS
        ),
        "",
    )
    return Stack(rank, path, collective, own[1], own[0])


def _is_library(place: str) -> bool:
    """Return whether a location is in a library; py-spy shortens paths of packages to `torch/...`."""
    return is_library(place) or place.startswith(("torch/", "threading.py", "multiprocessing/", "selectors.py", "<"))


def find_hang_in_stacks(stacks: Sequence[Stack]) -> Hang | None:
    """Return the difference between the ranks in a collective and the other ranks; None if there is no difference."""
    by_rank = {stack.rank: stack for stack in stacks}
    inside = [stack for stack in by_rank.values() if stack.collective]
    outside = [stack for stack in by_rank.values() if not stack.collective]
    lines = tuple(_where_in_stack(stack) for stack in (*outside, *inside))[:32]
    if inside and outside:
        odd = sorted(stack.rank for stack in outside)
        waiting = tuple(sorted(stack.rank for stack in inside))
        verb = "is" if len(odd) == 1 else "are"
        text = f"{format_ranks(odd)} {verb} in no collective, but {format_ranks(waiting)} in {inside[0].collective}"
        first = by_rank[odd[0]]
        return Hang("missing", tuple(odd), waiting, text, lines, first.place, first.path)
    names = {stack.collective for stack in inside}
    if len(names) > 1:
        counts = {name: [stack.rank for stack in inside if stack.collective == name] for name in names}
        common = max(sorted(counts), key=lambda name: (len(counts[name]), -min(counts[name])))
        odd = sorted(stack.rank for stack in inside if stack.collective != common)
        first = by_rank[odd[0]]
        text = f"{format_ranks(odd)} in {first.collective}, {format_ranks(counts[common])} in {common}"
        return Hang("other", tuple(odd), tuple(sorted(counts[common])), text, lines, first.place, first.path)
    return None


def _where_in_stack(stack: Stack) -> str:
    inside = f"in {stack.collective}, called" if stack.collective else "in no collective,"
    return f"rank {stack.rank}: {inside} at {stack.place} ({stack.function})"
