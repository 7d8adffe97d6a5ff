"""Invalid arguments of data loaders, and data that is not divided among ranks."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Unresolved
from preflight.model.job.value import numbers
from preflight.plugins.authoring import Verdict, failed, passed, rule, unknown
from preflight_rules.helpers import joined, quoted, undecided
from preflight_rules.scripts.script_facts import (
    definitely_on_one_node,
    definitely_one_rank,
    on_several_nodes,
    runs_program,
    stated,
)


@rule(
    "DAT021",
    "loader-arguments-refused",
    severity=Severity.ERROR,
    profile="gate",
    otherwise="no DataLoader has arguments that could exclude each other",
    evidence=(
        (
            "torch.utils.data.DataLoader documentation",
            "https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader",
        ),
    ),
)
def loader_arguments_refused(job: Job) -> Iterator[Verdict]:
    """A DataLoader is given arguments that exclude each other.

    What it checks: `prefetch_factor` and `persistent_workers=True` come with worker processes; `batch_sampler` comes
    without `batch_size`, `shuffle`, `sampler` and `drop_last`.

    Why it matters: DataLoader raises ValueError on every rank, often only after the model was loaded.

    Example: `DataLoader(ds, batch_size=8, persistent_workers=True)`, which has no workers.

    Fix: Set `num_workers`, or remove the argument; with a batch sampler remove the other four.

    Known limits: Arguments passed as `**options` are not known. A number of workers from the command line is judged by
    its default only where that is certain.
    """
    for quantity in ("dataloader_prefetch_factor", "dataloader_persistent_workers"):
        for subject, given in stated(job, quantity):
            workers = _loader_claim(job, "dataloader_workers", given)
            counts = numbers(workers.value) if workers is not None else (0,)
            needs = all(value not in (None, False) for value in given.alternatives) and bool(given.alternatives)
            if workers is not None and isinstance(workers.value, Unresolved):
                yield unknown(subject, f"{quoted(given)} is unknown: {workers.value.why}", at=given)
            elif needs and counts and max(counts) == 0:
                yield failed(
                    subject,
                    f"{quoted(given)} needs worker processes, but num_workers is 0: DataLoader raises ValueError.",
                    at=given,
                    also=((workers, "no workers"),) if workers is not None else (),
                    remedy="Set num_workers, or remove the argument.",
                )
            else:
                yield passed(subject)
    for subject, sampler in stated(job, "dataloader_sampler"):
        if not sampler.spelling.startswith("batch_sampler"):
            continue
        excluded = [claim for claim in _excluded(job, sampler) if claim.condition == sampler.condition]
        if excluded:
            yield failed(
                subject,
                f"{quoted(excluded[0])} is given together with {quoted(sampler)}, which already covers them:"
                f" DataLoader raises"
                " ValueError.",
                at=excluded[0],
                also=((sampler, "the batch sampler"),),
                remedy="Remove batch_size, shuffle, sampler and drop_last when using a batch_sampler.",
            )
        else:
            others = [_loader_claim(job, quantity, sampler) for quantity, _ in _EXCLUDED]
            yield undecided(subject, [claim for claim in others if claim is not None]) or passed(subject)


def _loader_claim(job: Job, quantity: str, other: Claim) -> Claim | None:
    """The claims about another quantity of the same loader."""
    return next((claim for claim in job.about(quantity) if set(claim.because) & set(other.because)), None)


#: What a batch sampler replaces, and the value that counts as left out.
_EXCLUDED = (("dataloader_batch_size", 1), ("dataloader_shuffle", False), ("dataloader_drop_last", False))


def _excluded(job: Job, sampler: Claim) -> Iterator[Claim]:
    for quantity, harmless in _EXCLUDED:
        claim = _loader_claim(job, quantity, sampler)
        if (
            claim is not None
            and claim.alternatives
            and all(value not in (harmless, None) for value in claim.alternatives)
        ):
            yield claim


_FAULTS = {
    "stream": "yields the same samples on every rank and in every worker, because it uses neither the rank nor the"
    " worker index",
    "loader": "shuffles the whole data set on every rank, because it has no sampler that gives each rank its part",
    "paddle_loader": "shuffles the whole data set on every card, as it has no batch sampler that gives each its part",
    "webdataset": "has no splitter that divides its shards among the ranks; newer versions stop with ValueError",
    "hub": "streams every sample to every rank: nothing in the script divides the data set",
}
_REMEDY = {
    "stream": "Divide in __iter__ by rank and by get_worker_info(), into parts of the same size.",
    "loader": "Give it sampler=DistributedSampler(dataset) and call sampler.set_epoch(epoch).",
    "paddle_loader": "Give it batch_sampler=paddle.io.DistributedBatchSampler(dataset, batch_size, shuffle=True).",
    "webdataset": "Give nodesplitter=wds.split_by_node, or resampled=True with with_epoch(n).",
    "hub": "Divide it by datasets.distributed.split_dataset_by_node(data, rank, world_size).",
}


@rule(
    "DAT022",
    "data-not-divided-among-ranks",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no script for several ranks builds its own loader",
    evidence=("huggingface/datasets#5360", "Lightning-AI/pytorch-lightning#20149", "pytorch/pytorch#48702"),
)
def data_not_divided_among_ranks(job: Job) -> Iterator[Verdict]:
    """Every rank trains on all of the data instead of its share.

    What it checks: In a script that wraps its model for several ranks itself, a loader that shuffles has a sampler for
    its rank, a stream divides itself by rank and worker, a WebDataset has a splitter for its shards, and a data set
    that `load_dataset` streams is split by node.

    Why it matters: Every sample is used once per rank in each epoch: epochs take that many times longer, and more GPUs
    do not make training faster.

    Example: `DataLoader(train_set, shuffle=True)` beside `DistributedDataParallel(model)`.

    Fix: `sampler=DistributedSampler(train_set)`; a stream divides by rank and `get_worker_info()`.

    Known limits: A data set that another file has already divided among the ranks is not recognized. Scripts whose
    loaders are divided by a library are not reported.
    """
    applicable = False
    for subject, sampler in stated(job, "sampler_of_local_rank"):
        several = on_several_nodes(job, sampler)
        applicable = True
        if several:
            yield failed(
                subject,
                f"{quoted(sampler)} counts from 0 on each of the {several} nodes: all nodes read the same part of the"
                " data, and nobody the rest.",
                at=sampler,
                remedy="Give the rank in the whole job: dist.get_rank(), or leave the argument out.",
            )
        elif definitely_on_one_node(job, sampler):
            yield passed(subject)
        else:
            yield unknown(subject, f"the number of nodes that run {quoted(sampler)} is unknown", at=sampler)
    for subject, whole in stated(job, "data_unsplit"):
        applicable = True
        kind = joined(whole.alternatives)
        if definitely_one_rank(job, whole):
            yield passed(subject)
        elif not runs_program(job) or job.about("training_framework"):
            yield unknown(subject, f"another file may divide {quoted(whole)} among the ranks", at=whole)
        else:
            yield failed(
                subject,
                f"{quoted(whole)} {_FAULTS[kind]}.",
                at=whole,
                remedy=_REMEDY[kind],
            )
    if not applicable and job.about("distributed_sampler"):
        applicable = True
        yield passed(job.name)
