"""Legacy Fluid: what the transpiler is given, and what is done around it."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Claim, Job, Scope
from preflight.judgement import Verdict, failed, not_applicable, passed, rule, unknown
from preflight.outcome import Severity
from preflight_rules.paddle.paddle_ps import endpoints
from preflight_rules.reading import numbers, placed, quoted, subjects, texts, undecided


def transpilers(job: Job, scope: Scope) -> Iterator[tuple[Claim, str]]:
    """Each transpiler of a scope with its mode; the mode is empty where it is not known."""
    for claim in job.about("transpiler", scope):
        modes = set(texts(claim.value))
        yield claim, modes.pop() if len(modes) == 1 else ""


def of(job: Job, quantity: str, scope: Scope, owner: Claim) -> tuple[Claim, ...]:
    """The claims about a quantity that belong to one object, such as one transpiler."""
    return tuple(
        claim
        for claim in job.about(quantity, scope)
        if any(reason.span == owner.span and reason.quantity == owner.quantity for reason in claim.because)
    )


def each_transpiled(job: Job) -> Iterator[tuple[str, Scope]]:
    """Subjects whose claims are the whole job's only once: a script that two launches start is judged once."""
    seen: set[tuple[object, ...]] = set()
    for subject, scope, _ in subjects(job):
        key = tuple(sorted({(c.span.path, c.span.line) for c in job.about("transpiler", scope)}))
        if key and key not in seen:
            seen.add(key)
            yield subject, scope


@rule(
    "FLU001",
    "transpile-given-text-for-number",
    severity=Severity.ERROR,
    profile="gate",
    applies_to="paddlepaddle < 2.0 (Fluid)",
    evidence=("PaddlePaddle/Paddle#15038",),
)
def transpile_given_text_for_number(job: Job) -> Iterator[Verdict]:
    """The transpiler gets trainer_id or the number of trainers as text.

    What it checks:
        In pserver mode `trainer_id` and `trainers` are no texts, as `os.getenv(...)` without `int(...)` gives them.
        In nccl2 mode `trainers` is a text, the list of endpoints, and no number.

    Why it matters:
        Both become whole-number attributes of operators. With a text the server's program is not built or waits for
        a number of trainers that never comes; in nccl2 mode an assertion without a message stops the program.

    Example:
        `t.transpile(int(os.getenv("TRAINER_ID")), pservers=eps, trainers=os.getenv("TRAINERS"))`.

    Fix:
        Convert: `trainers=int(os.getenv("TRAINERS"))`.

    Known limits:
        Only an argument that is a literal or straight from the environment is judged.

    Evidence:
        PaddlePaddle/Paddle#15038; fluid/transpiler/distribute_transpiler.py of 1.8.5.
    """
    met = False
    for subject, scope in each_transpiled(job):
        for transpiler, mode in transpilers(job, scope):
            wrong = of(job, "text_argument", scope, transpiler)
            counts = [c for c in job.about("ps_workers", scope) if c.source == "paddle"] if mode == "nccl2" else []
            met = True
            if mode in ("nccl2", "collective"):
                wrong = tuple(claim for claim in wrong if texts(claim.value) == ("trainer_id",))
            if not mode and wrong:
                yield unknown(subject, f"{quoted(transpiler)}: its mode is known only at run time", at=transpiler)
            elif wrong:
                name = texts(wrong[0].value)[0]
                yield failed(
                    subject,
                    f"{quoted(wrong[0])} is text where the transpiler needs a number.",
                    at=wrong[0],
                    also=((transpiler, "the transpiler"),),
                    remedy=f"Convert it: `{name}=int(...)`.",
                )
            elif counts and numbers(counts[0].value) and transpiler.span.path == counts[0].span.path:
                yield failed(
                    subject,
                    f"{quoted(counts[0])} is a number, but {placed(transpiler)} is in nccl2 mode, where `trainers` is"
                    " the list of the trainers' endpoints as one text.",
                    at=counts[0],
                    also=((transpiler, "nccl2 mode"),),
                    remedy='Give the endpoints: `trainers="host0:6170,host1:6170"`.',
                )
            else:
                yield passed(subject)
    if not met:
        yield not_applicable(job.name, "nothing uses the transpiler")


@rule(
    "FLU002",
    "server-program-of-unlisted-endpoint",
    severity=Severity.ERROR,
    profile="gate",
    applies_to="paddlepaddle < 2.0 (Fluid)",
    evidence=("PaddlePaddle/Paddle#9426", "PaddlePaddle/Paddle#15038"),
)
def server_program_of_unlisted_endpoint(job: Job) -> Iterator[Verdict]:
    """A server's program is asked for an endpoint that the transpiler was not given.

    What it checks:
        The endpoint of `get_pserver_program` is one of `pservers`, where both stand in the script as texts.

    Why it matters:
        Parameters are assigned to endpoints by their text. For any other endpoint the program is empty or fails with
        a KeyError, and the trainers wait for a server that holds nothing.

    Example:
        `t.transpile(0, pservers="10.0.0.1:6174", trainers=2)` and `t.get_pserver_program("127.0.0.1:6174")`.

    Fix:
        Take the endpoint from the list itself.

    Known limits:
        Endpoints from the environment are judged where the environment is known, by PPS004.

    Evidence:
        PaddlePaddle/Paddle#9426, PaddlePaddle/Paddle#15038.
    """
    met = False
    for subject, scope in each_transpiled(job):
        for asked in job.about("pserver_program_endpoint", scope):
            met = True
            lists = [
                c
                for c in job.about("ps_server_endpoints", scope)
                if c.source == "paddle" and c.span.path == asked.span.path
            ]
            open_end = undecided(subject, (asked, *lists))
            if open_end is not None or not lists:
                yield open_end or unknown(subject, f"{quoted(asked)}: the servers are known only at run time", at=asked)
                continue
            own, listed = texts(asked.value), {entry for claim in lists for entry in endpoints((claim,))}
            if own and listed and not set(own) & listed:
                yield failed(
                    subject,
                    f"{quoted(asked)} is none of the servers of {placed(lists[0])}: {', '.join(sorted(listed))}.",
                    at=asked,
                    also=((lists[0], "the servers"),),
                    remedy="Ask for an endpoint as it is written in `pservers`.",
                )
            else:
                yield passed(subject)
    if not met:
        yield not_applicable(job.name, "no server's program is asked for")


@rule(
    "FLU007",
    "update-settings-exclude-each-other",
    severity=Severity.ERROR,
    profile="gate",
    applies_to="paddlepaddle < 2.0 (Fluid)",
    evidence=(
        "https://github.com/PaddlePaddle/Paddle/blob/v1.8.5/python/paddle/fluid/transpiler/distribute_transpiler.py",
    ),
)
def update_settings_exclude_each_other(job: Job) -> Iterator[Verdict]:
    """A setting of the transpiler that only asynchronous updates have, with synchronous ones.

    What it checks:
        `runtime_split_send_recv` and `enable_dc_asgd` are not switched on while `sync_mode` is on, which it is
        unless it is set to False before.

    Why it matters:
        The configuration raises ValueError, or the transpiler stops at an assertion when the server's program is
        made.

    Example:
        `config.runtime_split_send_recv = True` without `config.sync_mode = False` before it.

    Fix:
        Set `sync_mode = False` first, or leave the setting out.

    Known limits:
        Only settings of a configuration that the script makes itself are known.

    Evidence:
        fluid/transpiler/distribute_transpiler.py of 1.8.5 (DistributeTranspilerConfig, get_pserver_program).
    """
    met = False
    for subject, scope in each_transpiled(job):
        for transpiler, _ in transpilers(job, scope):
            for quantity in ("runtime_split_send_recv", "dc_asgd"):
                for claim in of(job, quantity, scope, transpiler):
                    met = True
                    yield _excluded(job, subject, scope, transpiler, claim)
    if not met:
        yield not_applicable(job.name, "no transpiler has a setting of asynchronous updates")


def _excluded(job: Job, subject: str, scope: Scope, transpiler: Claim, claim: Claim) -> Verdict:
    modes = of(job, "ps_update_mode", scope, transpiler)
    open_end = undecided(subject, (claim, *modes))
    if open_end is not None:
        return open_end
    if set(claim.alternatives) != {True}:
        return passed(subject)
    found = {text for mode in modes for text in texts(mode.value)}
    early = [m for m in modes if texts(m.value) == ("async",) and m.span.line < claim.span.line]
    asynchronous = bool(early) or (claim.quantity == "dc_asgd" and bool(found - {"sync"}))
    if asynchronous or "geo" in found:
        return passed(subject)
    sync = next((m for m in modes if texts(m.value) == ("sync",)), transpiler)
    return failed(
        subject,
        f"{quoted(claim)} needs asynchronous updates, but sync_mode is on ({placed(sync)}).",
        at=claim,
        also=((sync, "synchronous"),),
        remedy="Set `sync_mode = False` on the configuration before it.",
    )
