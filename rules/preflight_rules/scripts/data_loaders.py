"""Data loading: samplers, loaders, shards, invalid arguments, long preparation on one rank, and shares of different
sizes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Unresolved
from preflight.model.job.claim import distinct, job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, make_fix, passed, replace_text, rule, undecided, unknown
from preflight.plugins.claim_text import joined, quoted, where, why_unresolved
from preflight.plugins.questions import each_claim, subjects
from preflight_rules.launches import (
    definitely_on_one_node,
    definitely_one_rank,
    launches_of,
    not_on_several_ranks,
    on_several_nodes,
    ranks_started,
    runs_program,
    started_files,
    subject_claims,
)

_EVALUATION = re.compile(r"val|test|eval|dev|infer|predict", re.IGNORECASE)


@rule(
    "DAT001",
    "set-epoch-never-called",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no script creates a DistributedSampler for training",
)
def set_epoch_never_called(job: Job) -> Iterator[Verdict]:
    """A shuffling DistributedSampler is used over several epochs without set_epoch.

    What it checks: A script that creates a shuffling DistributedSampler and loops over epochs also calls `set_epoch`. A
    counting loop (`for e in range(3)`) around a loop over a loader counts as a loop over epochs, regardless of its
    variable's name.

    Why it matters: Without it, every epoch silently has the same order: the model sees the same batches in the same
    order each time, which costs accuracy and is not logged.

    Example: `sampler = DistributedSampler(ds)` and `for epoch in range(10):` without `sampler.set_epoch(epoch)`.

    Fix: Call `sampler.set_epoch(epoch)` at the start of each epoch.

    Known limits: Not reported are samplers whose name, or the name of whose data, suggests evaluation, Paddle's
    DistributedBatchSampler, which counts its epochs itself, and scripts driven by a library that calls set_epoch. A
    loop in another file is not seen: then the result is unknown, and the confidence is medium.
    """
    seen_samplers: set[tuple[str, int, int]] = set()
    for subject, scope, _ in subjects(job):
        for shuffle in job.about("sampler_shuffle", scope):
            sampler = next((c for c in shuffle.because if c.quantity == "distributed_sampler"), shuffle)
            key = (sampler.span.path, sampler.span.line, sampler.span.column)
            name = next(iter(texts(sampler.value)), "")
            if key in seen_samplers or _EVALUATION.search(name):
                continue
            seen_samplers.add(key)
            path = sampler.span.path
            loops = [c for c in job.about("loop_over_epochs", scope) if c.span.path == path]
            if isinstance(shuffle.value, Unresolved):
                yield unknown(subject, f"whether {name or 'the sampler'} shuffles: {shuffle.value.why}", at=shuffle)
            elif (
                not all(value is True for value in shuffle.alternatives)
                or job.about("set_epoch_called", scope)
                or any(sampler in claim.because for claim in job.about("sampler_without_epochs", scope))
                or job.about("training_framework", scope)
            ):
                yield passed(subject)
            elif not loops:
                reason = (
                    f"{name or 'the sampler'} shuffles and set_epoch is never called, but no loop over epochs was found"
                )
                yield unknown(subject, reason, at=sampler)
            else:
                yield failed(
                    subject,
                    f"`{name or 'the sampler'}` shuffles, and {quoted(loops[0])} (line {loops[0].span.line}) "
                    "iterates over epochs, but set_epoch is never called: every epoch has the same order.",
                    at=sampler,
                    also=((loops[0], "loop over epochs"),),
                    remedy=f"Call `{name or 'sampler'}.set_epoch(epoch)` at the start of each epoch.",
                )


@rule(
    "DAT002",
    "loader-shuffles-beside-sampler",
    severity=Severity.ERROR,
    fix="safe",
    otherwise="no DataLoader has both shuffle and a sampler",
)
def loader_shuffles_beside_sampler(job: Job) -> Iterator[Verdict]:
    """A DataLoader is given both shuffle=True and a sampler.

    What it checks: A DataLoader with `shuffle=True` has no `sampler` or `batch_sampler`.

    Why it matters: torch raises ValueError: "sampler option is mutually exclusive with shuffle".

    Example: `DataLoader(ds, batch_size=8, shuffle=True, sampler=DistributedSampler(ds))`.

    Fix: Remove shuffle; the sampler shuffles.

    Known limits: A sampler variable that may be None in another branch is not reported.
    """
    for subject, scope, _, shuffle in each_claim(job, "dataloader_shuffle"):
        loader = next((c for c in shuffle.because if c.quantity == "dataloader"), None)
        samplers = [c for c in job.about("dataloader_sampler", scope) if loader in c.because]
        if loader is None or not samplers:
            continue
        if isinstance(shuffle.value, Unresolved):
            yield unknown(subject, f"{quoted(shuffle)} is unknown: {shuffle.value.why}", at=shuffle)
        elif shuffle.alternatives == (True,) and _is_definitely_sampler(job, samplers[0]):
            yield failed(
                subject,
                f"{quoted(shuffle)} is given together with {quoted(samplers[0])}: torch raises ValueError.",
                at=shuffle,
                also=((samplers[0], "the sampler"),),
                remedy="Remove `shuffle=True`; a DistributedSampler shuffles by default.",
                fix=make_fix("write shuffle=False", replace_text(shuffle, "True", "False"), safe=True),
            )
        else:
            yield passed(subject)


def _is_definitely_sampler(job: Job, sampler: Claim) -> bool:
    name = next(iter(texts(sampler.value)), "")
    if "(" in name:
        return " if " not in name
    samplers = [
        c for c in job.about("distributed_sampler") if name in c.alternatives and c.span.path == sampler.span.path
    ]
    return any(c.condition in ("", sampler.condition) for c in samplers)


@rule(
    "DAT003",
    "fewer-shards-than-ranks",
    severity=Severity.WARNING,
    otherwise="no script lists its data files for a known number of ranks",
)
def fewer_shards_than_ranks(job: Job) -> Iterator[Verdict]:
    """A script lists fewer data files than there are ranks.

    What it checks: A literal list of data files in the script has at least as many entries as there are ranks.

    Why it matters: A reader that gives each rank its own files leaves some ranks without files: these end their epoch
    immediately, and the others wait for them in the next collective.

    Example: Four file names in a list that the script reads and `--nproc_per_node=8`.

    Fix: Split the data into a multiple of the number of ranks, or start fewer ranks.

    Known limits: A reader that splits each file among the ranks needs only one, so this is a warning.
    """
    seen_lists: set[tuple[str, int, int]] = set()
    for subject, scope, launch in subjects(job):
        ranks, rank_claims = ranks_started(job, scope)
        for shards in job.about("shard_list", scope):
            key = (shards.span.path, shards.span.line, shards.span.column)
            lengths = [len(value) for value in shards.alternatives if isinstance(value, tuple)]
            if key in seen_lists or not rank_claims:
                continue
            seen_lists.add(key)
            unresolved = why_unresolved((shards, *rank_claims), launch)
            rank_counts = numbers(ranks)
            if unresolved is not None or not lengths or not rank_counts:
                reason = unresolved[1] if unresolved else "a value known only at run time"
                yield unknown(subject, f"whether there is a shard for each rank is unknown: {reason}", at=shards)
            elif max(lengths) < min(rank_counts) and max(lengths) > 1:
                yield failed(
                    subject,
                    f"{quoted(shards)[:80]} lists only {max(lengths)} files for {min(rank_counts)} ranks: "
                    f"{min(rank_counts) - max(lengths)} ranks may get none.",
                    at=shards,
                    also=tuple((c, "ranks") for c in distinct(rank_claims)),
                    remedy=f"Split the data into a multiple of {min(rank_counts)} files, or start fewer ranks.",
                )
            else:
                yield passed(subject)


#: The longest default timeout of collectives (torch.distributed.constants; nccl has 600 s since torch 2.2).
_DEFAULT_S = 1800


@rule(
    "TMO001",
    "long-work-behind-short-timeout",
    severity=Severity.WARNING,
    confidence=Confidence.LOW,
    otherwise="no script does long work on one rank while the others wait",
)
def long_work_behind_short_timeout(job: Job) -> Iterator[Verdict]:
    """One rank downloads or preprocesses while all others wait under the default timeout.

    What it checks: A script in which only the first rank downloads, unpacks, tokenizes or converts data before a
    barrier gives the process group a timeout above the default.

    Why it matters: The other ranks wait inside a collective. After 10 minutes (nccl, torch 2.2 and newer) or 30 minutes
    the watchdog kills the job, usually in the middle of the preparation and again at every restart.

    Example: `if rank == 0: download(...)`, then `dist.barrier()`, with `init_process_group("nccl")`.

    Fix: Do the work once before the job, or pass `timeout=timedelta(hours=2)` to init_process_group.

    Known limits: The files do not show the duration of the work; with a small data set it is short enough. In a script
    driven by a library's trainer, which has its own timeout, the finding is informational.
    """
    seen_paths: set[str] = set()
    for subject, scope, launch in subjects(job):
        work = [c for c in job.about("serial_work", scope) if c.span.path not in seen_paths]
        if not work:
            continue
        seen_paths.update(c.span.path for c in work)
        timeouts = job.setting("process_group_timeout_s", scope)
        undecided_verdict = undecided(subject, timeouts, launch)
        limits = numbers(job_value(timeouts)) if timeouts else ()
        if undecided_verdict is not None:
            yield undecided_verdict
        elif limits and min(limits) > _DEFAULT_S:
            yield passed(subject)
        elif not timeouts and not runs_program(job) and not _starts_group(job, work[0]):
            yield unknown(subject, "no file of the job starts a process group", at=work[0])
        else:
            limit_text = f"{quoted(timeouts[0])} ({min(limits)} s)" if limits else "the default, 10 or 30 minutes"
            yield failed(
                subject,
                f"{quoted(work[0])} runs on one rank while the others wait (line {work[0].span.line}); they"
                f" time out after {limit_text}.",
                at=work[0],
                also=(
                    *((claim, "more such work") for claim in work[1:4]),
                    *((claim, where(claim)) for claim in timeouts),
                ),
                remedy="Do this work once before the job, or pass a longer `timeout=` to init_process_group.",
                severity=Severity.INFO if job.about("training_framework", scope) or _is_helper(job, work[0]) else None,
            )


def _starts_group(job: Job, work: Claim) -> bool:
    """Return whether the file that contains the work starts a process group itself."""
    claims = (*job.about("backend"), *job.about("process_group_timeout_s"))
    return any(claim.span.path == work.span.path and claim.source == "python" for claim in claims)


def _is_helper(job: Job, work: Claim) -> bool:
    """Return whether the work is in a helper that many scripts may share, usually for something small."""
    return work.span.path not in started_files(job) and not _starts_group(job, work)


@rule(
    "DAT021",
    "loader-arguments-refused",
    severity=Severity.ERROR,
    otherwise="no DataLoader has arguments that could be mutually exclusive",
)
def loader_arguments_refused(job: Job) -> Iterator[Verdict]:
    """A DataLoader is given mutually exclusive arguments.

    What it checks: `prefetch_factor` and `persistent_workers=True` are used only with worker processes, and
    `batch_sampler` without `batch_size`, `shuffle`, `sampler` and `drop_last`.

    Why it matters: DataLoader raises ValueError (Paddle's AssertionError) on every rank, often only after the model has
    been loaded.

    Example: `DataLoader(ds, batch_size=8, persistent_workers=True)`, which has no workers.

    Fix: Set `num_workers`, or remove the argument; with a batch sampler remove the other four.

    Known limits: Arguments passed as `**options` are unknown. If `num_workers` comes from the command line, its default
    is used only if the launch certainly does not override it.
    """
    for quantity in ("dataloader_prefetch_factor", "dataloader_persistent_workers"):
        for subject, argument in subject_claims(job, quantity):
            workers = _loader_claim(job, "dataloader_workers", argument)
            counts = numbers(workers.value) if workers is not None else (0,)
            needs_workers = all(value not in (None, False) for value in argument.alternatives) and bool(
                argument.alternatives
            )
            if workers is not None and isinstance(workers.value, Unresolved):
                yield unknown(subject, f"{quoted(argument)} is unknown: {workers.value.why}", at=argument)
            elif needs_workers and counts and max(counts) == 0:
                yield failed(
                    subject,
                    f"{quoted(argument)} needs worker processes, but num_workers is 0: DataLoader raises ValueError.",
                    at=argument,
                    also=((workers, "no workers"),) if workers is not None else (),
                    remedy="Set num_workers, or remove the argument.",
                )
            else:
                yield passed(subject)
    for subject, sampler in subject_claims(job, "dataloader_sampler"):
        if not sampler.spelling.startswith("batch_sampler"):
            continue
        conflicts = [claim for claim in _conflicting_arguments(job, sampler) if claim.condition == sampler.condition]
        if conflicts:
            yield failed(
                subject,
                f"{quoted(conflicts[0])} is given together with {quoted(sampler)}, which already determines it: "
                "DataLoader raises ValueError.",
                at=conflicts[0],
                also=((sampler, "the batch sampler"),),
                remedy="Remove batch_size, shuffle, sampler and drop_last when using a batch_sampler.",
            )
        else:
            related = [_loader_claim(job, quantity, sampler) for quantity, _ in _EXCLUDED]
            yield undecided(subject, [claim for claim in related if claim is not None]) or passed(subject)


def _loader_claim(job: Job, quantity: str, other: Claim) -> Claim | None:
    """Return the claim about a quantity of the loader that `other` is about; None if there is none."""
    return next((claim for claim in job.about(quantity) if set(claim.because) & set(other.because)), None)


#: Arguments that a batch sampler replaces, and the value that counts as unset.
_EXCLUDED = (("dataloader_batch_size", 1), ("dataloader_shuffle", False), ("dataloader_drop_last", False))


def _conflicting_arguments(job: Job, sampler: Claim) -> Iterator[Claim]:
    for quantity, default in _EXCLUDED:
        claim = _loader_claim(job, quantity, sampler)
        if (
            claim is not None
            and claim.alternatives
            and all(value not in (default, None) for value in claim.alternatives)
        ):
            yield claim


_FAULTS = {
    "stream": "yields the same samples on every rank, because its input does not depend on the rank",
    "loader": "shuffles the whole data set on every rank, because it has no sampler that gives each rank a "
    "different part",
    "paddle_loader": "shuffles the whole data set on every GPU, because it has no batch sampler that gives each "
    "rank a different part",
    "unsampled": "reads the whole data set on every rank: the sampler that divides it is not passed to any loader",
    "own_sampler": "draws from the whole data set on every rank: its sampler does not give each rank a different part",
    "webdataset": "has no splitter that divides its shards among the ranks; newer versions stop with ValueError",
    "hub": "streams every sample to every rank: nothing in the script divides the data set",
}
_REMEDIES = {
    "stream": "Divide in __iter__ by rank and by get_worker_info(), into parts of the same size.",
    "loader": "Pass sampler=DistributedSampler(dataset) and call sampler.set_epoch(epoch).",
    "paddle_loader": "Pass batch_sampler=paddle.io.DistributedBatchSampler(dataset, batch_size, shuffle=True).",
    "unsampled": "Pass the sampler to the loader: sampler=sampler, or batch_sampler=sampler in Paddle.",
    "own_sampler": "Yield only the rank's own batches in the sampler's __iter__: batches[rank::world_size].",
    "webdataset": "Pass nodesplitter=wds.split_by_node, or resampled=True with with_epoch(n).",
    "hub": "Divide it with datasets.distributed.split_dataset_by_node(data, rank, world_size).",
}


@rule(
    "DAT022",
    "data-not-divided-among-ranks",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no script for several ranks creates its own loader",
    passes_with=("distributed_sampler",),
)
def data_not_divided_among_ranks(job: Job) -> Iterator[Verdict]:
    """Every rank trains on all of the data instead of its share.

    What it checks: In a script that wraps its model for several ranks itself, a loader that shuffles has a sampler for
    its rank, a stream divides its data by rank and worker, a WebDataset has a splitter for its shards, and a data set
    that `load_dataset` streams is split by node.

    Why it matters: Every sample is used once per rank in each epoch: epochs take that many times longer, and more GPUs
    do not make training faster.

    Example: `DataLoader(train_set, shuffle=True)` together with `DistributedDataParallel(model)`.

    Fix: `sampler=DistributedSampler(train_set)`; a stream divides by rank and `get_worker_info()`. With accelerate or
    DeepSpeed, pass the loader to `prepare`, or the data to `initialize`.

    Known limits: A data set that another file has already divided among the ranks is not recognized. A loader that is
    passed to a library (`accelerator.prepare`, `trainer.fit`) counts as divided; if the program cannot be followed, so
    does every loader in a script that uses such a library.
    """
    for subject, sampler in subject_claims(job, "sampler_of_local_rank"):
        node_count = on_several_nodes(job, sampler)
        if node_count:
            yield failed(
                subject,
                f"{quoted(sampler)} starts at 0 on each of the {node_count} nodes: all nodes read the same part of "
                "the data, and the rest is never read.",
                at=sampler,
                remedy="Pass the global rank, dist.get_rank(), or omit the argument.",
            )
        elif definitely_on_one_node(job, sampler):
            yield passed(subject)
        else:
            yield unknown(subject, f"the number of nodes that run {quoted(sampler)} is unknown", at=sampler)
    for subject, unsplit in subject_claims(job, "data_unsplit"):
        kind = joined(unsplit.alternatives)
        if definitely_one_rank(job, unsplit):
            yield passed(subject)
        elif not runs_program(job) or (job.about("training_framework") and not unsplit.because):
            yield unknown(subject, f"another file may divide {quoted(unsplit)} among the ranks", at=unsplit)
        elif not job.launches and not job.about("starts_processes"):
            yield unknown(subject, "no launch line starts several processes", at=unsplit)
        else:
            yield failed(subject, f"{quoted(unsplit)} {_FAULTS[kind]}.", at=unsplit, remedy=_REMEDIES[kind])


_SHARE_FAULTS = {
    "clamp": "truncates the last rank's share, while the other ranks' shares are rounded up",
    "rest": "gives the remainder to the last rank only",
    "stride": "gives the first ranks one more sample than the others",
    "stream": "distributes a stream of unknown length in turn, so some ranks get more samples than others",
    "files": "derives the number of steps from the rank's own files, and the first ranks have one file more",
    "readers": "makes each rank read a different data set to its end",
}


@rule(
    "DAT020",
    "shares-of-ranks-uneven",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no script divides its data among ranks itself",
    passes_with=("distributed_sampler",),
)
def shares_of_ranks_uneven(job: Job) -> Iterator[Verdict]:
    """A hand-written sampler gives some ranks fewer samples than others.

    What it checks: If the script itself divides samples among ranks, in shares that are rounded up or in turn, the last
    share is padded, dropped or wrapped around, not truncated with `min(...)` or left uneven. A rank that trains on its
    own files, `files[rank::size]`, or on a data set chosen by rank, takes as many steps as the others. A streamed data
    set divided by `split_dataset_by_node` needs a loop that ends at the same step on every rank.

    Why it matters: The last rank has fewer batches. It finishes its epoch first, and the others wait for it in the next
    collective: a deadlock at the end of every epoch if the number of samples is not a multiple of the number of ranks.

    Example: `per = ceil(n / size)` and `end = min((rank + 1) * per - 1, n - 1)`.

    Fix: Pad the list of indices to a multiple of the number of ranks, or drop the rest, as DistributedSampler does.

    Known limits: Code in other functions that balances the shares, such as a step limit, is not found.
    """
    for subject, share in subject_claims(job, "uneven_shards"):
        kind = joined(share.alternatives)
        if definitely_one_rank(job, share) or (kind in ("files", "readers") and _has_servers(job, share)):
            yield passed(subject)
            continue
        joins = job.about("joins_uneven")
        if joins:
            yield unknown(subject, f"{quoted(joins[0])} may make the ranks stop at the same step", at=joins[0])
            continue
        if isinstance(share.value, Unresolved):
            yield unknown(subject, f"{quoted(share)}: {share.value.why}", at=share)
            continue
        if _divides_evenly(job, share):
            yield passed(subject)
            continue
        yield failed(
            subject,
            f"{quoted(share)} {_SHARE_FAULTS.get(kind, _SHARE_FAULTS['clamp'])}: "
            + (
                ""
                if kind in ("files", "readers")
                else "when the number of samples is not a multiple of the number of ranks, "
            )
            + "the ranks run different numbers of steps and wait for each other.",
            at=share,
            remedy="Make all ranks agree on the number of steps, or divide samples instead of files."
            if kind in ("files", "readers")
            else "Pad the indices to a multiple of the number of ranks (indices += indices[:missing]), or drop the "
            "remainder; DistributedSampler does either, depending on drop_last.",
        )


def _divides_evenly(job: Job, share: Claim) -> bool:
    """Return whether the number of files is a multiple of the number of ranks, as far as both are known."""
    counts = [numbers(claim.value) for claim in job.about("divided_items", share.scope) if claim.span == share.span]
    rank_counts = [numbers(ranks_started(job, launch.scope)[0]) for launch in launches_of(job, share)]
    is_known = bool(counts and rank_counts) and all(counts) and all(rank_counts)
    return is_known and all(n % size == 0 for n in counts[0] for each in rank_counts for size in each)


def _has_servers(job: Job, share: Claim) -> bool:
    """Return whether the ranks are trainers of parameter servers, whose steps may differ."""
    return any(True in claim.alternatives for claim in job.about("ps_mode", share.scope))


#: Names of lists of files, and of the functions that divide them.
_FILE_LIST_NAMES = re.compile(r"file|path|shard|part|data", re.IGNORECASE)


def _is_file_list(claim: Claim) -> bool:
    return _FILE_LIST_NAMES.search(claim.spelling.partition("[")[0]) is not None


@rule(
    "DAT037",
    "fewer-files-than-ranks",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no script divides a list of known length among ranks",
)
def fewer_files_than_ranks(job: Job) -> Iterator[Verdict]:
    """The ranks divide a list with fewer files than there are ranks.

    What it checks: If a program takes its share of a list by its rank (`files[rank::size]`, `fleet.util.
    get_file_shard(files)`, `files[i * per : (i + 1) * per]` with `per = len(files) // size`), the list has an item for
    each rank, or for each trainer that has parameter servers.

    Why it matters: Some ranks get no file; if the share is rounded down, no rank does. A rank without files stops at
    its first read, or runs no step while the others wait for it.

    Example: `fleet.util.get_file_shard(["a.txt", "b.txt", "c.txt"])` with `--trainer_num 4`.

    Fix: Write the data to at least as many files as there are ranks, or start fewer ranks.

    Known limits: A list in a folder of the tree, or in a settings file next to the program, may not be the one that the
    job uses. Ranks that do not wait for each other may have nothing to do.
    """
    for subject, scope, launch, claim in each_claim(job, "divided_items", where=_is_file_list):
        trainers = job.setting("ps_workers", scope)
        size, rank_claims = (job_value(trainers), trainers) if trainers else ranks_started(job, scope)
        rank_counts = numbers(size)
        if not rank_counts or launch is None:
            yield unknown(subject, "the number of ranks is unknown", at=claim)
            continue
        item_count = max(numbers(claim.value), default=0)
        if item_count >= min(rank_counts):
            yield passed(subject)
            continue
        length_claim = claim.because[0] if claim.because else claim
        yield failed(
            subject,
            f"{quoted(claim)} divides {item_count} items among {joined(rank_counts)} ranks: some ranks get none.",
            at=claim,
            also=((length_claim, f"{item_count} items"), *((each, "the ranks") for each in rank_claims[:1])),
            remedy="Write at least as many files as there are ranks, or start fewer ranks.",
        )


@rule("BAT023", "batch-size-by-rank", severity=Severity.WARNING, otherwise="no batch size is computed from the rank")
def batch_size_by_rank(job: Job) -> Iterator[Verdict]:
    """The batch size of a loader depends on the rank.

    What it checks: The batch size of a DataLoader, sampler, `paddle.batch` or Fleet data set is not chosen by rank from
    different numbers (in a branch, a table or a function of the script), and is not a sum or product that contains the
    rank.

    Why it matters: Gradients are averaged over ranks, not over samples: samples of a small batch count more. The ranks
    also take different numbers of steps over equal shares, and the last ones wait for the others.

    Example: `DataLoader(data, batch_size=64 if rank == 0 else 32)`.

    Fix: Give every rank the same batch size.

    Known limits: A script that weights its gradients by batch size itself is correct, but reported.
    """
    for subject, size in subject_claims(job, "batch_size_of_rank"):
        yield not_on_several_ranks(job, subject, size, f"no launch runs the loader of {quoted(size)}") or failed(
            subject,
            f"The batch size `{joined(size.alternatives)}` differs between ranks, but their gradients are averaged"
            " as if it were the same.",
            at=size,
            remedy="Give every rank the same batch size.",
        )


_ORDER_FAULTS = {
    "no seed": "shuffles without a seed, so that each rank has a different order",
    "seed of each rank": "is shuffled with a seed that depends on the rank, so that each rank has a different order",
    "unsorted": "has the order of the file system, which may differ between nodes",
    "set": "has the order of a set, which differs between processes unless PYTHONHASHSEED is set",
}
#: The remedy by kind of order.
_ORDER_REMEDIES = {"unsorted": "Sort the list.", "set": "Sort the list: `sorted(set(...))`."}


@rule(
    "DAT038",
    "set-numbered-by-each-rank",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no script numbers the items of a set",
)
def set_numbered_by_each_rank(job: Job) -> Iterator[Verdict]:
    """Each rank numbers the items of a set, whose order differs between processes.

    What it checks: A mapping from names to numbers (classes, identities, a vocabulary) is not built by enumerating a
    set.

    Why it matters: Python orders a set of strings by hashes that differ between processes. Rank 0 trains class 3 with
    the images of rank 1's class 7, and a later run reads the checkpoint with other numbers. Nothing fails, but the
    model does not learn.

    Example: `{pid: i for i, pid in enumerate(set(pids))}`.

    Fix: `enumerate(sorted(set(pids)))`.

    Known limits: A set of whole numbers has the same order in all processes; only `int(...)` items show that a set
    contains whole numbers.
    """
    for subject, table in subject_claims(job, "numbered_set"):
        if job.about("env.PYTHONHASHSEED"):
            yield passed(subject)
            continue
        yield not_on_several_ranks(job, subject, table) or failed(
            subject,
            f"{quoted(table)} numbers the items of a set, whose order differs between processes, so the same number "
            "means different items on different ranks.",
            at=table,
            remedy="Sort the items first: `enumerate(sorted(...))`.",
        )


#: The fault of each call that divides data again.
_DIVIDED_TWICE = {
    "DataLoader": "has a sampler that gives each rank a part, and data that is already the rank's part",
    "prepare": "divides a loader whose sampler already divides its data",
}


@rule(
    "DAT039",
    "data-divided-twice",
    severity=Severity.WARNING,
    otherwise="no data is divided among the ranks twice",
)
def data_divided_twice(job: Job) -> Iterator[Verdict]:
    """Data is divided among the ranks twice, so each rank gets only a part of its part.

    What it checks: accelerate does not prepare a loader whose sampler already selects the rank's part, and a loader
    with such a sampler is not given data that is already the rank's part (`files[rank::size]`).

    Why it matters: Each of N ranks trains on an N-th of its N-th part: with eight ranks, seven eighths of the data are
    never read, and an epoch is that much shorter.

    Example: `accelerator.prepare(DataLoader(data, sampler=DistributedSampler(data)))`.

    Fix: Divide once: pass accelerate a loader without such a sampler, or do not pass the loader to `prepare`; pass the
    whole list to a sampler for the rank.

    Known limits: A user-defined sampler counts if it stores its rank.
    """
    for subject, divided in subject_claims(job, "data_divided_twice"):
        if undecided_verdict := undecided(subject, (divided,)):
            yield undecided_verdict
            continue
        yield not_on_several_ranks(job, subject, divided) or failed(
            subject,
            f"{quoted(divided)} {_DIVIDED_TWICE[joined(divided.alternatives)]}: most of the data is never read.",
            at=divided,
            remedy="Divide the data once.",
        )


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
    of files or a set is sorted first. An unsorted listing is informational if all ranks are on one node.

    Why it matters: Each rank divides a different list: some samples are read by several ranks, others by none. Nothing
    fails, but the model is trained on part of the data, a different part in each run.

    Example: `random.shuffle(files)` and `files = files[rank::world_size]` without `random.seed(0)`.

    Fix: Seed with the same number on every rank before shuffling, and sort listings: `sorted(os.listdir(path))`.

    Known limits: A seed that is set in another file is not seen.
    """
    for subject, order in subject_claims(job, "shard_order"):
        kind = joined(order.alternatives)
        if kind == "set" and job.about("env.PYTHONHASHSEED"):
            yield passed(subject)
            continue
        yield not_on_several_ranks(job, subject, order) or failed(
            subject,
            f"{quoted(order)} {_ORDER_FAULTS[kind]}: the ranks' parts "
            f"{'may overlap' if kind == 'unsorted' else 'overlap'}, and some samples are left out.",
            at=order,
            remedy=_ORDER_REMEDIES.get(kind, "Shuffle with the same seed on every rank."),
            severity=Severity.INFO if kind == "unsorted" and not on_several_nodes(job, order) else None,
        )
