"""Ranks that run different numbers of steps, because their shares of the data differ."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Job, Unresolved
from preflight.judgement import Verdict, failed, not_applicable, passed, rule, unknown
from preflight.outcome import Confidence, Severity
from preflight_rules.reading import quoted, spoken, subjects
from preflight_rules.scripts.script_reading import stated, surely_one_rank

_WHAT = {
    "clamp": "cuts off the last rank's share, which was rounded up for the others",
    "rest": "gives the last rank what is left over, which the others do not get",
    "stride": "gives the first ranks one sample more than the others",
}


@rule(
    "DAT020",
    "shares-of-ranks-uneven",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("mlcommons/storage#455", "Lightning-AI/pytorch-lightning#13498"),
)
def shares_of_ranks_uneven(job: Job) -> Iterator[Verdict]:
    """A sampler written by hand gives some ranks fewer samples than others.

    What it checks:
        Where samples are divided among ranks by hand, with a share that is rounded up or in turn, what is missing at
        the end is padded, dropped or wrapped around, not cut off with `min(...)` or left to the last rank.

    Why it matters:
        The last rank has fewer batches. When it is done with its epoch, the others wait for it in the next
        collective: a deadlock at every end of an epoch where the number of samples is no multiple of the ranks.

    Example:
        `per = ceil(n / size)` and `end = min((rank + 1) * per - 1, n - 1)`.

    Fix:
        Pad the list of indices to a multiple of the ranks, or drop the rest, as DistributedSampler does.

    Known limits:
        Code that evens the shares elsewhere, with a Join context or a limit on the steps, is not seen.

    Evidence:
        mlcommons/storage#455, Lightning-AI/pytorch-lightning#13498.
    """
    met = False
    for subject, share in stated(job, "uneven_shards"):
        met = True
        if surely_one_rank(job, share):
            yield passed(subject)
            continue
        if isinstance(share.value, Unresolved):
            yield unknown(subject, f"{quoted(share)}: {share.value.why}", at=share)
            continue
        yield failed(
            subject,
            f"{quoted(share)} {_WHAT.get(spoken(share.alternatives), _WHAT['clamp'])}: where the samples are no"
            " multiple of the ranks they run different numbers of steps, and those that are done wait for the others.",
            at=share,
            remedy="Pad the indices to a multiple of the ranks (indices += indices[:missing]), or drop the rest on"
            " every rank; DistributedSampler does either (drop_last).",
        )
    if not met and job.about("distributed_sampler"):
        met = True
        yield passed(next((subject for subject, _, _ in subjects(job)), job.name))
    if not met:
        yield not_applicable(job.name, "no share of the data is computed by hand")
