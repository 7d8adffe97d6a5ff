"""The update mode of parameter servers, synchronous or asynchronous, and PaddleRec's configuration:
runners and modes.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Scope, Unresolved
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, make_fix, passed, replace_text, rule, undecided, unknown
from preflight.plugins.claim_text import joined, placed, quoted
from preflight.plugins.questions import SubjectQuestion, claims_about, subjects, subjects_with
from preflight_rules.paddle.fleet import distinct_claims


def _modes(job: Job, scope: Scope) -> tuple[Claim, ...]:
    """The claims that give the update mode, without defaults where it is set explicitly."""
    found = job.about("ps_update_mode", scope)
    strongest = max((claim.strength for claim in found), default=None)
    return tuple(claim for claim in found if claim.strength is strongest)


@rule(
    "SGD001",
    "synchronous-steps-of-unequal-trainers",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no two trainers set their visible GPUs",
)
def synchronous_steps_of_unequal_trainers(job: Job) -> Iterator[Verdict]:
    """Trainers with different numbers of GPUs update synchronously.

    What it checks: Where servers update synchronously, all trainers of the job see the same number of GPUs.

    Why it matters: Each step lasts as long as that of the slowest trainer. One with half the GPUs halves the speed of
    all.

    Example: `sync_mode=True`, one trainer with `CUDA_VISIBLE_DEVICES=0,1,2,3`, another with `CUDA_VISIBLE_DEVICES=0`.

    Fix: Give the trainers equal resources, or update asynchronously.

    Known limits: The GPU models of the hosts are not known from files.
    """
    trainers = [
        launch
        for launch in job.launches
        if {text for c in job.setting("ps_role", launch.scope) for text in texts(c.value)} == {"TRAINER"}
    ]
    for program in dict.fromkeys(launch.program for launch in trainers):
        group = [launch for launch in trainers if launch.program == program]
        modes = _modes(job, group[0].scope)
        seen = [(launch, job.setting("env.CUDA_VISIBLE_DEVICES", launch.scope)) for launch in group]
        if len(group) < 2 or not modes or not all(claims for _, claims in seen):
            continue
        if undecided_verdict := undecided(group[0].id, (*modes, *(c for _, claims in seen for c in claims)), group[0]):
            yield undecided_verdict
            continue
        if {text for claim in modes for text in texts(claim.value)} != {"sync"}:
            yield passed(group[0].id)
            continue
        counts = [(claims[0], _devices(claims[0])) for _, claims in seen]
        least, most = min(counts, key=lambda pair: pair[1]), max(counts, key=lambda pair: pair[1])
        if least[1] == most[1]:
            yield passed(group[0].id)
        else:
            yield failed(
                group[0].id,
                f"{quoted(least[0])} gives one trainer {least[1]} GPUs, {placed(most[0])} another {most[1]}, and"
                f" {placed(modes[0])} updates synchronously: all wait for the trainer with fewer.",
                at=least[0],
                also=((most[0], "more GPUs"), (modes[0], "synchronous")),
                remedy="Give the trainers the same number of GPUs, or update asynchronously.",
            )


def _devices(claim: Claim) -> int:
    text = (texts(claim.value) or ("",))[0]
    return len([part for part in text.split(",") if part.strip()])


#: Modes of special servers, which update asynchronously.
_ASYNCHRONOUS = {"gpubox": "async", "heter": "async"}


@rule(
    "SGD002", "update-mode-said-twice", severity=Severity.INFO, otherwise="no configuration sets the update mode twice"
)
def update_mode_said_twice(job: Job) -> Iterator[Verdict]:
    """Two places of one configuration give different update modes.

    What it checks: The update modes that one file gives (`sync_mode`, `strategy`, `distribute_strategy`) agree.

    Why it matters: Only one of them is read, runner.sync_mode: who changes the other one, or believes it, trains in
    another mode.

    Example: `runner.sync_mode: async` and `hyper_parameters.optimizer.strategy: sync`.

    Fix: Write the same mode in both places, or only one.

    Known limits: Modes of different files are not compared.
    """
    seen: set[str] = set()
    for subject, scope, _ in subjects(job):
        by_file: dict[str, list[Claim]] = {}
        for claim in job.about("ps_update_mode", scope):
            if claim.source == "paddlerec":
                by_file.setdefault(claim.span.path, []).append(claim)
        for path, claims in by_file.items():
            if len(claims) < 2 or path in seen:
                continue
            seen.add(path)
            verdict = undecided(subject, claims)
            known = [tuple(_ASYNCHRONOUS.get(text, text) for text in texts(claim.value)) for claim in claims]
            if verdict is None and len(set(known)) > 1:
                other = next(claim for claim, mode in zip(claims, known, strict=True) if mode != known[0])
                verdict = failed(
                    subject,
                    f"{quoted(other)} has no effect, as {placed(claims[0])} sets the update mode.",
                    at=other,
                    also=((claims[0], "the mode in force"),),
                    remedy="Write the same mode in both places.",
                )
            yield verdict or passed(subject)


@rule(
    "SGD003",
    "asynchronous-updates-without-servers",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no script sets a_sync",
    profile="pedantic",
)
def asynchronous_updates_without_servers(job: Job) -> Iterator[Verdict]:
    """A collective job requests asynchronous updates.

    What it checks: A script that initialises fleet as collective does not set `strategy.a_sync = True`, and a
    transpiler in nccl2 mode is not given `sync_mode=False`.

    Why it matters: Only parameter servers update asynchronously. A collective job ignores the switch: every step waits
    for the slowest rank, which asynchronous updates would avoid.

    Example: `fleet.init(is_collective=True)` and `strategy.a_sync = True`.

    Fix: Leave `a_sync` out, or start parameter servers.

    Known limits: A script that decides between the two at run time is not judged.
    """
    for subject, _, claim in distinct_claims(job, "nccl2_update_mode"):
        if isinstance(claim.value, Unresolved):
            yield unknown(subject, f"{quoted(claim)} is unknown: {claim.value.why}", at=claim)
        elif texts(claim.value) == ("async",):
            yield failed(
                subject,
                f"{quoted(claim)} has no effect in nccl2 mode ({placed(claim.because[0])}): every step waits for all"
                " trainers.",
                at=claim,
                also=((claim.because[0], "nccl2 mode"),),
                remedy="Remove it, or use pserver mode, which updates asynchronously.",
            )
        else:
            yield passed(subject)
    for subject, scope, claim in distinct_claims(job, "ps_update_mode"):
        if not claim.span.path.endswith(".py") or "a_sync" not in claim.spelling:
            continue
        modes = job.about("ps_mode", scope)
        undecided_verdict = undecided(subject, (claim, *modes))
        asynchronous = bool(texts(claim.value)) and "sync" not in texts(claim.value)
        if undecided_verdict is not None or not modes:
            yield undecided_verdict or unknown(
                subject, f"{quoted(claim)}: the files do not show whether there are servers", at=claim
            )
        elif asynchronous and all(mode.alternatives == (False,) for mode in modes):
            yield failed(
                subject,
                f"{quoted(claim)} has no effect in the collective job of {placed(modes[0])}: every step waits for all"
                " ranks.",
                at=claim,
                also=((modes[0], "collective"),),
                remedy="Remove it, or start parameter servers.",
            )
        else:
            yield passed(subject)


@rule("SGD004", "geo-steps-set-back", severity=Severity.WARNING, otherwise="no script sets k_steps")
def geo_steps_set_back(job: Job) -> Iterator[Verdict]:
    """`k_steps` is set before `a_sync`, which resets it to 0.

    What it checks: `strategy.a_sync_configs = {"k_steps": n}` comes after `strategy.a_sync = ...`.

    Why it matters: Setting `a_sync` replaces the configuration by `{"k_steps": 0}`. The job trains asynchronously with
    an exchange at every step instead of Geo-SGD's one in n: many times the traffic, and another algorithm.

    Example: `strategy.a_sync_configs = {"k_steps": 100}` and then `strategy.a_sync = True`.

    Fix: Set `a_sync` first.

    Known limits: Only assignments in one function are compared.
    """
    lost = list(distinct_claims(job, "a_sync_configs_lost"))
    for subject, _, claim in lost:
        reason = claim.because[0]
        yield failed(
            subject,
            f"{quoted(claim)} is lost: {placed(reason)} after it resets k_steps to 0.",
            at=claim,
            also=((reason, "sets k_steps to 0"),),
            remedy="Assign a_sync_configs after a_sync.",
        )
    if not lost:
        yield from _settled_steps(job)


def _settled_steps(job: Job) -> Iterator[Verdict]:
    """A pass for each number of Geo-SGD's steps, or unknown if it or the mode is open."""
    for subject, scope, claim in distinct_claims(job, "geo_steps"):
        modes = job.about("setting.paddle.a_sync", scope)
        yield undecided(subject, (claim, *modes)) or passed(subject)


@rule(
    "SGD005",
    "asynchronous-with-one-trainer",
    severity=Severity.INFO,
    otherwise="nothing gives both the number of trainers and the update mode",
    profile="pedantic",
    each=subjects_with(lambda job, scope: job.value_claims("ps_workers", scope), _modes),
)
def asynchronous_with_one_trainer(question: SubjectQuestion) -> Verdict | None:
    """Servers update asynchronously for a single trainer.

    What it checks: A job with asynchronous or geo updates has two trainers or more.

    Why it matters: A single trainer does not wait for others anyway: the servers only add transfers to local training.

    Example: `fleetrun --server_num=1 --worker_num=1 train.py` with `a_sync = True`.

    Fix: Train without servers, or start more trainers.

    Known limits: A single trainer may be a trial run, so this is a hint only.
    """
    counts, modes = question.of
    found = {text for claim in modes for text in texts(claim.value)}
    if not found or not found <= {"async", "half-async", "geo"} or set(numbers(job_value(counts))) != {1}:
        return None
    return failed(
        question.subject,
        f"{quoted(counts[0])}: there is one trainer, but {placed(modes[0])} requests {joined(sorted(found))} updates.",
        at=counts[0],
        also=((modes[0], "asynchronous"),),
        remedy="Start more trainers, or train without servers.",
    )


@rule(
    "SGD006",
    "geo-steps-in-synchronous-mode",
    severity=Severity.ERROR,
    profile="default",
    otherwise="no script sets k_steps",
)
def geo_steps_in_synchronous_mode(job: Job) -> Iterator[Verdict]:
    """`k_steps` is above 0 while `a_sync` is False.

    What it checks: Where a script sets `strategy.a_sync = False`, `k_steps` of `a_sync_configs` is 0.

    Why it matters: Fleet knows three modes: synchronous without steps, asynchronous without steps, and Geo-SGD with
    both. For the fourth combination `minimize` raises "k_steps must be invalid value" on every server and trainer.

    Example: `strategy.a_sync = False` and `strategy.a_sync_configs = {"k_steps": 100}`.

    Fix: `strategy.a_sync = True` for Geo-SGD, or no `k_steps`.

    Known limits: Only a script that runs with parameter servers is refused, and only assignments in one function are
    compared.
    """
    refused = list(distinct_claims(job, "geo_steps_refused"))
    for subject, _, claim in refused:
        reason = claim.because[0]
        yield failed(
            subject,
            f"{quoted(claim)} needs `a_sync`, but {placed(reason)} turns it off: Fleet stops in every process.",
            at=claim,
            also=((reason, "synchronous"),),
            remedy="Set a_sync to True for Geo-SGD, or remove k_steps.",
        )
    if not refused:
        yield from _settled_steps(job)


_MODES = ("sync", "async", "half-async", "geo", "heter", "gpubox")


@rule(
    "REC001",
    "update-mode-unknown",
    severity=Severity.ERROR,
    fix="unsafe",
    otherwise="no configuration of PaddleRec sets an update mode",
    each=claims_about("ps_update_mode", where=lambda claim: claim.source == "paddlerec"),
)
def update_mode_unknown(question: SubjectQuestion) -> Verdict | None:
    """A PaddleRec configuration requests an update mode that PaddleRec does not have.

    What it checks: `runner.sync_mode`, `distribute_strategy` and the optimizer's `strategy` are sync, async,
    half_async, geo, heter or gpubox.

    Why it matters: The trainer stops when it builds its strategy, on every host, after the servers have started.

    Example: `sync_mode: "asycn"`.

    Fix: Write the mode that the finding names.

    Known limits: Which of the modes a model supports is not known.
    """
    (claim,) = question.claims
    found = texts(claim.value)
    if found and not set(found) & set(_MODES):
        near = difflib.get_close_matches(found[0], _MODES, 1, 0.6)
        return failed(
            question.subject,
            f"{quoted(claim)}: PaddleRec knows {', '.join(_MODES).replace('half-async', 'half_async')}.",
            at=claim,
            remedy=f"Write {near[0].replace('-', '_')}." if near else "Write one of them.",
            fix=make_fix(f"write {near[0]}", replace_text(claim, found[0], near[0].replace("-", "_")), safe=False)
            if near
            else None,
        )
    return None


@rule(
    "REC002",
    "runner-named-nowhere",
    severity=Severity.ERROR,
    applies_to="PaddleRec 1.8",
    otherwise="no configuration of PaddleRec names its runners",
    each=claims_about("runner_mode", beside=("runner_names",)),
)
def runner_named_nowhere(question: SubjectQuestion) -> Verdict | None:
    """`mode` names a runner that the configuration does not have.

    What it checks: Every name of `mode` is that of an entry of `runner`.

    Why it matters: PaddleRec finds no runner of that name and stops, on every host of the cluster.

    Example: `mode: [cluster_runner]` where `runner` only has `train_runner`.

    Fix: Correct the name in `mode`, or add the runner.

    Known limits: Names that a template fills in are not known.
    """
    (mode,), runners = question.of
    names = {str(name) for value in runners[0].alternatives if isinstance(value, tuple) for name in value}
    wanted = [str(name) for value in mode.alternatives if isinstance(value, tuple) for name in value]
    missing = next((name for name in wanted if name not in names), None)
    if missing is None:
        return None
    return failed(
        question.subject,
        f"{quoted(mode)} names {missing}, but the runners are {', '.join(sorted(names))}.",
        at=mode,
        also=((runners[0], "the runners"),),
        remedy="Name one of the runners in `mode`.",
    )


@rule(
    "REC003",
    "runner-trains-locally",
    severity=Severity.WARNING,
    applies_to="PaddleRec 1.8",
    otherwise="no runner of PaddleRec 1.8 is selected",
    each=claims_about("runner_class"),
)
def runner_trains_locally(question: SubjectQuestion) -> Verdict | None:
    """A runner has settings for distributed training but trains locally.

    What it checks: A runner with `fleet_mode` or `distribute_strategy` that `mode` selects has `class: cluster_train`.

    Why it matters: Any other class trains on one machine and reads neither setting: on a cluster every host trains a
    model of its own.

    Example: `class: train` with `fleet_mode: ps`.

    Fix: Write `class: cluster_train`.

    Known limits: A runner that `mode` does not name is not judged.
    """
    (kind,) = question.claims
    stated = question.of.job.about("runner_not_distributed", question.of.scope)
    misplaced = [claim for claim in stated if claim.span.path == kind.span.path]
    if misplaced and texts(kind.value) == ("train",):
        return failed(
            question.subject,
            f"{quoted(misplaced[0])} is for cluster training, but the runner is {placed(kind)}: it trains on one"
            " machine and does not read it.",
            at=kind,
            also=((misplaced[0], "not read"),),
            remedy="Write `class: cluster_train`.",
        )
    return None
