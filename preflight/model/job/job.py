"""A job: all claims that belong together, with its launches and their files."""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from preflight._util.sequences import grouped
from preflight._util.spans import Span
from preflight.model.job.claim import WHOLE_JOB, Claim, Relation, Scope
from preflight.model.job.value import Unresolved, Value, check_known, in_bounds, join


class NoteKind(enum.Enum):
    """Why a source could read less of a file than it should."""

    UNREADABLE = "unreadable"
    MALFORMED = "malformed"
    #: A line that starts ranks ends in a carriage return, which the shell makes part of its last word.
    LINE_ENDING = "line-ending"
    TOO_LARGE = "too-large"
    TEMPLATE = "template"
    MISSING = "missing"
    OUTSIDE = "outside-root"
    UNSUPPORTED = "unsupported"
    CRASHED = "crashed"


class NoteDetail(enum.Enum):
    """Details of a note that rules and readers need beyond its kind."""

    #: The operating system denied access to an unreadable file.
    DENIED = "denied"
    #: The unreadable path is a directory.
    DIRECTORY = "directory"
    #: DeepSpeed's own reader (Hjson) accepts this malformed JSON.
    HJSON = "hjson"
    #: The indentation is wrong in every version of Python.
    INDENTATION = "indentation"
    #: The missing file exists under a similar name, or in another folder.
    MISNAMED = "misnamed"
    #: The word that a carriage return changes is the value of an option.
    OPTION_VALUE = "option-value"
    OVERWRITTEN = "overwritten"


#: Nothing is known of a file with such a note.
UNSEEN = frozenset({NoteKind.UNREADABLE, NoteKind.TOO_LARGE, NoteKind.MISSING, NoteKind.OUTSIDE, NoteKind.CRASHED})


@dataclass(frozen=True, slots=True)
class Note:
    """Something about an input that limits what can be judged. `required`: the user selected this input.

    Args:
        kind: `unreadable`, `malformed`, `line-ending`, `too-large`, `template`, `missing`, `outside-root`,
            `unsupported` or `crashed`.
        message: a description.
        span: its location.
        detail: set if a rule or a reader distinguishes notes of this kind.
    """

    kind: NoteKind
    message: str
    span: Span
    required: bool = False
    detail: NoteDetail | None = None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Files of a folder that were skipped although their names would qualify.

    Args:
        path: the folder, relative to the root.
        reason: the short reason: `skipped folder name`, `ignored by .gitignore`.
        files: their number.
        more: whether there are more files than were counted.
    """

    path: str
    reason: str
    files: int
    more: bool = False


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file that was read. `path` is relative to the root; `kind` is the name of the source that read it.

    Args:
        sha256: of its content.
        size_bytes: its size.
    """

    path: str
    kind: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Reference:
    """A file that another file names: `role` is `script`, `config`, `hostfile`, `source`, `data`.

    `target` is the path resolved from the root, with forward slashes, not necessarily existing; `scope` is the launch
    the reference belongs to, and the target's claims get that scope.

    Args:
        span: the location of the name.
        is_elsewhere: whether the name counts from a directory that is not known.
    """

    target: str
    role: str
    span: Span
    scope: Scope = WHOLE_JOB
    is_elsewhere: bool = False


#: Represents, among the wrappers of a launch, an unknown program that submits it: it may add options, and expands
#: quoted text.
SUBMISSION = "submission"


@dataclass(frozen=True, slots=True)
class Launch:
    """One command line that starts ranks.

    Args:
        id: `path:line`, followed by `#2` for a second launch on the same line; also `Scope.launch`.
        launcher: `torchrun`, `deepspeed`, `paddle`, `srun` (srun starts python itself), `mpirun`, `python`.
        wrappers: the programs around it, outermost first: `("srun",)`.
        program: the training script relative to the root, empty if unknown.
        arguments: words after the program; None for an unresolved one.
        condition: branch under which it runs; empty = always.
        span: its location.
        started_at: where the script, function or remote shell that contains it is started, outermost first; empty if it
            is in the script itself.
        concurrent: whether later commands run at the same time: it, or what starts it, runs in the background.
    """

    id: str
    launcher: str
    span: Span
    wrappers: tuple[str, ...] = ()
    program: str = ""
    arguments: tuple[str | None, ...] = ()
    condition: str = ""
    started_at: tuple[Span, ...] = ()
    concurrent: bool = False

    @property
    def scope(self) -> Scope:
        """Return the scope in which this launch's own claims are stated."""
        return _scope_of(self.id)


@functools.lru_cache(maxsize=1024)
def _scope_of(launch_id: str) -> Scope:
    return Scope(launch=launch_id)


@dataclass(frozen=True, slots=True)
class Suppression:
    """`# preflight: ignore[ID or name] reason` in a file; applies to findings on `line`.

    Args:
        path: its file.
        names: ids or names of rules.
        reason: the text after them.
        span: the location of the comment.
    """

    path: str
    line: int
    names: tuple[str, ...]
    reason: str
    span: Span


@dataclass(frozen=True)
class Job:
    """Everything that the files state about one job.

    `probable` marks a job assembled from sibling files by a guess (node0.sh, node1.sh): findings that depend on the
    guess are at most warnings.

    Args:
        name: the path of its first file, or the user's path.
        files: every file that was read for it.
        launches: command lines that start its ranks.
        claims: the statements of the files, in their order.
        notes: limits of what can be judged.
        references: files named by other files.
        suppressions: comments that exclude findings from the verdict.
        by_default: the same job where the caller sets none of the variables that its scripts have a default for; None
            if there are none.
        assumed: in that one the variables, each with its default.
    """

    name: str
    files: tuple[InputFile, ...] = ()
    launches: tuple[Launch, ...] = ()
    claims: tuple[Claim, ...] = ()
    notes: tuple[Note, ...] = ()
    references: tuple[Reference, ...] = ()
    suppressions: tuple[Suppression, ...] = ()
    probable: bool = False
    by_default: Job | None = None
    assumed: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        bounded = [in_bounds(claim.value) for claim in self.claims]
        if any(value is not claim.value for value, claim in zip(bounded, self.claims, strict=True)):
            claims = tuple(
                claim if value is claim.value else replace(claim, value=value)
                for value, claim in zip(bounded, self.claims, strict=True)
            )
            object.__setattr__(self, "claims", claims)

    @functools.cached_property
    def _by_quantity(self) -> dict[str, list[Claim]]:
        return grouped((claim.quantity, claim) for claim in self.claims)

    @functools.cached_property
    def _by_launch(self) -> dict[tuple[str, str], list[tuple[int, Claim]]]:
        """Return the claims of each quantity by the launch they apply to (empty: all), with their position in the file
        order.

        Every rule looks at every launch, so searching all claims each time would take quadratic time.
        """
        places = enumerate(self.claims)
        return grouped(((claim.quantity, claim.scope.launch), (place, claim)) for place, claim in places)

    @functools.cached_property
    def named_nodes(self) -> frozenset[str]:
        """Return the nodes that some claim names; all other nodes share the same claims."""
        return frozenset(claim.scope.node for claim in self.claims) - {""}

    @functools.cached_property
    def _in_force(self) -> dict[tuple[str, Scope], tuple[Claim, ...]]:
        """Return the results of `setting`: many rules request the same few quantities."""
        return {}

    def about(self, quantity: str, scope: Scope | None = None) -> tuple[Claim, ...]:
        """Return every claim about `quantity` that applies in `scope` (all of them without one), in file order.

        Raises UnknownQuantity for a name that no source states.
        """
        if quantity not in self._by_quantity:
            check_known(quantity)
            return ()
        if scope is None:
            return tuple(self._by_quantity[quantity])
        found = self._by_launch.get((quantity, ""), [])
        if scope.launch and (own := self._by_launch.get((quantity, scope.launch))):
            found = sorted((*found, *own), key=lambda item: item[0]) if found else own
        return tuple([claim for _, claim in found if claim.scope.covers(scope)])

    def setting(self, quantity: str, scope: Scope = WHOLE_JOB) -> tuple[Claim, ...]:
        """Return the claims that set `quantity` in `scope` and are effective there.

        The strongest claims win, and the narrowest among these; several are returned only if branches state several.
        """
        if quantity not in self._by_quantity:
            check_known(quantity)
            return ()
        found = self._in_force.get((quantity, scope))
        if found is None:
            competing = [claim for claim in self.about(quantity, scope) if claim.relation is Relation.SETS]
            found = self._in_force[quantity, scope] = strongest(competing)
        return found

    def requiring(self, quantity: str, scope: Scope = WHOLE_JOB) -> tuple[Claim, ...]:
        """Return the claims that need `quantity` to equal a value: for each source, the effective ones."""
        found = self.about(quantity, scope)
        if not found:
            return ()
        by_source = grouped((claim.source, claim) for claim in found if claim.relation is Relation.REQUIRES)
        return tuple(claim for competing in by_source.values() for claim in strongest(competing))

    def value(self, quantity: str, scope: Scope = WHOLE_JOB) -> Value:
        """Return the value of `quantity` in `scope`: from the claims that set it, otherwise from those that require it,
        otherwise unresolved.
        """
        claims = self.value_claims(quantity, scope)
        if not claims:
            return Unresolved(f"the files do not state {quantity}")
        return join(claim.value for claim in claims)

    def value_claims(self, quantity: str, scope: Scope = WHOLE_JOB) -> tuple[Claim, ...]:
        """Return the claims that give `value`: those that set `quantity` in `scope`, otherwise those that require
        it.
        """
        return self.setting(quantity, scope) or self.requiring(quantity, scope)

    def environment(self, scope: Scope = WHOLE_JOB) -> Iterator[Claim]:
        """Yield the effective variables in `scope`, one claim per name unless branches give several."""
        for quantity in sorted(name for name in self._by_quantity if name.startswith("env.")):
            yield from self.setting(quantity, scope)

    def settings(self, framework: str, scope: Scope | None = None) -> Iterator[tuple[str, Claim]]:
        """Yield every key of a framework's configuration that applies in `scope` (by default all), with its claim."""
        prefix = f"setting.{framework}."
        for quantity in self._by_quantity:
            if quantity.startswith(prefix):
                for claim in self.about(quantity, scope):
                    yield quantity[len(prefix) :], claim

    def launch(self, launch_id: str) -> Launch:
        """Return the launch with this id. Raises KeyError when there is none."""
        for launch in self.launches:
            if launch.id == launch_id:
                return launch
        raise KeyError(launch_id)

    def with_claims(self, more: Iterable[Claim]) -> Job:
        """Return the job with additional claims."""
        added = tuple(more)
        if not added:
            return self
        job = replace(self, claims=(*self.claims, *added))
        # The new job takes over the sorted claims; this one, if used again, sorts its own. Derived claims are added
        # launch by launch, and a copy for each launch would take quadratic time.
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
    """Return the strongest of competing claims, and the narrowest of those."""
    kept: list[Claim] = []
    best: tuple[int, int] | None = None
    for claim in claims:
        key = (int(claim.strength), claim.scope.specificity)
        if best is None or key > best:
            best, kept = key, [claim]
        elif key == best:
            kept.append(claim)
    return tuple(kept)
