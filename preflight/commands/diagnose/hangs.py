"""Explains a hang from dumps of several ranks: which collective, who entered it, who did not, where each was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from preflight.commands.diagnose.flight_recorder import Call, Dump

Kind = Literal["missing", "order", "other", "sizes"]

#: Operations in which ranks may pass tensors of different sizes.
_UNEVEN = ("all_to_all", "alltoall", "gather", "scatter", "send", "recv", "coalesced")
#: Largest number of ranks that are described one by one.
MAX_DESCRIBED = 16


@dataclass(frozen=True, slots=True)
class Hang:
    """Ranks that wait in a collective which cannot end.

    Args:
        kind: `missing`: some ranks did not come to it. `order`: ranks call the same collectives in another order.
            `other`: a rank is in another collective. `sizes`: the tensors differ.
        ranks: those that differ from the others.
        waiting: those that entered it.
        text: the difference in words.
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
    """Return the first collective that not all ranks of its group can finish, or None."""
    by_rank = {dump.rank: dump for dump in dumps}
    by_group: dict[str, dict[int, dict[int, Call]]] = {}
    for dump in dumps:
        for call in dump.calls:
            # Of several calls with one number, the first counts.
            by_group.setdefault(call.group, {}).setdefault(dump.rank, {}).setdefault(call.sequence, call)
    found = [hang for group in sorted(by_group) if (hang := _in_group(group, by_group[group], by_rank)) is not None]
    # Ranks that differ matter more than ranks that are missing: these may wait in the other group.
    found.sort(key=lambda hang: ("order", "other", "sizes", "missing").index(hang.kind))
    return found[0] if found else None


def _in_group(group: str, calls: Mapping[int, Mapping[int, Call]], dumps: Mapping[int, Dump]) -> Hang | None:
    members = _members(group, calls, dumps)
    last = {rank: max(calls.get(rank, {}), default=0) for rank in members}
    unfinished = {call.sequence for found in calls.values() for call in found.values() if not call.is_finished}
    for number in sorted(unfinished):
        here = {rank: calls[rank][number] for rank in members if number in calls.get(rank, {})}
        hang = _different(number, here, calls, dumps) or _missing(number, here, last, dumps)
        if hang is not None:
            return hang
    return None


def _members(group: str, calls: Mapping[int, object], dumps: Mapping[int, Dump]) -> tuple[int, ...]:
    """Return the ranks of a group: those that a dump lists, otherwise those that called something in it."""
    for dump in dumps.values():
        # The default group has the name "0" in its calls, and with some backends "" in the list.
        listed = dump.groups.get(group) or (dump.groups.get("") if group == "0" else None)
        if listed:
            return tuple(sorted(set(listed)))
    return tuple(sorted(calls))


def _different(
    number: int, here: Mapping[int, Call], calls: Mapping[int, Mapping[int, Call]], dumps: Mapping[int, Dump]
) -> Hang | None:
    operations = Counter(call.operation for call in here.values())
    if len(operations) > 1:
        common = _most_common(operations, here)
        odd = sorted(rank for rank, call in here.items() if call.operation != common)
        swapped = all(_is_swapped(number, rank, common, here, calls) for rank in odd)
        text = (
            f"collective {number} of {_group(here)} is {here[odd[0]].operation} on {format_ranks(odd)} "
            f"and {common} on the others"
        )
        return _hang("order" if swapped else "other", odd, here, text, _latest(here, dumps), dumps)
    operation = next(iter(operations), "")
    shapes = Counter((call.shapes, call.dtypes) for call in here.values())
    if len(shapes) > 1 and not any(word in operation for word in _UNEVEN):
        usual = max(shapes, key=lambda shape: (shapes[shape], -min(_with(shape, here))))
        odd = sorted(set(here) - set(_with(usual, here)))
        first = here[odd[0]]
        text = (
            f"collective {number} of {_group(here)}, {operation}, has {first.shapes} {first.dtypes} "
            f"on {format_ranks(odd)} and {usual[0]} {usual[1]} on the others"
        )
        return _hang("sizes", odd, here, text, _latest(here, dumps), dumps)
    return None


def _most_common(operations: Counter[str], here: Mapping[int, Call]) -> str:
    """Return the operation of most ranks; of two equally frequent ones that of the lowest rank."""
    return max(operations, key=lambda name: (operations[name], -min(r for r, c in here.items() if c.operation == name)))


def _with(shape: tuple[str, str], here: Mapping[int, Call]) -> list[int]:
    return [rank for rank, call in here.items() if (call.shapes, call.dtypes) == shape]


def _is_swapped(
    number: int, rank: int, common: str, here: Mapping[int, Call], calls: Mapping[int, Mapping[int, Call]]
) -> bool:
    """Return whether the others call next what this rank calls now, and this rank next what they call now.

    A rank that waits has no next call, so that one of the two is enough if the other is unknown.
    """
    own_next = calls[rank].get(number + 1)
    other_next = {call.operation for other in here if other != rank and (call := calls[other].get(number + 1))}
    if own_next is None:
        return here[rank].operation in other_next
    return own_next.operation == common and (not other_next or here[rank].operation in other_next)


def _missing(number: int, here: Mapping[int, Call], last: Mapping[int, int], dumps: Mapping[int, Dump]) -> Hang | None:
    absent = sorted(rank for rank, latest in last.items() if latest < number)
    if not absent or not here:
        return None
    # A rank whose dump was lost or not copied may be anywhere: one that left a dump comes first.
    shown = [rank for rank in absent if rank in dumps]
    absent = shown or absent
    operation = next(iter(here.values())).operation
    did = "did not come to" if shown else "left no dump, and may be the cause that the others wait in"
    waiting = "" if not shown else f", in which {format_ranks(here)} {'waits' if len(here) == 1 else 'wait'}"
    text = f"{format_ranks(absent)} {did} collective {number} of {_group(here)}, {operation}{waiting}"
    now = _elsewhere(absent, dumps) | dict(here)
    # A missing rank that waits in another group waits for ranks that wait for it.
    kind: Kind = "other" if any(rank in now and not now[rank].is_finished for rank in absent) else "missing"
    return _hang(kind, absent, here, text, now, dumps)


def _latest(here: Mapping[int, Call], dumps: Mapping[int, Dump]) -> dict[int, Call]:
    """Return the call that each rank is in: a later one if it finished this one."""
    return {rank: dumps[rank].calls[-1] if call.is_finished else call for rank, call in here.items()}


def _elsewhere(ranks: Sequence[int], dumps: Mapping[int, Dump]) -> dict[int, Call]:
    """Return the last call of each rank that has a dump."""
    return {rank: dumps[rank].calls[-1] for rank in ranks if rank in dumps and dumps[rank].calls}


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
        # It is not in a collective any more: where the others wait is the better place.
        place = now[waiting[0]].place or place
    source = next((rank for rank in (*odd, *waiting) if rank in dumps), None)
    lines = [_where(rank, now.get(rank)) for rank in odd[:MAX_DESCRIBED]]
    by_call: dict[str, list[int]] = {}
    for rank in waiting:
        by_call.setdefault(_what(now[rank]), []).append(rank)
    lines += [f"{format_ranks(found)}: {what}" for what, found in by_call.items()][:MAX_DESCRIBED]
    return Hang(kind, tuple(odd), waiting, text, tuple(lines), place, dumps[source].path if source is not None else "")


def _where(rank: int, call: Call | None) -> str:
    return f"rank {rank}: {_what(call) if call is not None else 'no dump, or no collective in it'}"


def _what(call: Call) -> str:
    where = f", at {call.place}" if call.place else ""
    shapes = f" of {call.shapes} {call.dtypes}" if call.shapes else ""
    what = f"{call.operation}{shapes}, collective {call.sequence} of group {call.description or call.group}{where}"
    return f"left {what}" if call.is_finished else f"in {what}"


def _group(here: Mapping[int, Call]) -> str:
    call = next(iter(here.values()))
    return f"group {call.description or call.group}"


def format_ranks(ranks: Iterable[int]) -> str:
    """Return `rank 3` or `ranks 0-2, 5`."""
    numbers = sorted(set(ranks))
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    shown = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
    return f"rank{'' if len(numbers) == 1 else 's'} {shown}"
