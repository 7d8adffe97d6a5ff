"""A job: all claims that belong together, with its launches and the files they stand in."""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterable, Iterator
from dataclasses import replace

from preflight.job.claim import WHOLE_JOB, Claim, Relation, Scope
from preflight.job.span import Span
from preflight.job.value import Unresolved, Value, join
from preflight.lazy.dataclasses import dataclass


class NoteKind(enum.Enum):
    """Why a source could say less about a file than it should."""

    UNREADABLE = "unreadable"
    MALFORMED = "malformed"
    #: A line that starts ranks ends in a carriage return, which the shell takes for part of its last word.
    LINE_ENDING = "line-ending"
    TOO_LARGE = "too-large"
    TEMPLATE = "template"
    MISSING = "missing"
    OUTSIDE = "outside-root"
    UNSUPPORTED = "unsupported"
    CRASHED = "crashed"


#: Of a file with such a note nothing is known.
UNSEEN = frozenset({NoteKind.UNREADABLE, NoteKind.TOO_LARGE, NoteKind.MISSING, NoteKind.OUTSIDE, NoteKind.CRASHED})


@dataclass(frozen=True, slots=True)
class Note:
    """Something about an input that limits what can be judged. `required`: the user selected this input.

    Args:
        kind: `unreadable`, `malformed`, `line-ending`, `too-large`, `template`, `missing`, `outside-root`,
            `unsupported` or `crashed`.
        message: the same in words.
        span: where.
    """

    kind: NoteKind
    message: str
    span: Span
    required: bool = False


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file that was read. `path` is relative to the root; `kind` is the name of the source that read it.

    Args:
        sha256: of its bytes.
        size_bytes: how long it is.
    """

    path: str
    kind: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Reference:
    """One file names another: `role` is `script`, `config`, `hostfile`, `source`, `data`.

    `target` is the path as it resolves from the root, forward slashes, not necessarily existing; `scope` is the
    launch the reference belongs to, so that what the target claims is read in that scope.

    Args:
        span: where it is named.
    """

    target: str
    role: str
    span: Span
    scope: Scope = WHOLE_JOB


@dataclass(frozen=True, slots=True)
class Launch:
    """One command line that starts ranks.

    Args:
        id: `path:line`, with `#2` behind it for a second launch on the same line; also `Scope.launch`.
        launcher: `torchrun`, `deepspeed`, `paddle`, `srun` (srun starts python itself), `mpirun`, `python`.
        wrappers: what stands around it, outermost first: `("srun",)`.
        program: the training script relative to the root, empty when it cannot be told.
        arguments: words behind the program; None for one that is unresolved.
        condition: branch under which it runs; empty = always.
        span: where it stands.
    """

    id: str
    launcher: str
    span: Span
    wrappers: tuple[str, ...] = ()
    program: str = ""
    arguments: tuple[str | None, ...] = ()
    condition: str = ""

    @property
    def scope(self) -> Scope:
        """The scope in which this launch's own claims are stated."""
        return _scope_of(self.id)


@functools.lru_cache(maxsize=1024)
def _scope_of(launch_id: str) -> Scope:
    """Made once for a launch: every rule asks each launch for it."""
    return Scope(launch=launch_id)


@dataclass(frozen=True, slots=True)
class Suppression:
    """`# preflight: ignore[ID or name] reason` in a file; applies to findings on `line`.

    Args:
        path: the file it stands in.
        names: ids or names of rules.
        reason: what the user wrote behind them.
        span: where the comment stands.
    """

    path: str
    line: int
    names: tuple[str, ...]
    reason: str
    span: Span


@dataclass(frozen=True)
class Job:
    """Everything the files say about one job.

    `probable` marks a job put together by guesswork from sibling files (node0.sh, node1.sh): findings that rest on
    the guess are warnings at most.

    Args:
        name: the path of its first file, or what the user named.
        files: every file that was read for it.
        launches: command lines that start its ranks.
        claims: what the files say, in their order.
        notes: what limits what can be judged.
        references: which file names which.
        suppressions: comments that take findings out of the verdict.
    """

    name: str
    files: tuple[InputFile, ...] = ()
    launches: tuple[Launch, ...] = ()
    claims: tuple[Claim, ...] = ()
    notes: tuple[Note, ...] = ()
    references: tuple[Reference, ...] = ()
    suppressions: tuple[Suppression, ...] = ()
    probable: bool = False

    @functools.cached_property
    def _by_quantity(self) -> dict[str, list[Claim]]:
        index: dict[str, list[Claim]] = {}
        for claim in self.claims:
            index.setdefault(claim.quantity, []).append(claim)
        return index

    @functools.cached_property
    def _by_launch(self) -> dict[tuple[str, str], list[tuple[int, Claim]]]:
        """The claims of each quantity by the launch they speak of (empty: all), with their place in the order.

        A job of a thousand launches is asked about each of them by every rule; whoever looked through all claims
        every time would take time that grows with the square of the launches.
        """
        index: dict[tuple[str, str], list[tuple[int, Claim]]] = {}
        for place, claim in enumerate(self.claims):
            index.setdefault((claim.quantity, claim.scope.launch), []).append((place, claim))
        return index

    @functools.cached_property
    def named_nodes(self) -> frozenset[str]:
        """The nodes of which some claim speaks by name; of all others the same holds."""
        return frozenset(claim.scope.node for claim in self.claims) - {""}

    @functools.cached_property
    def _in_force(self) -> dict[tuple[str, Scope], tuple[Claim, ...]]:
        """What `setting` found so far: many rules ask for the same few quantities."""
        return {}

    def about(self, quantity: str, scope: Scope | None = None) -> tuple[Claim, ...]:
        """Every claim about `quantity` that holds in `scope` (all of them without one), in file order."""
        if scope is None:
            return tuple(self._by_quantity.get(quantity, ()))
        if quantity not in self._by_quantity:
            return ()
        found = self._by_launch.get((quantity, ""), [])
        if scope.launch and (own := self._by_launch.get((quantity, scope.launch))):
            found = sorted((*found, *own), key=lambda item: item[0]) if found else own
        return tuple([claim for _, claim in found if claim.scope.covers(scope)])

    def setting(self, quantity: str, scope: Scope = WHOLE_JOB) -> tuple[Claim, ...]:
        """The claims that set `quantity` in `scope` and are in force there.

        The strongest win, among them the narrowest; several are returned only where branches give several.
        """
        if quantity not in self._by_quantity:
            return ()
        found = self._in_force.get((quantity, scope))
        if found is None:
            competing = [claim for claim in self.about(quantity, scope) if claim.relation is Relation.SETS]
            found = self._in_force[quantity, scope] = strongest(competing)
        return found

    def requiring(self, quantity: str, scope: Scope = WHOLE_JOB) -> tuple[Claim, ...]:
        """The claims that need `quantity` to equal something: per source, the ones in force."""
        found = self.about(quantity, scope)
        if not found:
            return ()
        by_source: dict[str, list[Claim]] = {}
        for claim in found:
            if claim.relation is Relation.REQUIRES:
                by_source.setdefault(claim.source, []).append(claim)
        return tuple(claim for competing in by_source.values() for claim in strongest(competing))

    def value(self, quantity: str, scope: Scope = WHOLE_JOB) -> Value:
        """What `quantity` will be in `scope`: what sets it, else what requires it, else unresolved."""
        deciding = self.setting(quantity, scope) or self.requiring(quantity, scope)
        if not deciding:
            return Unresolved(f"nothing says what {quantity} is")
        return join(claim.value for claim in deciding)

    def environment(self, scope: Scope = WHOLE_JOB) -> Iterator[Claim]:
        """The variables in force in `scope`, one claim a name unless branches give several."""
        for quantity in sorted(name for name in self._by_quantity if name.startswith("env.")):
            yield from self.setting(quantity, scope)

    def launch(self, launch_id: str) -> Launch:
        """The launch with this id. Raises KeyError when there is none."""
        for launch in self.launches:
            if launch.id == launch_id:
                return launch
        raise KeyError(launch_id)

    def with_claims(self, more: Iterable[Claim]) -> Job:
        """The same job with further claims."""
        added = tuple(more)
        if not added:
            return self
        job = replace(self, claims=(*self.claims, *added))
        # The new job takes over what this one has sorted; this one, if it is asked again, sorts anew. What follows
        # from claims is added launch by launch, and a copy for each would make that quadratic.
        by_quantity, by_launch = self.__dict__.pop("_by_quantity", None), self.__dict__.pop("_by_launch", None)
        for place, claim in enumerate(added, start=len(self.claims)):
            if by_quantity is not None:
                by_quantity.setdefault(claim.quantity, []).append(claim)
            if by_launch is not None:
                by_launch.setdefault((claim.quantity, claim.scope.launch), []).append((place, claim))
        if by_quantity is not None:
            job.__dict__["_by_quantity"] = by_quantity
        if by_launch is not None:
            job.__dict__["_by_launch"] = by_launch
        return job


def strongest(claims: Iterable[Claim]) -> tuple[Claim, ...]:
    """Of claims that compete, the strongest, and of those the narrowest."""
    kept: list[Claim] = []
    best: tuple[int, int] | None = None
    for claim in claims:
        key = (int(claim.strength), claim.scope.specificity)
        if best is None or key > best:
            best, kept = key, [claim]
        elif key == best:
            kept.append(claim)
    return tuple(kept)
