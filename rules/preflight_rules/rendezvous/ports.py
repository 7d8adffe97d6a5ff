"""Rendezvous ports, and rendezvous arguments of one launch line that exclude each other or are ignored."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Launch, Strength, as_int, refused_number
from preflight.model.job.claim import distinct, job_value
from preflight.model.job.job import SUBMISSION
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, delete_word, failed, make_fix, passed, rule, undecided, unknown
from preflight.plugins.claim_text import argument_of, joined, quoted
from preflight.plugins.questions import LaunchQuestion, Stated, launches_with, required, subjects
from preflight_rules.launches import (
    SPREADING_WRAPPERS,
    certainly_one,
    certainly_several,
    is_same_line_again,
    nodes_spanned,
    place_started,
    starting_file,
    waited_between,
)

_MAX_PORT = 65535
#: Placeholders for a port: `<port>`, `master_port`, `YOUR_PORT`, `xxxx`.
_PLACEHOLDER = re.compile(r"<.*>|\[.*\]|\{.*\}|\w+_port|port_\w+|[xX]{2,}", re.IGNORECASE)
#: `xxx.xxx.xxx.xxx:port`: a placeholder for a whole endpoint.
_PLACEHOLDER_HOST = re.compile(r"[xX*]{1,4}(?:\.[xX*]{1,4}){3}:|<[^<>]*>:|\bip:", re.IGNORECASE)
#: The script keeps the value that it is given.
_WITH_DEFAULT = re.compile(r"environ\.get|getenv")
#: Ports below this can only be bound by root (net.ipv4.ip_unprivileged_port_start, Linux's default).
_FIRST_UNPRIVILEGED = 1024


@rule("PRT001", "port-invalid", severity=Severity.ERROR, otherwise="nothing sets a port")
def port_invalid(job: Job) -> Iterator[Verdict]:
    """The rendezvous port is not a valid TCP port.

    What it checks: The master port, of the launcher, of MASTER_PORT or of the script, is a whole number from 1 to
    65535. A port below 1024, where only root can listen, is a warning; so is a placeholder.

    Why it matters: torchrun stops with "must be an integer between 0 and 65536"; ranks that read MASTER_PORT themselves
    stop one after another.

    Example: `--master_port=295000`, or `export MASTER_PORT=port`.

    Fix: Use a port from 1024 to 32767, below the range from which Linux assigns ports itself.

    Known limits: Port 0 means "any free one" to a launch on one node and is only wrong with several.
    """
    for subject, scope, launch in subjects(job):
        for claim in distinct(job.setting("master_port", scope)):
            yield _port(job, subject, launch, claim)
        for claim in distinct(job.about("env.MASTER_PORT", scope)):
            # A default for a variable that the launcher sets is never used under it.
            if claim.source == "python" and _WITH_DEFAULT.search(claim.spelling) is None:
                yield _port(job, subject, launch, replace(claim, value=as_int(claim.value)))


def _port(job: Job, subject: str, launch: Launch | None, claim: Claim) -> Verdict:
    remedy = "Use a port from 1024 to 32767."
    written = refused_number(claim.value)
    if written is not None:
        blank = _PLACEHOLDER.fullmatch(written) is not None
        if _PLACEHOLDER_HOST.search(claim.spelling):
            return unknown(subject, f"{quoted(claim)} is a placeholder", at=claim)
        return failed(
            subject,
            f"{quoted(claim)} gives {written!r}, but a port number is expected"
            + (": it looks like a placeholder." if blank else "."),
            at=claim,
            remedy=remedy,
            severity=Severity.WARNING if blank else None,
        )
    if undecided_verdict := undecided(subject, (claim,), launch):
        return undecided_verdict
    found = numbers(claim.value)
    several = launch is not None and certainly_several(nodes_spanned(job, launch)[0])
    if found and all(port > _MAX_PORT or port < 0 or (port == 0 and several) for port in found):
        return failed(
            subject,
            f"{quoted(claim)} is not a valid port for a rendezvous: expected 1 to {_MAX_PORT}, found {joined(found)}.",
            at=claim,
            remedy=remedy,
        )
    if found and all(0 < port < _FIRST_UNPRIVILEGED for port in found):
        return failed(
            subject,
            f"{quoted(claim)}: only root can listen on a port below {_FIRST_UNPRIVILEGED}.",
            at=claim,
            remedy=remedy,
            severity=Severity.WARNING,
        )
    return passed(subject)


@rule(
    "PRT002",
    "port-shared-by-concurrent-launches",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no two launches use different GPUs of one node",
)
def port_shared_by_concurrent_launches(job: Job) -> Iterator[Verdict]:
    """Two launches that run side by side on one node use the same port.

    What it checks: Single-node launches of one file that run side by side, because they start in the background or have
    different GPUs, have different master ports.

    Why it matters: The second one stops with "Address already in use", or joins the first one's store.

    Example: `CUDA_VISIBLE_DEVICES=0,1 torchrun --master_port=29500 a.py &` and the same port for GPUs 2 and 3.

    Fix: Give each its own port, or leave the port out on one node: torchrun then takes a free one.

    Known limits: Launches one after the other may share a port. Those with disjoint GPUs look like commands for several
    terminals, which is information; without disjoint GPUs only background starts are compared. Different files are not.
    Port 0 means "any free port" and is never shared.
    """
    users = [(launch, *_port_and_devices(job, launch)) for launch in job.launches]
    for index, (first, port, devices) in enumerate(users):
        for second, other_port, other_devices in users[:index]:
            if port is None or other_port is None or not _run_together(first, second, devices, other_devices):
                continue
            if first.concurrent and waited_between(job, second, first):
                yield passed(first.id)
                continue
            verdict = undecided(first.id, (port, other_port), first)
            if verdict is None and any(numbers(port.value)) and numbers(port.value) == numbers(other_port.value):
                verdict = failed(
                    first.id,
                    f"{quoted(port)} is also the port of the launch on line {second.span.line}, and the two"
                    " use different GPUs, so they seem to run side by side."
                    if not first.concurrent
                    else f"{quoted(port)} is also the port of the launch that {_start_of(second)} starts, which runs at"
                    " the same time.",
                    at=port if first.span != second.span else argument_of(port) or place_started(first),
                    also=((argument_of(other_port) or place_started(second), "same port"),)
                    if first.span == second.span
                    else ((other_port, "same port"),),
                    remedy="Give each launch its own port.",
                    severity=None if first.concurrent else Severity.INFO,
                )
            yield verdict or passed(first.id)


def _run_together(first: Launch, second: Launch, devices: frozenset[str], others: frozenset[str]) -> bool:
    """Whether two launches run at the same time on one host, as far as their script shows."""
    if f"not {first.condition}" == second.condition or f"not {second.condition}" == first.condition:
        return False
    if first.concurrent and second.concurrent:
        remote = SPREADING_WRAPPERS | {"ssh", "sbatch", SUBMISSION}
        alone = not remote.intersection((*first.wrappers, *second.wrappers))
        # Ranks that are started one by one share the port of their rendezvous.
        alone = alone and first.launcher != "python" and second.launcher != "python"
        return alone and starting_file(first) == starting_file(second) and not is_same_line_again(first, second)
    # One line that a loop or several calls run may run once at a time.
    is_separate = first.span.path == second.span.path and first.span != second.span
    return is_separate and bool(devices and others) and not devices & others


def _start_of(launch: Launch) -> str:
    place = place_started(launch)
    return f"{place.path}:{place.line}"


def _port_and_devices(job: Job, launch: Launch) -> tuple[Claim | None, frozenset[str]]:
    ports = job.setting("master_port", launch.scope)
    visible = texts(job_value(job.setting("env.CUDA_VISIBLE_DEVICES", launch.scope)))
    devices = frozenset(part.strip() for part in visible[0].split(",") if part.strip()) if len(visible) == 1 else None
    several = certainly_several(nodes_spanned(job, launch)[0])
    return (ports[0] if ports and not several else None), devices or frozenset()


#: Linux's default port range for outgoing connections (net.ipv4.ip_local_port_range).
_EPHEMERAL = (32768, 60999)


@rule(
    "PRT003",
    "port-among-ephemeral-ones",
    severity=Severity.INFO,
    confidence=Confidence.MEDIUM,
    otherwise="no launch over several nodes names a port",
)
def port_among_ephemeral_ones(job: Job) -> Iterator[Verdict]:
    """A fixed rendezvous port is in the range that Linux uses for outgoing connections.

    What it checks: A fixed master port of a launch over several nodes is outside 32768 to 60999.

    Why it matters: Any connection that the node makes before the job starts may hold that port. The job then stops with
    "Address already in use", occasionally and only on some nodes.

    Example: `--master_port=45678` with `--nnodes=4`.

    Fix: Use a port from 1024 to 32767.

    Known limits: A port derived from the job id is not judged. A site's own range is not known.
    """
    for subject, scope, launch in subjects(job):
        several = launch is not None and certainly_several(nodes_spanned(job, launch)[0])
        for claim in distinct(job.setting("master_port", scope)) if several else ():
            verdict = undecided(subject, (claim,), launch)
            found = numbers(claim.value)
            if verdict is None and found and all(_EPHEMERAL[0] <= port <= _EPHEMERAL[1] for port in found):
                verdict = failed(
                    subject,
                    f"{quoted(claim)} is in the range that Linux uses for outgoing"
                    f" connections ({_EPHEMERAL[0]} to {_EPHEMERAL[1]}): sometimes it will be in use.",
                    at=claim,
                    remedy="Use a port from 1024 to 32767.",
                )
            yield verdict or passed(subject)


def _is_standalone(stated: Stated[Launch]) -> bool:
    return any(True in claim.alternatives for claim in stated.settings[0])


@rule(
    "RDV006",
    "standalone-on-several-nodes",
    severity=Severity.ERROR,
    otherwise="no launch uses --standalone",
    each=launches_with("standalone", required("nodes"), where=_is_standalone),
)
def standalone_on_several_nodes(question: LaunchQuestion) -> Verdict | None:
    """`--standalone` is given to a launch over several nodes.

    What it checks: `--standalone` is not combined with more than one node.

    Why it matters: `--standalone` replaces the rendezvous with one on localhost with its own port, whatever endpoint is
    given. Each node then waits for the others and gives up after the join timeout.

    Example: `torchrun --standalone --nnodes=2 --nproc_per_node=8 train.py`.

    Fix: Remove `--standalone` and give `--rdzv_backend=c10d --rdzv_endpoint=HOST:PORT`, or `--nnodes=1`.

    Known limits: Only `--nnodes` of the same launch is compared, not the size of the allocation.
    """
    standalone, nodes = question.of
    if not certainly_several(job_value(nodes)) or not all(c.alternatives == (True,) for c in standalone):
        return None
    count = joined(numbers(job_value(nodes)))
    return failed(
        question.subject,
        f"{quoted(standalone[0])} makes every node use its own localhost, but {quoted(nodes[0])}"
        f" needs {count} nodes to meet: each waits alone until it times out.",
        at=standalone[0],
        also=((nodes[0], f"{count} nodes"),),
        remedy="Replace --standalone with --rdzv_backend=c10d --rdzv_endpoint=HOST:PORT, or set --nnodes=1.",
        waits_at="rendezvous",
    )


#: Ignored arguments, the argument that overrides each, and what is used instead.
_IGNORED_BY_ENDPOINT = ("unused_master_addr", "unused_master_port")


@rule(
    "RDV007",
    "rendezvous-argument-ignored",
    severity=Severity.WARNING,
    fix="safe",
    otherwise="no torchrun launch chooses its rendezvous",
)
def rendezvous_argument_ignored(job: Job) -> Iterator[Verdict]:
    """A rendezvous argument is given that torchrun does not use.

    What it checks: `--master_addr`, `--master_port` and `--node_rank` together with a dynamic backend
    (`--rdzv_backend=c10d`), and `--master_addr` together with `--rdzv_endpoint` under the static one.

    Why it matters: The argument looks as if it set the rendezvous, but changing it has no effect. Without an endpoint,
    c10d falls back to localhost although a master address is given.

    Example: `torchrun --rdzv_backend=c10d --master_addr=$MASTER_ADDR --master_port=6000 ...`.

    Fix: With c10d give `--rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT`; with static leave the backend out.

    Known limits: An argument that agrees with the endpoint is harmless and not reported; on one node it is advice.
    """
    for launch in job.launches:
        if launch.launcher not in ("torchrun", "torch.distributed.launch"):
            continue
        backend = job.setting("rendezvous_backend", launch.scope)
        endpoint = _flags(job, launch, "rendezvous_endpoint")
        if not backend and not endpoint:
            continue
        if undecided_verdict := undecided(launch.id, backend, launch):
            yield undecided_verdict
            continue
        dynamic = bool(backend) and all("static" not in texts(c.value) for c in backend)
        found = list(_ignored(job, launch, endpoint, backend[0] if dynamic else None))
        yield from found
        if not found:
            yield passed(launch.id)


def _flags(job: Job, launch: Launch, quantity: str) -> tuple[Claim, ...]:
    """Claims that the user wrote on this launch line."""
    return tuple(
        c for c in job.setting(quantity, launch.scope) if c.scope.launch == launch.id and c.strength is Strength.FLAG
    )


def _ignored(job: Job, launch: Launch, endpoint: tuple[Claim, ...], dynamic: Claim | None) -> Iterator[Verdict]:
    winner = dynamic if dynamic is not None else (endpoint[0] if endpoint else None)
    if winner is None:
        return
    for quantity in _IGNORED_BY_ENDPOINT:
        for claim in _flags(job, launch, quantity):
            if endpoint and _agrees(claim, endpoint[0]):
                continue
            used = f"{quoted(endpoint[0])} is used" if endpoint else "the endpoint is then localhost"
            yield failed(
                launch.id,
                f"{quoted(claim)} has no effect with {quoted(winner)}: {used}.",
                at=claim,
                also=((winner, "decides"),),
                remedy="Give the address as --rdzv_endpoint=HOST:PORT, or remove --rdzv_backend and --rdzv_endpoint, "
                "and remove the unused options.",
                severity=Severity.INFO if certainly_one(nodes_spanned(job, launch)[0]) else None,
                fix=make_fix(f"drop {claim.spelling}, which is unused", delete_word(claim), safe=True)
                if endpoint
                else None,
            )
    if dynamic is not None:
        for claim in _flags(job, launch, "node_rank"):
            yield failed(
                launch.id,
                f"{quoted(claim)} has no effect with {quoted(dynamic)}: the backend assigns node ranks itself.",
                at=claim,
                also=((dynamic, "decides"),),
                remedy="Drop it, or use the static backend if the order of nodes matters.",
                severity=Severity.INFO,
                fix=make_fix("drop the node rank, which has no effect", delete_word(claim), safe=True),
            )


def _agrees(claim: Claim, endpoint: Claim) -> bool:
    """Whether the endpoint contains the unused argument anyway, or both are unknown."""
    ends = texts(endpoint.value)
    if not ends:
        name = claim.spelling.replace("=", " ").split()[-1].strip("\"'${}")
        return bool(name) and name in endpoint.spelling
    return all(str(value) in end for end in ends for value in claim.alternatives) and bool(claim.alternatives)
