"""Ranks whose shares of the data differ in size."""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Unresolved
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers
from preflight.plugins.authoring import Verdict, failed, passed, rule, unknown
from preflight.plugins.claim_text import joined, quoted
from preflight.plugins.questions import each_claim
from preflight_rules.launches import ranks_started
from preflight_rules.scripts.script_facts import definitely_one_rank, launches_of, not_on_several_ranks, stated

_FAULTS = {
    "clamp": "truncates the last rank's share, while those of the others are rounded up",
    "rest": "gives the remainder to the last rank only",
    "stride": "gives the first ranks one more sample than the others",
    "stream": "deals out a stream, whose length nobody knows, so that some ranks get more samples than others",
    "files": "gives ranks as many steps as their own files have samples, and the first ranks one file more",
    "readers": "gives ranks different data sets to read to their end",
}


@rule(
    "DAT020",
    "shares-of-ranks-uneven",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no script computes shares of the data itself",
    passes_with=("distributed_sampler",),
)
def shares_of_ranks_uneven(job: Job) -> Iterator[Verdict]:
    """A hand-written sampler gives some ranks fewer samples than others.

    What it checks: Where samples are divided among ranks by hand, with a share that is rounded up or in turn, the last
    share is padded, dropped or wrapped around, not truncated with `min(...)` or left uneven. A rank that trains on its
    own files, `files[rank::size]`, or on a data set chosen by rank, takes as many steps as the others. A streamed data
    set that `split_dataset_by_node` divides needs a loop that ends at the same step on every rank.

    Why it matters: The last rank has fewer batches. It finishes its epoch first, and the others wait for it in the next
    collective: a deadlock at the end of every epoch if the number of samples is not a multiple of the ranks.

    Example: `per = ceil(n / size)` and `end = min((rank + 1) * per - 1, n - 1)`.

    Fix: Pad the list of indices to a multiple of the ranks, or drop the rest, as DistributedSampler does.

    Known limits: Code elsewhere that balances the shares, as by a step limit, is not found.
    """
    for subject, share in stated(job, "uneven_shards"):
        kind = joined(share.alternatives)
        if definitely_one_rank(job, share) or (kind in ("files", "readers") and _has_servers(job, share)):
            yield passed(subject)
            continue
        joined_by = job.about("joins_uneven")
        if joined_by:
            yield unknown(subject, f"{quoted(joined_by[0])} may let the ranks end together", at=joined_by[0])
            continue
        if isinstance(share.value, Unresolved):
            yield unknown(subject, f"{quoted(share)}: {share.value.why}", at=share)
            continue
        if _comes_out_even(job, share):
            yield passed(subject)
            continue
        yield failed(
            subject,
            f"{quoted(share)} {_FAULTS.get(kind, _FAULTS['clamp'])}: "
            + ("" if kind in ("files", "readers") else "when the number of samples is not a multiple of the ranks, ")
            + "ranks run different numbers of steps and wait for each other.",
            at=share,
            remedy="Let all ranks agree on the number of steps, or divide samples instead of files."
            if kind in ("files", "readers")
            else "Pad the indices to a multiple of the number of ranks (indices += indices[:missing]), or drop the"
            " remainder; DistributedSampler can do either (drop_last).",
        )


def _comes_out_even(job: Job, share: Claim) -> bool:
    """Whether the files are a multiple of the ranks, as far as both are known."""
    counts = [numbers(claim.value) for claim in job.about("divided_items", share.scope) if claim.span == share.span]
    ranks = [numbers(ranks_started(job, launch.scope)[0]) for launch in launches_of(job, share)]
    known = bool(counts and ranks) and all(counts) and all(ranks)
    return known and all(n % size == 0 for n in counts[0] for each in ranks for size in each)


def _has_servers(job: Job, share: Claim) -> bool:
    """Whether the ranks are trainers of parameter servers, whose steps may differ."""
    return any(True in claim.alternatives for claim in job.about("ps_mode", share.scope))


#: Names of lists of files, and of the functions that divide them.
_OF_FILES = re.compile(r"file|path|shard|part|data", re.IGNORECASE)


def _is_of_files(claim: Claim) -> bool:
    return _OF_FILES.search(claim.spelling.partition("[")[0]) is not None


@rule(
    "DAT037",
    "fewer-files-than-ranks",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no rank takes its share of a list whose length is known",
)
def fewer_files_than_ranks(job: Job) -> Iterator[Verdict]:
    """The ranks divide a list of files among each other that has fewer files than there are ranks.

    What it checks: Where a program takes its share of a list by its rank (`files[rank::size]`, `fleet.util.
    get_file_shard(files)`, `files[i * per : (i + 1) * per]` with `per = len(files) // size`), the list has an item for
    each rank, or for each trainer beside parameter servers.

    Why it matters: Some ranks get no file; with a share that is rounded down, none does. They stop at their first read,
    or take no step while the others wait for them.

    Example: `fleet.util.get_file_shard(["a.txt", "b.txt", "c.txt"])` with `--trainer_num 4`.

    Fix: Write the data into at least as many files as there are ranks, or start fewer ranks.

    Known limits: A list in a folder of the tree, or in a settings file beside the program, may not be the one that the
    job is given. Ranks that do not wait for each other may have nothing to do.
    """
    for subject, scope, launch, claim in each_claim(job, "divided_items", where=_is_of_files):
        trainers = job.setting("ps_workers", scope)
        size, because = (job_value(trainers), trainers) if trainers else ranks_started(job, scope)
        found = numbers(size)
        if not found or launch is None:
            yield unknown(subject, "the number of ranks is not known", at=claim)
            continue
        counted = max(numbers(claim.value), default=0)
        if counted >= min(found):
            yield passed(subject)
            continue
        where = claim.because[0] if claim.because else claim
        yield failed(
            subject,
            f"{quoted(claim)} divides {counted} items among {joined(found)} ranks: some of them get none.",
            at=claim,
            also=((where, f"{counted} items"), *((each, "the ranks") for each in because[:1])),
            remedy="Write at least as many files as there are ranks, or start fewer ranks.",
        )


@rule("BAT023", "batch-size-by-rank", severity=Severity.WARNING, otherwise="no batch size is computed from the rank")
def batch_size_by_rank(job: Job) -> Iterator[Verdict]:
    """The batch size of a loader depends on the rank.

    What it checks: The batch size of a DataLoader, sampler, `paddle.batch` or data set of Fleet is not a choice on the
    rank between different numbers (a branch, a table, a function of the script), nor a sum or product with the rank in
    it.

    Why it matters: Gradients are averaged over ranks, not over samples: samples of a small batch count more. The ranks
    also take different numbers of steps over equal shares, and the last ones wait for the others.

    Example: `DataLoader(data, batch_size=64 if rank == 0 else 32)`.

    Fix: Give every rank the same batch size.

    Known limits: A script that weights its gradients by batch size itself is correct.
    """
    for subject, size in stated(job, "batch_size_of_rank"):
        yield not_on_several_ranks(job, subject, size, f"no launch runs the loader of {quoted(size)}") or failed(
            subject,
            f"The batch size `{joined(size.alternatives)}` differs between ranks, but their gradients are averaged"
            " as if it were the same.",
            at=size,
            remedy="Give every rank the same batch size.",
        )


_ORDERS = {
    "no seed": "shuffles without a seed, so that each rank has another order",
    "seed of each rank": "is shuffled with a seed that depends on the rank, so that each rank has another order",
    "unsorted": "has the order of the file system, which may differ between nodes",
}


@rule(
    "DAT036",
    "shards-of-different-orders",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no list is divided by rank",
)
def shards_of_different_orders(job: Job) -> Iterator[Verdict]:
    """Ranks take every n-th item of a list whose order differs between them.

    What it checks: A list that is divided as `items[rank::size]` is shuffled with one seed for all ranks, and a listing
    of files is sorted first (otherwise informational).

    Why it matters: Each rank divides another list: some samples are read by several ranks, others by none. Nothing
    stops; the model is trained on a part of the data, another one at each start.

    Example: `random.shuffle(files)` and `files = files[rank::world_size]` without `random.seed(0)`.

    Fix: Seed with the same number on every rank before shuffling, and sort listings: `sorted(os.listdir(path))`.

    Known limits: A seed that is set in another file is not seen.
    """
    for subject, order in stated(job, "shard_order"):
        kind = joined(order.alternatives)
        yield not_on_several_ranks(job, subject, order) or failed(
            subject,
            f"{quoted(order)} {_ORDERS[kind]}: the parts of the ranks"
            f" {'may overlap' if kind == 'unsorted' else 'overlap'} and leave samples out.",
            at=order,
            remedy="Sort the list." if kind == "unsorted" else "Shuffle with the same seed on every rank.",
            severity=Severity.INFO if kind == "unsorted" else None,
        )
