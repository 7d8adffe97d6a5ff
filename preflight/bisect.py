"""Which nodes make a group hang that nobody can explain: smaller groups are tried until one is the smallest that hangs.

Everything is derived from what was tried so far, so that a recording leads to the same answer again. Groups that are to
be tried at the same time share no node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from preflight.lazy.dataclasses import dataclass

Group = tuple[str, ...]
#: What came of each group that was tried: whether it got through; None where that could not be told.
Trials = Mapping[frozenset[str], bool | None]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the trials come to.

    `kind`: `nodes` (each of `nodes` hangs with a node that is sound), `between` (the two of `nodes` hang together, and
    each gets through with another), `group` (these hang, and no smaller part of them that was tried does), `whole`
    (no part of all nodes hangs), `none` (of those blamed nothing hangs when tried again), `open` (there was no time).
    """

    kind: str
    nodes: Group
    trials: int


def next_groups(nodes: Group, trials: Trials, *, suspects: Group = (), least: int = 2) -> tuple[Group, ...]:
    """The groups to try next, all at once; empty when the answer is known.

    Args:
        nodes: all nodes, in rank order, which hang together.
        suspects: who is blamed already, if anybody: then only a second opinion is asked for.
        least: the smallest group that says something; 1 where one node runs several ranks.
    """
    return _walk(nodes, trials, suspects, least)[0]


def answer(nodes: Group, trials: Trials, *, suspects: Group = (), least: int = 2) -> Answer | None:
    """What the trials say so far; None when nothing was tried."""
    if not trials:
        return None
    kind, named = _walk(nodes, trials, suspects, least)[1:]
    return Answer(kind, named, len(trials))


def _walk(nodes: Group, trials: Trials, suspects: Group, least: int) -> tuple[tuple[Group, ...], str, Group]:
    """What is to be tried next, and the answer if nothing were."""
    if suspects and 1 <= len(suspects) <= 2:
        return _second_opinion(nodes, trials, suspects)
    failing = nodes
    while len(failing) > max(2, least):
        smaller: Group | None = None
        for parts in _splits(failing, least):
            untried = tuple(part for part in parts if frozenset(part) not in trials)
            if untried:
                return untried, "open", failing
            hanging = [part for part in parts if trials[frozenset(part)] is False]
            if hanging:
                smaller = hanging[0]
                break
        if smaller is None:
            return (), "whole" if failing == nodes else "group", failing
        failing = smaller
    if len(failing) == 2 and failing != nodes:
        return _second_opinion(nodes, trials, failing)
    return (), "group", failing


def _splits(group: Group, least: int) -> Iterator[tuple[Group, ...]]:
    """Three ways to cut a group in two: by halves, every other one, and by whether these two differ.

    Any two nodes are together in a part of one of them, so that a pair that hangs is never missed.
    """
    half = (len(group) + 1) // 2
    upper = [index >= half for index in range(len(group))]
    odd = [index % 2 == 1 for index in range(len(group))]
    differ = [a != b for a, b in zip(upper, odd, strict=True)]
    for side in (upper, odd, differ):
        parts = [tuple(name for name, at in zip(group, side, strict=True) if at is of) for of in (False, True)]
        kept = tuple(part for part in parts if len(part) >= least)
        if kept:
            yield kept


def _second_opinion(nodes: Group, trials: Trials, suspects: Group) -> tuple[tuple[Group, ...], str, Group]:
    """Each suspect with a node that is sound, as far as that is known; who hangs then, too, is to blame."""
    others = [node for node in nodes if node not in suspects]
    sound = {node for group, passed in trials.items() if passed for node in group}
    others.sort(key=lambda node: node not in sound)
    if not others:
        return (), "between" if len(suspects) == 2 else "nodes", suspects
    pairs = {suspect: (suspect, others[index % len(others)]) for index, suspect in enumerate(suspects)}
    wanted = [tuple(sorted(pair, key=nodes.index)) for pair in pairs.values()]
    rest = tuple(node for node in others if node not in {name for pair in wanted for name in pair})
    if len(suspects) == 1 and len(rest) > 1:
        wanted.append(rest)
    untried = [group for group in wanted if frozenset(group) not in trials]
    if untried:
        return _apart(untried), "open", suspects
    hanging = tuple(s for s, pair in pairs.items() if trials[frozenset(pair)] is False)
    if hanging:
        return (), "nodes", hanging
    if len(suspects) == 2:
        return (), "between", suspects
    if frozenset(rest) in trials and trials[frozenset(rest)] is False:
        return (), "group", rest
    return (), "none", suspects


def _apart(groups: Sequence[Group]) -> tuple[Group, ...]:
    """As many of these groups as share no node."""
    found: list[Group] = []
    for group in groups:
        if not {name for taken in found for name in taken} & set(group):
            found.append(group)
    return tuple(found)
