"""Arguments that Hugging Face's trainer, or llamafactory-cli, rejects or ignores."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Known, Launch, Scope, Unresolved
from preflight.model.job.claim import distinct, job_value
from preflight.model.job.value import texts
from preflight.plugins.authoring import Verdict, failed, make_fix, passed, replace_text, rule, undecided, unknown
from preflight.plugins.claim_text import quoted
from preflight.plugins.questions import LaunchQuestion, launches_with, required, subjects
from preflight.sources.tables import load_table
from preflight_rules.launches import certainly_several
from preflight_rules.rendezvous.variables import closest
from preflight_rules.settings.given import given
from preflight_rules.sizes.batch import uses_hugging_face
from preflight_rules.sizes.trainer_settings import numbers_of, trainer_claims


@rule(
    "HFT003",
    "llamafactory-rank-of-the-node-ignored",
    severity=Severity.WARNING,
    fix="unsafe",
    otherwise="the job does not start llamafactory-cli on several nodes",
    each=launches_with(required("nodes"), where=lambda stated: stated.launch.launcher == "llamafactory-cli"),
)
def llamafactory_rank_of_the_node_ignored(question: LaunchQuestion) -> Verdict | None:
    """llamafactory-cli is given RANK, but reads NODE_RANK.

    What it checks: A `llamafactory-cli train` over several nodes that sets RANK also sets NODE_RANK.

    Why it matters: Without NODE_RANK every node takes rank 0. Each starts a group of its own, prints "Initializing ...
    distributed tasks", and waits for the others until it times out.

    Example: `FORCE_TORCHRUN=1 NNODES=2 RANK=1 MASTER_ADDR=... llamafactory-cli train a.yaml`.

    Fix: Set NODE_RANK, counting from 0, each value once.

    Known limits: Versions before 0.9.2 looked for RANK; which version is installed is not known.
    """
    nodes = question.claims
    job, launch = question.of.job, question.of.launch
    ranks = job.setting("env.RANK", launch.scope)
    if ranks and certainly_several(job_value(nodes)) and not job.about("env.NODE_RANK", launch.scope):
        return failed(
            question.subject,
            f"{quoted(ranks[0])} is ignored: llamafactory-cli reads the rank of a node from NODE_RANK, which"
            " is not set, so every node is node 0.",
            at=ranks[0],
            also=((nodes[0], "several nodes"),),
            remedy="Set NODE_RANK instead, starting at 0 and different on each node.",
            fix=make_fix("set NODE_RANK", replace_text(ranks[0], "RANK", "NODE_RANK"), safe=False),
        )
    return None


_MIN_LENGTH = 8


_LONG = 12


@rule(
    "HFT004",
    "trainer-argument-misspelt",
    severity=Severity.WARNING,
    fix="unsafe",
    confidence=Confidence.MEDIUM,
    otherwise="no file with training arguments",
)
def trainer_argument_misspelt(job: Job) -> Iterator[Verdict]:
    """A file of training arguments contains a misspelt argument.

    What it checks: Keys of files for Hugging Face's trainer (LLaMA-Factory, TRL and the like) that are not its
    arguments but almost the same as one.

    Why it matters: The trainer's parser rejects a key that it does not know; where a script ignores unknown keys, the
    default stays in force.

    Example: `gradient_acumulation_steps: 8`.

    Fix: Write the argument as the trainer spells it.

    Known limits: A script's own arguments that resemble none of the trainer's are left alone, and so are those that
    only an older or newer version has.
    """
    # CFG003 judges what nothing but TrainingArguments is parsed from.
    strict = {
        claim.span.path
        for place in given(job, "transformers")
        if place.parser is not None and place.parser.alternatives == (True,)
        for claim in place.keys.values()
    }
    for claim in distinct(job.about("trainer_argument")):
        if claim.span.path in strict:
            continue
        (name,) = texts(claim.value) or ("",)
        if isinstance(claim.value, Unresolved):
            yield unknown(claim.span.path, f"{quoted(claim)}: {claim.value.why}", at=claim)
            continue
        if not _is_hugging_face_file(job, claim):
            continue
        near = "" if name in load_table("training_arguments").names() else _similar_argument(name)
        if near:
            yield failed(
                claim.span.path,
                f"{quoted(claim)} is not an argument of the trainer; {near} is probably meant.",
                at=claim,
                remedy=f"Write {near}.",
                fix=make_fix(f"rename {name} to {near}", replace_text(claim, name, near), safe=False),
            )
        else:
            yield passed(claim.span.path)


def _is_hugging_face_file(job: Job, key: Claim) -> bool:
    return any(
        "transformers" in claim.alternatives and claim.source == "trainer" and claim.span.path == key.span.path
        for claim in job.about("training_framework")
    )


def _similar_argument(name: str) -> str:
    if len(name) < _MIN_LENGTH:
        return ""
    return closest(name, load_table("training_arguments").names(), 2 if len(name) >= _LONG else 1)


@rule(
    "HFT005",
    "best-model-needs-equal-strategies",
    severity=Severity.ERROR,
    profile="default",
    otherwise="no trainer loads its best checkpoint",
)
def best_model_needs_equal_strategies(job: Job) -> Iterator[Verdict]:
    """The trainer loads the best checkpoint at the end, but its save and evaluation settings differ.

    What it checks: With load_best_model_at_end, save_strategy and eval_strategy are the same (or save_strategy is
    `best`), and with `steps` save_steps is a multiple of eval_steps.

    Why it matters: Otherwise the trainer refuses to start, after the job has been queued and the model has been loaded.

    Example: `load_best_model_at_end: true` with `save_strategy: epoch` and no eval_strategy (whose default is `no`).

    Fix: Give both the same strategy, and save at a multiple of the steps between evaluations.

    Known limits: Only where load_best_model_at_end and a strategy are in a file of arguments or on one command line;
    axolotl and scripts set further defaults. On a command line alone it is a warning for that reason, unless the
    program parses it with HfArgumentParser.
    """
    for subject, scope, launch in subjects(job):
        best = trainer_claims(job, "load_best_model", scope)
        saving, evaluating = (trainer_claims(job, f"{name}_strategy", scope) for name in ("save", "eval"))
        # Only `TrainingArguments` has that argument in a script.
        known = uses_hugging_face(job, launch, scope) or any(claim.source in ("python", "dataclass") for claim in best)
        if not best or not (saving or evaluating) or not known:
            continue
        if undecided_verdict := undecided(subject, (*best, *saving, *evaluating), launch):
            yield undecided_verdict
            continue
        save = (texts(job_value(saving)) or ("",)) if saving else ("steps",)
        check = (texts(job_value(evaluating)) or ("",)) if evaluating else ("no",)
        if best[0].value != Known(True) or save == ("best",) or (set(save) & set(check) and save != ("steps",)):
            yield passed(subject)
        elif not set(save) & set(check):
            strategy = quoted(saving[0]) if saving else "save_strategy is `steps` by default"
            other = quoted(evaluating[0]) if evaluating else "eval_strategy is `no` by default"
            yield failed(
                subject,
                f"{quoted(best[0])} needs the same strategy for saving and evaluating, but {strategy} and {other}: the"
                " trainer refuses to start.",
                at=best[0],
                also=tuple((claim, "its strategy") for claim in (*saving[:1], *evaluating[:1])),
                remedy="Give save_strategy and eval_strategy the same value.",
                severity=_severity(job, best[0], launch),
            )
        else:
            yield _steps(job, subject, scope, launch, best[0])


def _severity(job: Job, best: Claim, launch: Launch | None) -> Severity | None:
    if launch is None:
        return Severity.WARNING
    parsed = any(place.launch is launch and place.parser is not None for place in given(job, "transformers"))
    return Severity.WARNING if best.source == "arguments" and not parsed else None


def _steps(job: Job, subject: str, scope: Scope, launch: Launch | None, best: Claim) -> Verdict:
    saved, checked = (trainer_claims(job, f"{name}_steps", scope) for name in ("save", "eval"))
    every, each = numbers_of(saved), numbers_of(checked)
    if undecided_verdict := undecided(subject, (*saved, *checked), launch):
        return undecided_verdict
    if not saved or not checked or len(every) != 1 or len(each) != 1 or each[0] < 1 or every[0] < 1:
        return passed(subject)
    if every[0] % each[0] == 0:
        return passed(subject)
    return failed(
        subject,
        f"{quoted(best)} needs a checkpoint at evaluations only, but {quoted(saved[0])} is not a multiple of"
        f" {quoted(checked[0])}: the trainer refuses to start.",
        at=saved[0],
        also=((checked[0], "evaluates"), (best, "needs both together")),
        remedy=f"Give save_steps a multiple of {each[0]:g}.",
        severity=_severity(job, best, launch),
    )
