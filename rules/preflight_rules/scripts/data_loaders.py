"""Data loading: samplers, loaders, shards, and long preparation on one rank."""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Unresolved
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, make_fix, passed, replace_text, rule, unknown
from preflight_rules.helpers import distinct, quoted, ranks_started, subjects, undecided, where, why_unresolved
from preflight_rules.scripts.script_facts import runs_program, started_files

_EVALUATION = re.compile(r"val|test|eval|dev|infer|predict", re.IGNORECASE)


@rule(
    "DAT001",
    "set-epoch-never-called",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no script builds a DistributedSampler for training",
    evidence=("pytorch/pytorch#31771", "pytorch/pytorch#11324", "huggingface/transformers#4398"),
)
def set_epoch_never_called(job: Job) -> Iterator[Verdict]:
    """A shuffling DistributedSampler is used over several epochs without set_epoch.

    What it checks: A script that builds a DistributedSampler which shuffles, and loops over epochs, calls `set_epoch`
    somewhere. A counting loop (`for e in range(3)`) around a loop over a loader counts as a loop over epochs, whatever
    its variable is called.

    Why it matters: Without it every epoch silently has the same order: the model sees the same batches in the same
    order each time, which costs accuracy and is not logged.

    Example: `sampler = DistributedSampler(ds)` and `for epoch in range(10):` without `sampler.set_epoch(epoch)`.

    Fix: Call `sampler.set_epoch(epoch)` at the start of each epoch.

    Known limits: Samplers whose own name, or whose data's name, suggests evaluation, Paddle's DistributedBatchSampler,
    which counts its epochs itself, and scripts driven by a library that calls set_epoch are not reported. A loop in
    another file is not seen: then it is unknown, and the confidence is medium.
    """
    seen: set[tuple[str, int, int]] = set()
    for subject, scope, _ in subjects(job):
        for shuffle in job.about("sampler_shuffle", scope):
            sampler = next((c for c in shuffle.because if c.quantity == "distributed_sampler"), shuffle)
            key = (sampler.span.path, sampler.span.line, sampler.span.column)
            name = next(iter(texts(sampler.value)), "")
            if key in seen or _EVALUATION.search(name):
                continue
            seen.add(key)
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
                    f"{name or 'the sampler'} shuffles and nothing calls set_epoch, but no loop over epochs is found"
                )
                yield unknown(subject, reason, at=sampler)
            else:
                yield failed(
                    subject,
                    f"`{name or 'the sampler'}` shuffles, and {quoted(loops[0])} (line {loops[0].span.line}) runs over"
                    " epochs, but nothing calls set_epoch: every epoch has the same order.",
                    at=sampler,
                    also=((loops[0], "loop over epochs"),),
                    remedy=f"Call `{name or 'sampler'}.set_epoch(epoch)` at the start of each epoch.",
                )


@rule(
    "DAT002",
    "loader-shuffles-beside-sampler",
    severity=Severity.ERROR,
    profile="gate",
    fix="safe",
    otherwise="no DataLoader has both shuffle and a sampler",
    evidence=(
        (
            "torch.utils.data.DataLoader documentation",
            "https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader",
        ),
    ),
)
def loader_shuffles_beside_sampler(job: Job) -> Iterator[Verdict]:
    """A DataLoader is given both shuffle=True and a sampler.

    What it checks: A DataLoader with `shuffle=True` has no `sampler` or `batch_sampler`.

    Why it matters: torch raises ValueError: "sampler option is mutually exclusive with shuffle".

    Example: `DataLoader(ds, batch_size=8, shuffle=True, sampler=DistributedSampler(ds))`.

    Fix: Drop shuffle; the sampler shuffles.

    Known limits: A sampler variable that may be None in another branch is not reported.
    """
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
            if isinstance(shuffle.value, Unresolved):
                yield unknown(subject, f"{quoted(shuffle)} is unknown: {shuffle.value.why}", at=shuffle)
            elif shuffle.alternatives == (True,) and _is_definitely_sampler(job, given[0]):
                yield failed(
                    subject,
                    f"{quoted(shuffle)} is given together with {quoted(given[0])}: torch raises ValueError.",
                    at=shuffle,
                    also=((given[0], "the sampler"),),
                    remedy="Drop `shuffle=True`; a DistributedSampler shuffles by itself.",
                    fix=make_fix("write shuffle=False", replace_text(shuffle, "True", "False"), safe=True),
                )
            else:
                yield passed(subject)


def _is_definitely_sampler(job: Job, sampler: Claim) -> bool:
    name = next(iter(texts(sampler.value)), "")
    if "(" in name:
        return " if " not in name
    built = [c for c in job.about("distributed_sampler") if name in c.alternatives and c.span.path == sampler.span.path]
    return any(c.condition in ("", sampler.condition) for c in built)


@rule(
    "DAT003",
    "fewer-shards-than-ranks",
    severity=Severity.WARNING,
    otherwise="no script lists its data files for a known number of ranks",
    evidence=("PaddlePaddle/Paddle#18956", "meta-pytorch/torchrec#3132"),
)
def fewer_shards_than_ranks(job: Job) -> Iterator[Verdict]:
    """A script lists fewer data files than there are ranks.

    What it checks: A list of data files that the script spells out has at least as many entries as ranks are started.

    Why it matters: A reader that gives each rank its own files leaves some with none: those ranks end their epoch at
    once, and the others wait for them in the next collective.

    Example: Four file names in a list that the script reads and `--nproc_per_node=8`.

    Fix: Split the data into a multiple of the number of ranks, or start fewer ranks.

    Known limits: A reader that splits each file among the ranks needs only one, so this is a warning.
    """
    seen: set[tuple[str, int, int]] = set()
    for subject, scope, launch in subjects(job):
        ranks, because = ranks_started(job, scope)
        for shards in job.about("shard_list", scope):
            key = (shards.span.path, shards.span.line, shards.span.column)
            lengths = [len(value) for value in shards.alternatives if isinstance(value, tuple)]
            if key in seen or not because:
                continue
            seen.add(key)
            undecided_verdict = why_unresolved((shards, *because), launch)
            started = numbers(ranks)
            if undecided_verdict is not None or not lengths or not started:
                why = undecided_verdict[1] if undecided_verdict else "a value known only at run time"
                yield unknown(subject, f"whether there is a shard for each rank is unknown: {why}", at=shards)
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


#: The longest default timeout of collectives (torch.distributed.constants; nccl has 600 s since torch 2.2).
_DEFAULT_S = 1800


@rule(
    "TMO001",
    "long-work-behind-short-timeout",
    severity=Severity.WARNING,
    confidence=Confidence.LOW,
    otherwise="no script does long work on one rank while the others wait",
    evidence=("hiyouga/LlamaFactory#360", "ultralytics/ultralytics#3343", "speechbrain/speechbrain#1766"),
)
def long_work_behind_short_timeout(job: Job) -> Iterator[Verdict]:
    """One rank downloads or preprocesses while all others wait under the default timeout.

    What it checks: A script in which only the first rank downloads, unpacks, tokenizes or converts data before a
    barrier gives the process group a timeout above the default.

    Why it matters: The others wait inside a collective. After 10 minutes (nccl, torch 2.2 and newer) or 30 minutes the
    watchdog kills the job, usually in the middle of the preparation and again at every restart.

    Example: `if rank == 0: download(...)`, then `dist.barrier()`, with `init_process_group("nccl")`.

    Fix: Do the work once before the job, or pass `timeout=timedelta(hours=2)` to init_process_group.

    Known limits: The duration of the work is not known from files; with a small data set it is short enough. In a
    script driven by a library's trainer, which brings its own timeout, the finding is informational.
    """
    seen: set[str] = set()
    for subject, scope, launch in subjects(job):
        work = [c for c in job.about("serial_work", scope) if c.span.path not in seen]
        if not work:
            continue
        seen.update(c.span.path for c in work)
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
            shown = f"{quoted(timeouts[0])} ({min(limits)} s)" if limits else "the default, 10 or 30 minutes"
            yield failed(
                subject,
                f"{quoted(work[0])} runs on one rank while the others wait (line {work[0].span.line}); they"
                f" time out after {shown}.",
                at=work[0],
                also=(
                    *((claim, "more such work") for claim in work[1:4]),
                    *((claim, where(claim)) for claim in timeouts),
                ),
                remedy="Do it once before the job, or pass a longer `timeout=` to init_process_group.",
                severity=Severity.INFO if job.about("training_framework", scope) or _is_helper(job, work[0]) else None,
            )


def _starts_group(job: Job, work: Claim) -> bool:
    """Whether the file that contains the work starts a process group itself."""
    stated = (*job.about("backend"), *job.about("process_group_timeout_s"))
    return any(claim.span.path == work.span.path and claim.source == "python" for claim in stated)


def _is_helper(job: Job, work: Claim) -> bool:
    """Whether the work is in a helper that many scripts may share, mostly for something small."""
    return work.span.path not in started_files(job) and not _starts_group(job, work)
