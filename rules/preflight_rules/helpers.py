"""What most rules need: claims quoted in messages, and the nodes and ranks of a launch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from preflight.model.job import (
    WHOLE_JOB,
    Claim,
    Job,
    Launch,
    Plain,
    Scope,
    Unresolved,
    Value,
    alternatives,
    as_int,
    is_whole_number,
    lift,
)
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers
from preflight.plugins.authoring import Verdict, argument_of, assigned, unknown

#: Longest value in a message, in characters; a longer one is cut.
_MAX_VALUE_LENGTH = 60
#: Launchers that start one agent on each node, which then starts the ranks of that node.
AGENT_LAUNCHERS = frozenset(
    {"torchrun", "accelerate", "llamafactory-cli", "paddle", "torch.distributed.launch", "composer", "fabric"}
)
#: What starts its command once on every node or task of an allocation.
SPREADING_WRAPPERS = frozenset({"srun", "mpirun", "mpiexec", "pdsh", "clush", "horovodrun"})
#: Schedulers whose headers are read: the source of their claims, their name, and a command that runs on every node.
SCHEDULERS = {
    "slurm": ("Slurm", "srun --ntasks-per-node=1"),
    "pbs": ("PBS", "mpiexec --ppn 1"),
    "lsf": ("LSF", "blaunch"),
    "cobalt": ("Cobalt", "mpiexec --ppn 1"),
    "flux": ("Flux", "flux run --tasks-per-node=1"),
    "sge": ("Grid Engine", "mpirun --npernode 1"),
}
#: Launchers that start processes on the other nodes themselves.
REACHING_LAUNCHERS = frozenset({"srun", "mpirun", "mpiexec", "deepspeed", "horovodrun", "colossalai", "torchx"})
#: A word in place of a number that is not known yet.
_PLACEHOLDER = re.compile(r"<.*|\{.*\}|\[.*\]|[A-Z][A-Z0-9_]*|[a-z]+(?:_[a-z]+)+|x+|\?+|\.\.\.")


def is_placeholder(word: str) -> bool:
    """Whether a word is a placeholder for a number: `<n>`, `{rank}`, `N`, `NUM_NODES`, `your_nodes`, `xx`."""
    return _PLACEHOLDER.fullmatch(word) is not None


def subjects(job: Job) -> Iterator[tuple[str, Scope, Launch | None]]:
    """Each launch with its id and scope; the job as a whole when it has no launch."""
    if not job.launches:
        yield job.name, WHOLE_JOB, None
    for launch in job.launches:
        yield launch.id, launch.scope, launch


def where(claim: Claim) -> str:
    """`train.sbatch:3`, for a message: the line of the call where an argument gives the value."""
    span = argument_of(claim) or claim.span
    return f"{span.path}:{span.line}"


def starting_file(launch: Launch) -> str:
    """The script that the user starts, which may start the one that holds the launch line."""
    return launch.started_at[0].path if launch.started_at else launch.span.path


def is_same_line_again(first: Launch, second: Launch) -> bool:
    """Whether two launches are one line with an `&` of its own, in a script that is started twice.

    Nothing says that the two starts of the script overlap: the line runs in the background of each.
    """
    return first.span == second.span and first.span.snippet.rstrip().endswith("&")


def quoted(claim: Claim) -> str:
    """A claim as the user wrote it, in back quotes on one line, followed by its value where it contains `$X`.

    Messages quote claims with this function, so that `--node_rank=$i` always comes with the rank.
    """
    value = _variable_name(claim)
    return f"{_as_written(claim)} ({value})" if value else _as_written(claim)


def placed(claim: Claim) -> str:
    """The quoted claim and its location: `` `--nodes=4` (train.sbatch:2)``, `` `-N $N` (4, train.sbatch:2)``."""
    value = _variable_name(claim)
    return f"{_as_written(claim)} ({value + ', ' if value else ''}{where(claim)})"


def editable(claim: Claim) -> str:
    """What to edit to change a claim: the claim itself, or the assignment of the variable that it uses."""
    return assigned(claim) or _as_written(claim)


def _as_written(claim: Claim) -> str:
    return f"`{' '.join(claim.spelling.split())}`"


def _variable_name(claim: Claim) -> str:
    """The value of a claim that contains a variable or substitution; empty where the text already shows it."""
    shown = [_value_text(item) for item in claim.alternatives]
    if "$" not in claim.spelling or not all(shown):
        return ""
    # `${NODES:-4}` shows its 4 already.
    if len(shown) == 1 and re.search(rf"(?<![\w.$]){re.escape(shown[0])}(?![\w.])", claim.spelling):
        return ""
    return " or ".join(shown)


def _value_text(item: Plain) -> str:
    """A value on one line, cut if long; empty for null and booleans."""
    if item is None or isinstance(item, bool):
        return ""
    text = " ".join((",".join(map(str, item)) if isinstance(item, tuple) else str(item)).split())
    return text if len(text) <= _MAX_VALUE_LENGTH else text[: _MAX_VALUE_LENGTH - 1] + "…"


def counted(number: Plain, singular: str, many: str = "") -> str:
    """`1 node`, `4 nodes`."""
    return f"{number} {singular if number == 1 else many or singular + 's'}"


def joined(values: Iterable[Plain]) -> str:
    """`4`, or `2 or 4` where branches give several."""
    return " or ".join(str(value) for value in values)


def why_unresolved(claims: Iterable[Claim], launch: Launch | None = None) -> tuple[Claim, str] | None:
    """The first claim without a certain value, and why it is uncertain.

    A claim depends on its value being known, and on its branch: one that holds only under a condition which the
    launch itself is not under may not be in force.
    """
    for claim in claims:
        if isinstance(claim.value, Unresolved):
            return claim, claim.value.why
        if not _definitely_holds(claim, launch):
            return claim, f"the branch `{' '.join(claim.condition.split())[:80]}`"
    return None


def undecided(
    subject: str, claims: Iterable[Claim], launch: Launch | None = None, *, quantity: str = ""
) -> Verdict | None:
    """`unknown` for a subject that depends on a claim without a certain value; None when all claims have one.

    `quantity` names the quantity, where the claim's own text does not show it.
    """
    found = why_unresolved(claims, launch)
    if found is None:
        return None
    claim, why = found
    return unknown(subject, f"{quantity + ': ' if quantity else ''}{quoted(claim)} is unknown: {why}", at=claim)


def _definitely_holds(claim: Claim, launch: Launch | None) -> bool:
    condition = claim.condition
    if not condition or (launch is not None and condition == launch.condition):
        return True
    # `if __name__ == "__main__":` is the entry of a script, not a branch.
    return "__name__" in condition and " and " not in condition


def nodes_spanned(job: Job, launch: Launch) -> tuple[Value, tuple[Claim, ...]]:
    """The number of nodes in the rank group of one launch, and the claims that give it.

    The launcher's own number (`--nnodes`) wins over what the scheduler grants, because a group never spans more nodes.
    A plain `python` line runs on one node, however many are granted.
    """
    stated = job.requiring("nodes", launch.scope)
    if stated:
        return job_value(stated), stated
    if launch.launcher in REACHING_LAUNCHERS or SPREADING_WRAPPERS.intersection(launch.wrappers):
        claims = job.setting("nodes", launch.scope)
        if claims:
            return job_value(claims), claims
    own = tuple(c for c in job.setting("nodes", launch.scope) if c.scope.launch == launch.id)
    if own:
        return job_value(own), own
    return Unresolved("the number of nodes is not given"), ()


def certainly_several(value: Value) -> bool:
    """Whether every alternative is more than one."""
    found = numbers(value)
    return bool(found) and all(number > 1 for number in found)


def certainly_one(value: Value) -> bool:
    """Whether every alternative is one."""
    found = numbers(value)
    return bool(found) and all(number == 1 for number in found)


def ranks_started(job: Job, scope: Scope) -> tuple[Value, tuple[Claim, ...]]:
    """The number of ranks of the whole launch, and the claims that it is computed from.

    The world size if it is set, otherwise nodes x processes per node.
    """
    direct = job.setting("world_size", scope)
    if direct:
        return _at_least_one(job_value(direct)), roots(direct)
    nodes = job.requiring("nodes", scope) or job.setting("nodes", scope)
    processes = job.setting("processes_per_node", scope)
    if not nodes or not processes:
        return Unresolved("the number of ranks is not given"), (*nodes, *processes)
    product = lift(lambda a, b: int(a) * int(b), as_int(job_value(nodes)), as_int(job_value(processes)))
    return _at_least_one(product), (*nodes, *processes)


def _at_least_one(count: Value) -> Value:
    """The same count, unresolved where it may be zero or negative."""
    if any(isinstance(singular, int | float) and singular < 1 for singular in alternatives(count)):
        return Unresolved("the number of ranks is not positive")
    return count


def roots(claims: Iterable[Claim]) -> tuple[Claim, ...]:
    """The claims that are written in files: a derived claim is replaced by the claims that it is derived from."""
    found: list[Claim] = []
    for claim in claims:
        follows = claim.because and claim.source in ("derived", "slurm")
        found.extend(roots(claim.because) if follows else (claim,))
    return distinct(found)


def distinct(claims: Iterable[Claim]) -> tuple[Claim, ...]:
    """The claims without repetitions of one quantity at one location."""
    seen: set[tuple[str, int, int, str]] = set()
    kept: list[Claim] = []
    for claim in claims:
        key = (claim.span.path, claim.span.line, claim.span.column, claim.quantity)
        if key not in seen:
            seen.add(key)
            kept.append(claim)
    return tuple(kept)


def host_of(endpoint: str) -> str:
    """The host of `host`, `host:port`, `[::1]:port` or `::1`."""
    text = endpoint.strip()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    head, colon, tail = text.rpartition(":")
    return head if colon and ":" not in head and (is_whole_number(tail) or not tail) else text


def is_unspecified(host: str) -> bool:
    """Whether `host` is the unspecified address, which means every interface and cannot be dialled."""
    return host.strip() in ("0.0.0.0", "::", "0")


def on_first_node_only(claim: Claim, launch: Launch) -> bool:
    """Whether a claim shows that the batch script runs this launch directly, so on the first node alone."""
    return claim.source in SCHEDULERS and claim.scope.launch == launch.id and "srun" not in launch.wrappers
