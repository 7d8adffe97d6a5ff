"""Loaders that torch refuses, and data that every rank reads whole."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Claim, Job, Unresolved
from preflight.judgement import Verdict, failed, not_applicable, passed, rule, unknown
from preflight.outcome import Confidence, Severity
from preflight_rules.reading import numbers, quoted, spoken
from preflight_rules.scripts.script_reading import is_run, stated, surely_one_rank


@rule(
    "DAT021",
    "loader-arguments-refused",
    severity=Severity.ERROR,
    profile="gate",
    evidence=("https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader",),
)
def loader_arguments_refused(job: Job) -> Iterator[Verdict]:
    """A DataLoader is given arguments that exclude each other.

    What it checks:
        `prefetch_factor` and `persistent_workers=True` come with worker processes; `batch_sampler` comes without
        `batch_size`, `shuffle`, `sampler` and `drop_last`.

    Why it matters:
        DataLoader raises ValueError on every rank, often only after the model was loaded.

    Example:
        `DataLoader(ds, batch_size=8, persistent_workers=True)`, which has no workers.

    Fix:
        Give `num_workers`, or drop the argument; with a batch sampler drop the four.

    Known limits:
        Arguments handed over as `**options` are not known. A number of workers from the command line is judged by its
        default only where that is certain.

    Evidence:
        torch.utils.data.DataLoader documentation.
    """
    met = False
    for quantity in ("dataloader_prefetch_factor", "dataloader_persistent_workers"):
        for subject, given in stated(job, quantity):
            met = True
            workers = _of_loader(job, "dataloader_workers", given)
            counts = numbers(workers.value) if workers is not None else (0,)
            needs = all(value not in (None, False) for value in given.alternatives) and bool(given.alternatives)
            if workers is not None and isinstance(workers.value, Unresolved):
                yield unknown(subject, f"{quoted(given)} is left open: {workers.value.why}", at=given)
            elif needs and counts and max(counts) == 0:
                yield failed(
                    subject,
                    f"{quoted(given)} needs worker processes, but num_workers is 0: DataLoader raises ValueError.",
                    at=given,
                    also=((workers, "no workers"),) if workers is not None else (),
                    remedy="Give num_workers, or leave the argument out.",
                )
            else:
                yield passed(subject)
    for subject, sampler in stated(job, "dataloader_sampler"):
        if not sampler.spelling.startswith("batch_sampler"):
            continue
        met = True
        excluded = [claim for claim in _excluded(job, sampler) if claim.condition == sampler.condition]
        if excluded:
            yield failed(
                subject,
                f"{quoted(excluded[0])} stands beside {quoted(sampler)}, which says all of that: DataLoader raises"
                " ValueError.",
                at=excluded[0],
                also=((sampler, "the batch sampler"),),
                remedy="Leave out batch_size, shuffle, sampler and drop_last beside a batch_sampler.",
            )
        else:
            yield passed(subject)
    if not met:
        yield not_applicable(job.name, "no DataLoader has arguments that could exclude each other")


def _of_loader(job: Job, quantity: str, other: Claim) -> Claim | None:
    """What is said of the same loader about another quantity."""
    return next((claim for claim in job.about(quantity) if set(claim.because) & set(other.because)), None)


def _excluded(job: Job, sampler: Claim) -> Iterator[Claim]:
    for quantity, harmless in (
        ("dataloader_batch_size", 1),
        ("dataloader_shuffle", False),
        ("dataloader_drop_last", False),
    ):
        claim = _of_loader(job, quantity, sampler)
        if (
            claim is not None
            and claim.alternatives
            and all(value not in (harmless, None) for value in claim.alternatives)
        ):
            yield claim


_WHAT = {
    "stream": "yields the same samples on every rank and in every worker, because nothing in it looks at either",
    "loader": "shuffles the whole data set on every rank, because it has no sampler that gives each rank its part",
    "webdataset": "is not told how to divide its shards among the ranks; newer versions stop with ValueError",
}
_REMEDY = {
    "stream": "Divide in __iter__ by rank and by get_worker_info(), into parts of the same size.",
    "loader": "Give it sampler=DistributedSampler(dataset) and call sampler.set_epoch(epoch).",
    "webdataset": "Give nodesplitter=wds.split_by_node, or resampled=True with with_epoch(n).",
}


@rule(
    "DAT022",
    "data-not-divided-among-ranks",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("huggingface/datasets#5360", "Lightning-AI/pytorch-lightning#20149", "pytorch/pytorch#48702"),
)
def data_not_divided_among_ranks(job: Job) -> Iterator[Verdict]:
    """Every rank trains on all of the data instead of its part.

    What it checks:
        In a script that wraps its model for several ranks itself, a loader that shuffles has a sampler for its rank, a
        stream divides itself by rank and worker, and a WebDataset is told how to split its shards.

    Why it matters:
        Every sample is seen as many times an epoch as there are ranks: epochs take that much longer than they should,
        and more GPUs do not make training faster.

    Example:
        `DataLoader(train_set, shuffle=True)` beside `DistributedDataParallel(model)`.

    Fix:
        `sampler=DistributedSampler(train_set)`; a stream divides by rank and `get_worker_info()`.

    Known limits:
        A data set that holds this rank's part already, made elsewhere, is not known. Scripts that leave their loaders
        to a library which divides them stay silent.

    Evidence:
        huggingface/datasets#5360, Lightning-AI/pytorch-lightning#20149, pytorch/pytorch#48702.
    """
    met = False
    for subject, whole in stated(job, "data_unsplit"):
        met = True
        kind = spoken(whole.alternatives)
        if surely_one_rank(job, whole):
            yield passed(subject)
        elif not is_run(job) or job.about("training_framework"):
            yield unknown(subject, f"whoever uses {quoted(whole)} may divide it", at=whole)
        else:
            yield failed(
                subject,
                f"{quoted(whole)} {_WHAT[kind]}.",
                at=whole,
                remedy=_REMEDY[kind],
            )
    if not met and job.about("distributed_sampler"):
        met = True
        yield passed(job.name)
    if not met:
        yield not_applicable(job.name, "no script for several ranks reads its data itself")
