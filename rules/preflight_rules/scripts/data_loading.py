"""How data reach the ranks: samplers, loaders and shards."""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.job import Claim, Job, Unresolved
from preflight.judgement import Verdict, failed, mend, not_applicable, passed, reworded, rule, unknown
from preflight.lazy.patterns import lazy_pattern
from preflight.outcome import Confidence, Severity
from preflight_rules.reading import (
    distinct,
    job_value,
    numbers,
    quoted,
    ranks_started,
    subjects,
    texts,
    undecided,
    where,
    why_unresolved,
)
from preflight_rules.scripts.script_reading import is_run, started_files

_EVALUATION = lazy_pattern(r"val|test|eval|dev|infer|predict", re.IGNORECASE)


@rule(
    "DAT001",
    "set-epoch-never-called",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("pytorch/pytorch#31771", "pytorch/pytorch#11324", "huggingface/transformers#4398"),
)
def set_epoch_never_called(job: Job) -> Iterator[Verdict]:
    """A shuffling DistributedSampler is used over epochs without set_epoch.

    What it checks:
        A script that builds a DistributedSampler which shuffles, and loops over epochs, calls `set_epoch`
        somewhere. A loop over a count (`for e in range(3)`) with a loop over a loader in it is one over epochs,
        whatever its variable is called.

    Why it matters:
        Without it every epoch has the same order, silently: the model sees the same batches in the same sequence
        each time, which costs accuracy and shows in no log.

    Example:
        `sampler = DistributedSampler(ds)` and `for epoch in range(10):` without `sampler.set_epoch(epoch)`.

    Fix:
        Call `sampler.set_epoch(epoch)` first in the loop over epochs.

    Known limits:
        Samplers whose name says that they serve evaluation, and scripts driven by a library that calls set_epoch
        itself, stay silent. A loop in another file is not seen: then it cannot be told, and the confidence is medium.

    Evidence:
        pytorch/pytorch#31771, pytorch/pytorch#11324, huggingface/transformers#4398.
    """
    met = False
    seen: set[tuple[str, int, int]] = set()
    for subject, scope, _ in subjects(job):
        for shuffle in job.about("sampler_shuffle", scope):
            sampler = next((c for c in shuffle.because if c.quantity == "distributed_sampler"), shuffle)
            key = (sampler.span.path, sampler.span.line, sampler.span.column)
            name = next(iter(texts(sampler.value)), "")
            if key in seen or _EVALUATION.search(name):
                continue
            seen.add(key)
            met = True
            path = sampler.span.path
            loops = [c for c in job.about("loop_over_epochs", scope) if c.span.path == path]
            if isinstance(shuffle.value, Unresolved):
                yield unknown(subject, f"whether {name or 'the sampler'} shuffles: {shuffle.value.why}", at=shuffle)
            elif (
                not all(value is True for value in shuffle.alternatives)
                or job.about("set_epoch_called", scope)
                or job.about("training_framework", scope)
            ):
                yield passed(subject)
            elif not loops:
                reason = (
                    f"{name or 'the sampler'} shuffles and nothing calls set_epoch, but no loop over epochs is seen"
                )
                yield unknown(subject, reason, at=sampler)
            else:
                yield failed(
                    subject,
                    f"`{name or 'the sampler'}` shuffles, and {quoted(loops[0])} (line {loops[0].span.line}) runs over"
                    " epochs, but nothing calls set_epoch: every epoch has the same order.",
                    at=sampler,
                    also=((loops[0], "loop over epochs"),),
                    remedy=f"Call `{name or 'sampler'}.set_epoch(epoch)` first in the loop over epochs.",
                )
    if not met:
        yield not_applicable(job.name, "no script builds a DistributedSampler for training")


@rule(
    "DAT002",
    "loader-shuffles-beside-sampler",
    severity=Severity.ERROR,
    profile="gate",
    fix="safe",
    evidence=("https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader",),
)
def loader_shuffles_beside_sampler(job: Job) -> Iterator[Verdict]:
    """A DataLoader is given both shuffle=True and a sampler.

    What it checks:
        A DataLoader with `shuffle=True` has no `sampler` or `batch_sampler` that certainly is one.

    Why it matters:
        torch raises ValueError: "sampler option is mutually exclusive with shuffle".

    Example:
        `DataLoader(ds, batch_size=8, shuffle=True, sampler=DistributedSampler(ds))`.

    Fix:
        Drop shuffle; the sampler shuffles.

    Known limits:
        A sampler variable that may be None in another branch stays silent.

    Evidence:
        torch.utils.data.DataLoader documentation.
    """
    met = False
    seen: set[tuple[str, int, int]] = set()
    for subject, scope, _ in subjects(job):
        for shuffle in job.about("dataloader_shuffle", scope):
            loader = next((c for c in shuffle.because if c.quantity == "dataloader"), None)
            key = (shuffle.span.path, shuffle.span.line, shuffle.span.column)
            if loader is None or key in seen:
                continue
            seen.add(key)
            given = [c for c in job.about("dataloader_sampler", scope) if loader in c.because]
            if not given:
                continue
            met = True
            if isinstance(shuffle.value, Unresolved):
                yield unknown(subject, f"{quoted(shuffle)} is left open: {shuffle.value.why}", at=shuffle)
            elif shuffle.alternatives == (True,) and _surely_a_sampler(job, given[0]):
                yield failed(
                    subject,
                    f"{quoted(shuffle)} stands beside {quoted(given[0])}: torch raises ValueError.",
                    at=shuffle,
                    also=((given[0], "the sampler"),),
                    remedy="Drop `shuffle=True`; a DistributedSampler shuffles by itself.",
                    fix=mend("write shuffle=False", reworded(shuffle, "True", "False"), safe=True),
                )
            else:
                yield passed(subject)
    if not met:
        yield not_applicable(job.name, "no DataLoader has both shuffle and a sampler")


def _surely_a_sampler(job: Job, given: Claim) -> bool:
    name = next(iter(texts(given.value)), "")
    if "(" in name:
        return " if " not in name
    built = [c for c in job.about("distributed_sampler") if name in c.alternatives and c.span.path == given.span.path]
    return any(c.condition in ("", given.condition) for c in built)


@rule(
    "DAT003",
    "fewer-shards-than-ranks",
    severity=Severity.WARNING,
    evidence=("PaddlePaddle/Paddle#18956", "meta-pytorch/torchrec#3132"),
)
def fewer_shards_than_ranks(job: Job) -> Iterator[Verdict]:
    """A script lists fewer data files than there are ranks to read them.

    What it checks:
        A list of data files that the script spells out has at least as many entries as ranks are started.

    Why it matters:
        A reader that gives each rank its own files leaves some with none: those ranks end their epoch at once and
        the others wait for them in the next collective.

    Example:
        Four file names in `np.load([...])`-like calls and `--nproc_per_node=8`.

    Fix:
        Split the data into a multiple of the number of ranks, or start fewer ranks.

    Known limits:
        A reader that splits each file among the ranks needs no more than one, so this is a warning.

    Evidence:
        PaddlePaddle/Paddle#18956, meta-pytorch/torchrec#3132.
    """
    met = False
    seen: set[tuple[str, int, int]] = set()
    for subject, scope, launch in subjects(job):
        ranks, because = ranks_started(job, scope)
        for shards in job.about("shard_list", scope):
            key = (shards.span.path, shards.span.line, shards.span.column)
            lengths = [len(value) for value in shards.alternatives if isinstance(value, tuple)]
            if key in seen or not because:
                continue
            seen.add(key)
            met = True
            open_end = why_unresolved((shards, *because), launch)
            started = numbers(ranks)
            if open_end is not None or not lengths or not started:
                why = open_end[1] if open_end else "what only run time knows"
                yield unknown(subject, f"shards by ranks is left open: {why}", at=shards)
            elif max(lengths) < min(started) and max(lengths) > 1:
                yield failed(
                    subject,
                    f"{quoted(shards)[:80]} lists {max(lengths)} files for {min(started)} ranks:"
                    f" {min(started) - max(lengths)} ranks may get none.",
                    at=shards,
                    also=tuple((c, "ranks") for c in distinct(because)),
                    remedy=f"Split the data into a multiple of {min(started)} files, or start fewer ranks.",
                )
            else:
                yield passed(subject)
    if not met:
        yield not_applicable(job.name, "no script spells out its data files for a known number of ranks")


#: The longest default time-out of collectives (torch.distributed.constants; nccl has 600 s since torch 2.2).
_DEFAULT_S = 1800


@rule(
    "TMO001",
    "long-work-behind-short-timeout",
    severity=Severity.WARNING,
    confidence=Confidence.LOW,
    evidence=("hiyouga/LlamaFactory#360", "ultralytics/ultralytics#3343", "speechbrain/speechbrain#1766"),
)
def long_work_behind_short_timeout(job: Job) -> Iterator[Verdict]:
    """One rank downloads or preprocesses while all others wait under the default time-out.

    What it checks:
        A script in which the first rank alone downloads, unpacks, tokenizes or converts data before a barrier gives
        the process group a time-out above the default.

    Why it matters:
        The others wait inside a collective. After 10 minutes (nccl, torch 2.2 and newer) or 30 minutes the
        watchdog kills the job, usually in the middle of the preparation and again at every restart.

    Example:
        `if rank == 0: download(...)`, then `dist.barrier()`, with `init_process_group("nccl")`.

    Fix:
        Do the work once before the job, or pass `timeout=timedelta(hours=2)` to init_process_group.

    Known limits:
        How long the work takes cannot be read from a file; with a data set of megabytes all is well. In a script
        driven by a library's trainer, which brings its own time-out, it is information only.

    Evidence:
        hiyouga/LlamaFactory#360, ultralytics/ultralytics#3343, speechbrain/speechbrain#1766.
    """
    met = False
    seen: set[str] = set()
    for subject, scope, launch in subjects(job):
        work = [c for c in job.about("serial_work", scope) if c.span.path not in seen]
        if not work:
            continue
        met = True
        seen.update(c.span.path for c in work)
        timeouts = job.setting("process_group_timeout_s", scope)
        open_end = undecided(subject, timeouts, launch)
        limits = numbers(job_value(timeouts)) if timeouts else ()
        if open_end is not None:
            yield open_end
        elif limits and min(limits) > _DEFAULT_S:
            yield passed(subject)
        elif not timeouts and not is_run(job) and not _starts_group(job, work[0]):
            yield unknown(subject, "nothing here starts a process group", at=work[0])
        else:
            shown = f"{quoted(timeouts[0])} ({min(limits)} s)" if limits else "the default, 10 or 30 minutes"
            yield failed(
                subject,
                f"{quoted(work[0])} runs on one rank while the others wait for it (line {work[0].span.line}); they give"
                f" up after {shown}.",
                at=work[0],
                also=(
                    *((claim, "more such work") for claim in work[1:4]),
                    *((claim, where(claim)) for claim in timeouts),
                ),
                remedy="Do it once before the job, or pass a longer `timeout=` to init_process_group.",
                severity=Severity.INFO if job.about("training_framework", scope) or _is_helper(job, work[0]) else None,
            )
    if not met:
        yield not_applicable(job.name, "no script works on one rank while the others wait")


def _starts_group(job: Job, work: Claim) -> bool:
    """Whether the file of the work starts a process group itself."""
    stated = (*job.about("backend"), *job.about("process_group_timeout_s"))
    return any(claim.span.path == work.span.path and claim.source == "python" for claim in stated)


def _is_helper(job: Job, work: Claim) -> bool:
    """Whether the work stands in a helper that many scripts may share, mostly for something small."""
    return work.span.path not in started_files(job) and not _starts_group(job, work)
