"""Paddle's FLAGS_ variables: memory fractions, RPC deadlines and ignored settings."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Launch
from preflight.model.job.value import texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import placed, quoted
from preflight_rules.rendezvous.variables import variables

#: Variables that are a fraction of a memory, and the memory.
_SHARES = {
    "FLAGS_fraction_of_gpu_memory_to_use": "the GPU's memory",
    "FLAGS_fraction_of_cpu_memory_to_use": "the host's memory",
    "FLAGS_fraction_of_cuda_pinned_memory_to_use": "the pinned memory",
    "FLAGS_memory_fraction_of_eager_deletion": "the variables to be freed",
}
#: The strategy that allocates on demand and ignores the initial fraction.
_AUTO_GROWTH = "auto_growth"
#: Milliseconds. Paddle's own default is 180000; a step with a large table takes seconds.
_SHORT_DEADLINE_MS = 10_000
_COMMUNICATOR = "FLAGS_communicator_"


def _number(claim: Claim) -> float | None:
    found = texts(claim.value)
    if len(found) != 1:
        return None
    try:
        return float(found[0])
    except ValueError:
        return None


def _flags(job: Job) -> Iterator[tuple[str, Launch | None, str, Claim]]:
    return (
        (subject, launch, name, claim) for subject, launch, name, claim in variables(job) if name.startswith("FLAGS_")
    )


@rule("FLG001", "memory-share-out-of-range", severity=Severity.ERROR, otherwise="no memory fraction is set for Paddle")
def memory_share_out_of_range(job: Job) -> Iterator[Verdict]:
    """A FLAGS_ variable for a fraction of memory is not a number from 0 to 1.

    What it checks: FLAGS_fraction_of_gpu_memory_to_use, FLAGS_fraction_of_cpu_memory_to_use,
    FLAGS_fraction_of_cuda_pinned_memory_to_use and FLAGS_memory_fraction_of_eager_deletion lie between 0 and 1.

    Why it matters: With more than all of the memory the first allocation fails on every rank. A value that is not a
    number is rejected when Paddle is imported.

    Example: `export FLAGS_fraction_of_gpu_memory_to_use=92`, meant to be 0.92.

    Fix: Write the value as a fraction.

    Known limits: Whether the share leaves room for other processes of the GPU is not judged.
    """
    for subject, launch, name, claim in _flags(job):
        if name not in _SHARES:
            continue
        share = _number(claim)
        if undecided_verdict := undecided(subject, (claim,), launch):
            yield undecided_verdict
        elif share is None or not 0 <= share <= 1:
            wanted = f"{share / 100:g}" if share is not None and 1 < share <= 100 else "a number from 0 to 1"
            yield failed(
                subject,
                f"{quoted(claim)} is not a valid fraction of {_SHARES[name]}: expected a number from 0 to 1.",
                at=claim,
                remedy=f"Write {wanted}.",
            )
        else:
            yield passed(subject)


@rule(
    "FLG002",
    "memory-flags-exclude-each-other",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no fraction of GPU memory is set for Paddle",
)
def memory_flags_exclude_each_other(job: Job) -> Iterator[Verdict]:
    """One memory setting of Paddle overrides another.

    What it checks: FLAGS_fraction_of_gpu_memory_to_use is not set together with FLAGS_initial_gpu_memory_in_mb, nor
    with FLAGS_allocator_strategy=auto_growth.

    Why it matters: The initial size overrides the share, and the growing allocator takes nothing at the start: the
    limit that someone set for a shared GPU does not hold, and another process there runs out of memory.

    Example: `FLAGS_fraction_of_gpu_memory_to_use=0.4` and `FLAGS_initial_gpu_memory_in_mb=8000`.

    Fix: Keep one of the two. To bound the growing allocator set FLAGS_gpu_memory_limit_mb.

    Known limits: A growing allocator that is in force because it is the default (Paddle 2.0 on) is not reported.
    """
    by_flag = {(subject, name): (launch, claim) for subject, launch, name, claim in _flags(job)}
    for (subject, name), (launch, share) in by_flag.items():
        if name != "FLAGS_fraction_of_gpu_memory_to_use":
            continue
        initial = by_flag.get((subject, "FLAGS_initial_gpu_memory_in_mb"))
        strategy = by_flag.get((subject, "FLAGS_allocator_strategy"))
        others = [pair[1] for pair in (initial, strategy) if pair is not None]
        if undecided_verdict := undecided(subject, (share, *others), launch):
            yield undecided_verdict
        elif initial is not None and (_number(initial[1]) or 0) > 0:
            yield failed(
                subject,
                f"{quoted(share)} has no effect with {placed(initial[1])}, which overrides it.",
                at=share,
                also=((initial[1], "overrides it"),),
                remedy="Keep one of the two.",
            )
        elif strategy is not None and texts(strategy[1].value) == (_AUTO_GROWTH,) and _number(share) not in (None, 0.0):
            yield failed(
                subject,
                f"{quoted(share)} has no effect with {placed(strategy[1])}, which allocates on demand.",
                at=share,
                also=((strategy[1], "allocates on demand"),),
                remedy="Remove it; FLAGS_gpu_memory_limit_mb bounds the growing allocator.",
                severity=Severity.INFO,
            )
        else:
            yield passed(subject)


@rule(
    "FLG003",
    "rpc-deadline-too-short",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="FLAGS_rpc_deadline is not set",
)
def rpc_deadline_too_short(job: Job) -> Iterator[Verdict]:
    """Requests to parameter servers time out after a few seconds.

    What it checks: FLAGS_rpc_deadline, in milliseconds, is 10000 or more.

    Why it matters: A trainer waits for its servers as long as the slowest trainer of a synchronous step takes, and for
    all of the start of the servers. With a short deadline the trainers die one after the other; a value such as 180 was
    usually meant in seconds.

    Example: `export FLAGS_rpc_deadline=300`.

    Fix: Write milliseconds: 300000 for five minutes.

    Known limits: Only the legacy RPC (Fluid 0.15 to 1.8) reads it.
    """
    for subject, launch, name, claim in _flags(job):
        if name != "FLAGS_rpc_deadline":
            continue
        deadline = _number(claim)
        if undecided_verdict := undecided(subject, (claim,), launch):
            yield undecided_verdict
        elif deadline is None:
            yield unknown(subject, f"{quoted(claim)} is not a number", at=claim)
        elif 0 <= deadline < _SHORT_DEADLINE_MS:
            yield failed(
                subject,
                f"{quoted(claim)} makes requests time out after {deadline / 1000:g} s: the unit is milliseconds, and"
                " the default is 180000.",
                at=claim,
                remedy=f"Write {int(deadline * 1000)}, if {deadline:g} seconds are intended."
                if deadline
                else "Leave it out.",
            )
        else:
            yield passed(subject)


@rule(
    "FLG004",
    "communicator-flag-without-communicator",
    severity=Severity.INFO,
    otherwise="no communicator setting is set",
    profile="pedantic",
)
def communicator_flag_without_communicator(job: Job) -> Iterator[Verdict]:
    """A job sets an option of the asynchronous communicator but does not use it.

    What it checks: FLAGS_communicator_ variables are set where parameter servers update asynchronously.

    Why it matters: In synchronous and in collective training nothing reads them, so they have no effect.

    Example: `FLAGS_communicator_send_queue_size=20` in a job with `sync_mode=True`.

    Fix: Leave them out, or update asynchronously.

    Known limits: Half-asynchronous training sets most of them itself, whatever the variable says.
    """
    for subject, launch, name, claim in _flags(job):
        if not name.startswith(_COMMUNICATOR):
            continue
        scope = launch.scope if launch is not None else claim.scope
        modes = job.about("ps_update_mode", scope)
        undecided_verdict = undecided(subject, (claim, *modes), launch)
        found = {text for mode in modes for text in texts(mode.value)}
        if undecided_verdict is not None or not found:
            yield undecided_verdict or unknown(subject, f"{quoted(claim)}: the update mode is not given", at=claim)
        elif found == {"sync"}:
            yield failed(
                subject,
                f"{quoted(claim)} is read by asynchronous trainers only, but {placed(modes[0])} updates synchronously.",
                at=claim,
                also=((modes[0], "synchronous"),),
                remedy="Remove it, or update asynchronously.",
            )
        else:
            yield passed(subject)
