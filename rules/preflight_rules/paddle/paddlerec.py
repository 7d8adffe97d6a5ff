"""PaddleRec's configuration: runners and update modes."""

from __future__ import annotations

import difflib

from preflight.model.findings import Severity
from preflight.model.job.value import texts
from preflight.plugins.authoring import Verdict, failed, make_fix, replace_text, rule
from preflight.plugins.claim_text import placed, quoted
from preflight.plugins.questions import SubjectQuestion, claims_about

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
