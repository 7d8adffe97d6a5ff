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
    """The reason why a source could not read a part of a file."""

    UNREADABLE = "unreadable"
    MALFORMED = "malformed"
    #: A line that starts ranks ends in a carriage return, which the shell adds to the last word of the line.
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
    """A property of an input that limits what can be judged.

    Args:
        kind: `unreadable`, `malformed`, `line-ending`, `too-large`, `template`, `missing`, `outside-root`,
            `unsupported` or `crashed`.
        message: a description of the limit.
        span: the location that the note is about.
        required: whether the user selected this input.
        detail: a further distinction for rules and readers; null if they treat all notes of this kind alike.
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
        path: the path of the folder relative to the root.
        reason: the short reason: `skipped folder name`, `ignored by .gitignore`.
        files: the number of files.
        more: whether there are more files than were counted.
    """

    path: str
    reason: str
    files: int
    more: bool = False


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file that was read.

    Args:
        path: the path relative to the root.
        kind: the name of the source that read the file.
        sha256: the hash of its content.
        size_bytes: its size.
    """

    path: str
    kind: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Reference:
    """The name of a file in another file.

    Args:
        target: the path of the named file relative to the root, with forward slashes. The file need not exist.
        role: `script`, `config`, `hostfile`, `source` or `data`.
        span: the location of the name.
        scope: the launch that the reference belongs to. The claims of the named file get this scope.
        is_elsewhere: whether the name is relative to a directory that is not known.
    """

    target: str
    role: str
    span: Span
    scope: Scope = WHOLE_JOB
    is_elsewhere: bool = False


#: Represents an unknown program that submits a launch, in the list of its wrappers. The program may add options, and
#: expands quoted text.
SUBMISSION = "submission"


@dataclass(frozen=True, slots=True)
class Launch:
    """One command line that starts ranks.

    Args:
        id: `path:line`, followed by `#2` for a second launch on the same line; also `Scope.launch`.
        launcher: `torchrun`, `deepspeed`, `paddle`, `srun` (srun starts python itself), `mpirun`, `python`.
        wrappers: the programs that start the launcher, outermost first: `("srun",)`.
        program: the path of the training script relative to the root; empty if it is unknown.
        arguments: the words after the program; null for an unresolved word.
        condition: the condition of the branch that contains the launch; empty if it always runs.
        span: the location of the launch.
        started_at: the locations that start the script, function or remote shell which contains the launch, outermost
            first; empty if the launch is in the script itself.
        concurrent: whether later commands run at the same time, because the launch, or the command that starts it, runs
            in the background.
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
    """A comment `# preflight: ignore[ID or name] reason` in a file.

    Args:
        path: the path of the file.
        line: the line to whose findings the comment applies.
        names: the ids or names of rules.
        reason: the text after the names.
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

    Args:
        name: the path of its first file, or the user's path.
        files: every file that was read for the job.
        launches: the command lines that start its ranks.
        claims: the statements of the files, in their order.
        notes: the limits of what can be judged.
        references: the files that other files name.
        suppressions: the comments that exclude findings from the verdict.
        probable: whether the job was assembled from sibling files by a guess (node0.sh, node1.sh). Findings that depend
            on the guess are at most warnings.
        by_default: the same job if the caller sets none of the variables for which its scripts have a default; null if
            there are no such variables.
        assumed: the variables that `by_default` assumes to be unset, each with its default.
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
        bounded_values = [in_bounds(claim.value) for claim in self.claims]
        if any(value is not claim.value for value, claim in zip(bounded_values, self.claims, strict=True)):
            claims = tuple(
                claim if value is claim.value else replace(claim, value=value)
                for value, claim in zip(bounded_values, self.claims, strict=True)
            )
            object.__setattr__(self, "claims", claims)

    @functools.cached_property
    def _by_quantity(self) -> dict[str, list[Claim]]:
        return grouped((claim.quantity, claim) for claim in self.claims)

    @functools.cached_property
    def _by_launch(self) -> dict[tuple[str, str], list[tuple[int, Claim]]]:
        """Return the claims by quantity and launch ("" for all) with their positions, to avoid quadratic searches."""
        numbered_claims = enumerate(self.claims)
        return grouped(((claim.quantity, claim.scope.launch), (index, claim)) for index, claim in numbered_claims)

    @functools.cached_property
    def named_nodes(self) -> frozenset[str]:
        """Return the nodes that a claim names; all other nodes share the same claims."""
        return frozenset(claim.scope.node for claim in self.claims) - {""}

    @functools.cached_property
    def _setting_cache(self) -> dict[tuple[str, Scope], tuple[Claim, ...]]:
        """Return the cache of `setting`: many rules request the same few quantities."""
        return {}

    def about(self, quantity: str, scope: Scope | None = None) -> tuple[Claim, ...]:
        """Return every claim about `quantity` that applies in `scope` (without a scope, all claims), in file order.

        Raises UnknownQuantity for a name that no source states.
        """
        if quantity not in self._by_quantity:
            check_known(quantity)
            return ()
        if scope is None:
            return tuple(self._by_quantity[quantity])
        indexed_claims = self._by_launch.get((quantity, ""), [])
        if scope.launch and (launch_claims := self._by_launch.get((quantity, scope.launch))):
            indexed_claims = (
                sorted((*indexed_claims, *launch_claims), key=lambda entry: entry[0])
                if indexed_claims
                else launch_claims
            )
        return tuple([claim for _, claim in indexed_claims if claim.scope.covers(scope)])

    def setting(self, quantity: str, scope: Scope = WHOLE_JOB) -> tuple[Claim, ...]:
        """Return the claims that set `quantity` in `scope` and are effective there.

        The strongest claims win, and of these the most specific. Several claims are returned only if several branches
        state the quantity.
        """
        if quantity not in self._by_quantity:
            check_known(quantity)
            return ()
        effective_claims = self._setting_cache.get((quantity, scope))
        if effective_claims is None:
            competing_claims = [claim for claim in self.about(quantity, scope) if claim.relation is Relation.SETS]
            effective_claims = self._setting_cache[quantity, scope] = strongest(competing_claims)
        return effective_claims

    def requirement_claims(self, quantity: str, scope: Scope = WHOLE_JOB) -> tuple[Claim, ...]:
        """Return the claims that require `quantity` to equal a value: for each source, the effective claims."""
        claims = self.about(quantity, scope)
        if not claims:
            return ()
        claims_by_source = grouped((claim.source, claim) for claim in claims if claim.relation is Relation.REQUIRES)
        return tuple(claim for competing_claims in claims_by_source.values() for claim in strongest(competing_claims))

    def value(self, quantity: str, scope: Scope = WHOLE_JOB) -> Value:
        """Return the value of `quantity` in `scope` according to `value_claims`; unresolved if there are none."""
        claims = self.value_claims(quantity, scope)
        if not claims:
            return Unresolved(f"the files do not give {quantity}")
        return join(claim.value for claim in claims)

    def value_claims(self, quantity: str, scope: Scope = WHOLE_JOB) -> tuple[Claim, ...]:
        """Return the claims that set `quantity` in `scope`; without any, the claims that require a value of it."""
        return self.setting(quantity, scope) or self.requirement_claims(quantity, scope)

    def environment(self, scope: Scope = WHOLE_JOB) -> Iterator[Claim]:
        """Yield the claims of the effective environment variables in `scope`; several for one if branches differ."""
        for quantity in sorted(name for name in self._by_quantity if name.startswith("env.")):
            yield from self.setting(quantity, scope)

    def settings(self, framework: str, scope: Scope | None = None) -> Iterator[tuple[str, Claim]]:
        """Yield every key of a framework's configuration in `scope` (without a scope, every key), with its claim."""
        prefix = f"setting.{framework}."
        for quantity in self._by_quantity:
            if quantity.startswith(prefix):
                for claim in self.about(quantity, scope):
                    yield quantity[len(prefix) :], claim

    def launch(self, launch_id: str) -> Launch:
        """Return the launch with this id. Raises KeyError if it does not exist."""
        for launch in self.launches:
            if launch.id == launch_id:
                return launch
        raise KeyError(launch_id)

    def with_claims(self, claims: Iterable[Claim]) -> Job:
        """Return the job with additional claims."""
        added_claims = tuple(claims)
        if not added_claims:
            return self
        job = replace(self, claims=(*self.claims, *added_claims))
        # The new job takes over the indexes of the claims; this job, if it is used again, builds new indexes. Derived
        # claims are added launch by launch, and a copy for each launch would take quadratic time.
        by_quantity, by_launch = self.__dict__.pop("_by_quantity", None), self.__dict__.pop("_by_launch", None)
        for index, claim in enumerate(added_claims, start=len(self.claims)):
            if by_quantity is not None:
                by_quantity.setdefault(claim.quantity, []).append(claim)
            if by_launch is not None:
                by_launch.setdefault((claim.quantity, claim.scope.launch), []).append((index, claim))
        if by_quantity is not None:
            job.__dict__["_by_quantity"] = by_quantity
        if by_launch is not None:
            job.__dict__["_by_launch"] = by_launch
        return job


def strongest(claims: Iterable[Claim]) -> tuple[Claim, ...]:
    """Return the strongest of competing claims, and of these the most specific."""
    strongest_claims: list[Claim] = []
    best_key: tuple[int, int] | None = None
    for claim in claims:
        key = (int(claim.strength), claim.scope.specificity)
        if best_key is None or key > best_key:
            best_key, strongest_claims = key, [claim]
        elif key == best_key:
            strongest_claims.append(claim)
    return tuple(strongest_claims)
