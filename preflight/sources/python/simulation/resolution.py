"""Resolves claims of a program by its runs: values that it computes, and branches that it takes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from preflight._util.secret_names import is_secret
from preflight.model.job import Claim, Known, Launch, Value
from preflight.model.job.claim import Branch, BranchClaim
from preflight.model.job.value import SECTION, SETTING_PREFIX, Computed, Plain, without_place
from preflight.sources.python.simulation.run_state import ExpressionPlace, Run
from preflight.sources.python.simulation.values import NotKnown, native


def places_of(claims: Iterable[Claim]) -> dict[str, set[ExpressionPlace]]:
    """Return the places whose values claims need, by their files."""
    found: dict[str, set[ExpressionPlace]] = {}
    for claim in claims:
        if isinstance(claim.value, Computed):
            found.setdefault(claim.value.at[0], set()).add(claim.value.at)
        for path, places in places_of(claim.because).items():
            found.setdefault(path, set()).update(places)
    return found


def resolved(
    claims: Iterable[Claim], launches: Mapping[str, Launch], runs: Mapping[str, Sequence[Run]]
) -> Iterator[Claim]:
    """Yield the claims with the values that the runs of their launches show, without those of branches that none
    takes.
    """
    for claim in claims:
        launch = claim.scope.launch
        complete = [run for run in runs.get(launch, ()) if run.is_complete and run.is_of_any]
        if isinstance(claim, BranchClaim):
            is_taken = _is_taken(claim.when, complete)
            if is_taken is False:
                continue
            claim = claim.decided(is_taken=is_taken)
        if claim.because:
            claim = replace(claim, because=tuple(resolved(claim.because, launches, runs)))
        if isinstance(claim.value, Computed):
            value = _value(claim.value, complete)
            origin = (
                launches[launch].span if launch in launches and is_on_line(value, launches[launch]) else claim.origin
            )
            entries = list(_entries(claim, complete))
            yield from entries
            claim = replace(claim, value=Known(SECTION) if entries else value, origin=origin)
        yield claim


def _entries(claim: Claim, runs: Collection[Run]) -> Iterator[Claim]:
    """Yield the entries of a dictionary setting when the program reaches it."""
    if not claim.quantity.startswith(SETTING_PREFIX) or not isinstance(claim.value, Computed):
        return
    found = [each for run in runs for each in run.values.get(claim.value.at, ())]
    try:
        tables = [native(each) for each in found]
    except NotKnown:
        return
    if not tables or not isinstance(tables[0], dict) or any(each != tables[0] for each in tables):
        return
    for key, item in tables[0].items():
        plain = isinstance(item, (str, int, float, bool)) or item is None
        if isinstance(key, str) and plain and not is_secret(key):
            yield replace(claim, quantity=f"{claim.quantity}.{key}", value=Known(item))


def is_on_line(value: Value, launch: Launch) -> bool:
    """Return whether the launch line gives a value, or a part of a text."""
    shown = str(value.value) if isinstance(value, Known) else ""
    words = [word.rpartition("=")[2] for word in launch.arguments if word is not None]
    is_text = isinstance(value, Known) and isinstance(value.value, str)
    return bool(shown) and any(word == shown or (is_text and len(word) > 1 and word in shown) for word in words)


def _value(value: Computed, runs: Collection[Run]) -> Value:
    """Return the only value that the runs reach; the claim's value without its place if they reach none or several."""
    found = [each for run in runs for each in run.values.get(value.at, ())]
    try:
        known = [_plain(native(each)) for each in found]
    except NotKnown:
        return without_place(value)
    if not known or any((type(each), each) != (type(known[0]), known[0]) for each in known):
        return without_place(value)
    return Known(known[0])


def _plain(value: Any) -> Plain:
    """Return a plain value or a list of plain values. Raises NotKnown for any other."""
    if isinstance(value, (list, tuple)):
        if any(isinstance(item, (list, tuple, dict, set)) for item in value):
            raise NotKnown
        return tuple(value)
    if isinstance(value, (dict, set, bytes)):
        raise NotKnown
    found: Plain = value
    return found


def _is_taken(branches: Sequence[Branch], runs: Sequence[Run]) -> bool | None:
    """Return whether the runs take all of some branches; None if that is not known."""
    taken: list[bool | None] = []
    for branch in branches:
        place = (branch.path, branch.line, branch.column)
        outcomes = {outcome for run in runs for outcome in run.outcomes.get(place, ())}
        is_known = len(outcomes) == 1 and None not in outcomes
        taken.append(next(iter(outcomes)) is branch.if_true if is_known else None)
    return False if False in taken else None if None in taken or not taken else True
