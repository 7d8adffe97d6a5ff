"""What most rules ask of a job: where a claim stands, in words; how many nodes a launch spans; which launches count."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from preflight.job import (
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
    join,
    lift,
)
from preflight.judgement import Verdict, assigned, unknown

#: Characters of a value in a message; a list of many endpoints is cut.
_LONGEST_VALUE = 60
#: Launchers that start one agent on each node, which then starts the ranks of that node.
AGENT_LAUNCHERS = frozenset(
    {"torchrun", "accelerate", "llamafactory-cli", "paddle", "torch.distributed.launch", "composer", "fabric"}
)
#: What starts its command once on every node or task of an allocation.
SPREADING_WRAPPERS = frozenset({"srun", "mpirun", "mpiexec", "pdsh", "clush", "horovodrun"})
#: Schedulers whose headers are read: the source of their claims, their name, and what starts a line on every node.
SCHEDULERS = {
    "slurm": ("Slurm", "srun --ntasks-per-node=1"),
    "pbs": ("PBS", "mpiexec --ppn 1"),
    "lsf": ("LSF", "blaunch"),
    "cobalt": ("Cobalt", "mpiexec --ppn 1"),
    "flux": ("Flux", "flux run --tasks-per-node=1"),
    "sge": ("Grid Engine", "mpirun --npernode 1"),
}
#: Launchers that themselves reach the other nodes.
REACHING_LAUNCHERS = frozenset({"srun", "mpirun", "mpiexec", "deepspeed", "horovodrun", "colossalai", "torchx"})


def subjects(job: Job) -> Iterator[tuple[str, Scope, Launch | None]]:
    """Each launch with its id and scope; the job as a whole when it has no launch."""
    if not job.launches:
        yield job.name, WHOLE_JOB, None
    for launch in job.launches:
        yield launch.id, launch.scope, launch


def where(claim: Claim) -> str:
    """`train.sbatch:3`, for a message."""
    return f"{claim.span.path}:{claim.span.line}"


def quoted(claim: Claim) -> str:
    """The user's own spelling, in back quotes and on one line, with what it comes to behind it where it names `$X`.

    Every message quotes through this, so that none says `--node_rank=$i` without saying which rank is meant.
    """
    value = _behind_dollar(claim)
    return f"{_spelled(claim)} ({value})" if value else _spelled(claim)


def placed(claim: Claim) -> str:
    """The quoted spelling and its place: `` `--nodes=4` (train.sbatch:2)``, `` `-N $N` (4, train.sbatch:2)``."""
    value = _behind_dollar(claim)
    return f"{_spelled(claim)} ({value + ', ' if value else ''}{where(claim)})"


def editable(claim: Claim) -> str:
    """What to edit to change a claim: its own spelling, or the assignment that its variable gets its value from."""
    return assigned(claim) or _spelled(claim)


def _spelled(claim: Claim) -> str:
    return f"`{' '.join(claim.spelling.split())}`"


def _behind_dollar(claim: Claim) -> str:
    """The known value of a spelling with a variable or substitution in it; empty where the spelling says it all."""
    shown = [_shown(item) for item in claim.alternatives]
    if "$" not in claim.spelling or not all(shown):
        return ""
    # `${NODES:-4}` shows its 4 already.
    if len(shown) == 1 and re.search(rf"(?<![\w.$]){re.escape(shown[0])}(?![\w.])", claim.spelling):
        return ""
    return " or ".join(shown)


def _shown(item: Plain) -> str:
    """A value on one line, a long one cut; empty for what would tell nothing."""
    if item is None or isinstance(item, bool):
        return ""
    text = " ".join((",".join(map(str, item)) if isinstance(item, tuple) else str(item)).split())
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"


def counted(number: Plain, one: str, many: str = "") -> str:
    """`1 node`, `4 nodes`."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def numbers(value: Value) -> tuple[int, ...]:
    """The whole numbers a value may be, text such as "8" read; empty when any alternative is none."""
    return tuple(n for n in alternatives(as_int(value)) if isinstance(n, int))


def texts(value: Value) -> tuple[str, ...]:
    """The texts a value may be; empty when unresolved or when any alternative is no text."""
    found = alternatives(value)
    return tuple(str(item) for item in found) if all(isinstance(item, str) for item in found) else ()


def spoken(values: Iterable[Plain]) -> str:
    """`4`, or `2 or 4` where branches give several."""
    return " or ".join(str(value) for value in values)


def why_unresolved(claims: Iterable[Claim], launch: Launch | None = None) -> tuple[Claim, str] | None:
    """The first of the claims that cannot be relied on, and what it depends on.

    A claim depends on its value being known, and on its branch: one that holds only under a condition which the
    launch itself does not stand under may not be in force.
    """
    for claim in claims:
        if isinstance(claim.value, Unresolved):
            return claim, claim.value.why
        if not _surely_holds(claim, launch):
            return claim, f"the branch `{' '.join(claim.condition.split())[:80]}`"
    return None


def undecided(subject: str, claims: Iterable[Claim], launch: Launch | None = None, *, what: str = "") -> Verdict | None:
    """`unknown` for a subject that hangs on a claim which cannot be relied on; None when all of them can.

    `what` is said first, where the claim's own spelling does not tell what it decides.
    """
    found = why_unresolved(claims, launch)
    if found is None:
        return None
    claim, why = found
    return unknown(subject, f"{what + ': ' if what else ''}{quoted(claim)} is left open: {why}", at=claim)


def _surely_holds(claim: Claim, launch: Launch | None) -> bool:
    condition = claim.condition
    if not condition or (launch is not None and condition == launch.condition):
        return True
    # `if __name__ == "__main__":` is how a script starts, not a branch.
    return "__name__" in condition and " and " not in condition


def deciding(job: Job, quantity: str, scope: Scope) -> tuple[Claim, ...]:
    """The claims that say what `quantity` is in `scope`: those that set it, else those that require it."""
    return job.setting(quantity, scope) or job.requiring(quantity, scope)


def nodes_spanned(job: Job, launch: Launch) -> tuple[Value, tuple[Claim, ...]]:
    """Over how many nodes the ranks of one launch find each other, and the claims that say so.

    What the launcher itself was told (`--nnodes`) comes before what the scheduler grants, because one group of
    ranks never spans more. A plain `python` line that nothing spreads runs on one node however many are granted.
    """
    told = job.requiring("nodes", launch.scope)
    if told:
        return job_value(told), told
    if launch.launcher in REACHING_LAUNCHERS or SPREADING_WRAPPERS.intersection(launch.wrappers):
        claims = job.setting("nodes", launch.scope)
        if claims:
            return job_value(claims), claims
    own = tuple(c for c in job.setting("nodes", launch.scope) if c.scope.launch == launch.id)
    if own:
        return job_value(own), own
    return Unresolved("nothing says over how many nodes it runs"), ()


def job_value(claims: Iterable[Claim]) -> Value:
    """The value several claims in force together leave open."""
    return join(claim.value for claim in claims)


def certainly_several(value: Value) -> bool:
    """Whether every alternative is more than one."""
    found = numbers(value)
    return bool(found) and all(number > 1 for number in found)


def certainly_one(value: Value) -> bool:
    """Whether every alternative is one."""
    found = numbers(value)
    return bool(found) and all(number == 1 for number in found)


def ranks_started(job: Job, scope: Scope) -> tuple[Value, tuple[Claim, ...]]:
    """How many ranks are started in all, and the claims it comes from.

    What sets the world size outright, else nodes x processes per node (nodes set or, failing that, required).
    """
    direct = job.setting("world_size", scope)
    if direct:
        return job_value(direct), roots(direct)
    nodes = job.requiring("nodes", scope) or job.setting("nodes", scope)
    processes = job.setting("processes_per_node", scope)
    if not nodes or not processes:
        return Unresolved("nothing says how many ranks are started"), (*nodes, *processes)
    product = lift(lambda a, b: int(a) * int(b), as_int(job_value(nodes)), as_int(job_value(processes)))
    return product, (*nodes, *processes)


def roots(claims: Iterable[Claim]) -> tuple[Claim, ...]:
    """The claims that somebody wrote: one that follows from others is replaced by those."""
    found: list[Claim] = []
    for claim in claims:
        follows = claim.because and claim.source in ("derived", "slurm")
        found.extend(roots(claim.because) if follows else (claim,))
    return distinct(found)


def distinct(claims: Iterable[Claim]) -> tuple[Claim, ...]:
    """The claims without those that stand at a place already seen."""
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
    return head if colon and ":" not in head and (tail.isdigit() or not tail) else text


def is_loopback(host: str) -> bool:
    """Whether a host name or address can only mean the node itself."""
    name = host.strip().rstrip(".").lower()
    if name in ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback", "::1"):
        return True
    parts = name.split(".")
    return len(parts) == 4 and parts[0] == "127" and all(part.isdigit() for part in parts)


def is_unspecified(host: str) -> bool:
    """Whether it is the address that means "any", which nobody can dial."""
    return host.strip() in ("0.0.0.0", "::", "0")


def on_first_node_only(claim: Claim, launch: Launch) -> bool:
    """Whether a claim says that a batch script runs this launch itself, so on the first node alone."""
    return claim.source in SCHEDULERS and claim.scope.launch == launch.id and "srun" not in launch.wrappers
