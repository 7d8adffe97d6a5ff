"""The ports that ranks meet on."""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.job import Claim, Job, Launch, Unresolved
from preflight.judgement import Verdict, failed, not_applicable, passed, rule, unknown
from preflight.lazy.patterns import lazy_pattern
from preflight.outcome import Confidence, Severity
from preflight_rules.reading import (
    certainly_several,
    distinct,
    job_value,
    nodes_spanned,
    numbers,
    quoted,
    spoken,
    subjects,
    texts,
    undecided,
)

_HIGHEST = 65535
#: What stands for a port in a script that is to be filled in before use: `<port>`, `master_port`, `YOUR_PORT`, `xxxx`.
_PLACEHOLDER = lazy_pattern(r"<.*>|\[.*\]|\{.*\}|\w+_port|port_\w+|[xX]{2,}", re.IGNORECASE)
#: `xxx.xxx.xxx.xxx:port`: a whole endpoint to be filled in, which nobody takes for one.
_BLANK_HOST = lazy_pattern(r"[xX*]{1,4}(?:\.[xX*]{1,4}){3}:|<[^<>]*>:|\bip:", re.IGNORECASE)
#: Ports below this can only be bound by root (net.ipv4.ip_unprivileged_port_start, Linux's default).
_FIRST_UNPRIVILEGED = 1024


@rule(
    "PRT001",
    "port-invalid",
    severity=Severity.ERROR,
    profile="gate",
    evidence=(
        "https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.TCPStore",
        "https://docs.kernel.org/networking/ip-sysctl.html",
    ),
)
def port_invalid(job: Job) -> Iterator[Verdict]:
    """The port that ranks meet on is no valid TCP port.

    What it checks:
        The master port, of the launcher, of MASTER_PORT or of the script, is a whole number from 1 to 65535. Below
        1024 only root can listen, which is a warning; so is a word that stands for a port to be filled in.

    Why it matters:
        torchrun stops with "must be an integer between 0 and 65536"; ranks that read MASTER_PORT themselves stop one
        after the other, or wait for one that did.

    Example:
        `--master_port=295000`, or `export MASTER_PORT=port`.

    Fix:
        Take a port from 1024 to 32767, below the range from which Linux gives out ports by itself.

    Known limits:
        Port 0 means "any free one" to a launch on one node and is only wrong with several.

    Evidence:
        torch.distributed.TCPStore documentation; Linux ip-sysctl documentation (ip_unprivileged_port_start).
    """
    seen = False
    for subject, scope, launch in subjects(job):
        for claim in distinct(job.setting("master_port", scope)):
            seen = True
            yield _port(job, subject, launch, claim)
    if not seen:
        yield not_applicable(job.name, "nothing names a port")


def _port(job: Job, subject: str, launch: Launch | None, claim: Claim) -> Verdict:
    remedy = "Take a port from 1024 to 32767."
    if isinstance(claim.value, Unresolved) and claim.value.why.startswith("invalid literal for int()"):
        written = claim.value.why.rpartition(": ")[2]
        blank = _PLACEHOLDER.fullmatch(written.strip("'\"")) is not None
        if _BLANK_HOST.search(claim.spelling):
            return unknown(subject, f"{quoted(claim)} is to be filled in", at=claim)
        return failed(
            subject,
            f"{quoted(claim)} gives {written} where a port number is expected"
            + (": it seems to be left for the reader to fill in." if blank else "."),
            at=claim,
            remedy=remedy,
            severity=Severity.WARNING if blank else None,
        )
    open_end = undecided(subject, (claim,), launch)
    if open_end is not None:
        return open_end
    found = numbers(claim.value)
    several = launch is not None and certainly_several(nodes_spanned(job, launch)[0])
    if found and all(port > _HIGHEST or port < 0 or (port == 0 and several) for port in found):
        return failed(
            subject,
            f"{quoted(claim)} is no port that nodes can meet on: expected 1 to {_HIGHEST}, seen {spoken(found)}.",
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
    evidence=("thu-coai/CDial-GPT#103", "meta-llama/llama-cookbook#186", "NVIDIA/Megatron-LM#343"),
)
def port_shared_by_concurrent_launches(job: Job) -> Iterator[Verdict]:
    """Two launches that share a node want to listen on one port.

    What it checks:
        Launches of one file on one node each that were given different GPUs, so are meant to run side by side,
        have different master ports.

    Why it matters:
        The second one stops with "Address already in use", or joins the store of the first.

    Example:
        `CUDA_VISIBLE_DEVICES=0,1 torchrun --master_port=29500 a.py &` and the same port for GPUs 2 and 3.

    Fix:
        Give each its own port, or leave the port out on one node: torchrun then takes a free one.

    Known limits:
        Launches one after the other may share a port, so nothing is said without disjoint GPUs. Different files
        are not compared. Port 0 means "any free one" and is shared by nobody.

    Evidence:
        thu-coai/CDial-GPT#103, meta-llama/llama-cookbook#186, NVIDIA/Megatron-LM#343.
    """
    users = [(launch, *_port_and_devices(job, launch)) for launch in job.launches]
    met = False
    for index, (first, port, devices) in enumerate(users):
        for second, other_port, other_devices in users[:index]:
            if first.span.path != second.span.path or not devices or not other_devices:
                continue
            if first.span == second.span:
                # One line that a loop or several calls run: what stands around it decides, and is not followed.
                continue
            if devices & other_devices or port is None or other_port is None:
                continue
            met = True
            open_end = undecided(first.id, (port, other_port), first)
            if open_end is not None:
                yield open_end
            elif any(numbers(port.value)) and numbers(port.value) == numbers(other_port.value):
                yield failed(
                    first.id,
                    f"{quoted(port)} is the port of the launch on line {second.span.line} too, and the two hold"
                    " different GPUs, so they seem meant to run side by side.",
                    at=port,
                    also=((other_port, "same port"),),
                    remedy="Give each launch a port of its own.",
                )
            else:
                yield passed(first.id)
    if not met:
        yield not_applicable(job.name, "no two launches hold different GPUs of one node")


def _port_and_devices(job: Job, launch: Launch) -> tuple[Claim | None, frozenset[str]]:
    ports = job.setting("master_port", launch.scope)
    visible = texts(job_value(job.setting("env.CUDA_VISIBLE_DEVICES", launch.scope)))
    devices = frozenset(part.strip() for part in visible[0].split(",") if part.strip()) if len(visible) == 1 else None
    several = certainly_several(nodes_spanned(job, launch)[0])
    return (ports[0] if ports and not several else None), devices or frozenset()


#: What Linux gives out to outgoing connections unless told otherwise (net.ipv4.ip_local_port_range).
_EPHEMERAL = (32768, 60999)


@rule(
    "PRT003",
    "port-among-ephemeral-ones",
    severity=Severity.INFO,
    confidence=Confidence.MEDIUM,
    evidence=("https://docs.kernel.org/networking/ip-sysctl.html", "pytorch/pytorch#126510"),
)
def port_among_ephemeral_ones(job: Job) -> Iterator[Verdict]:
    """The fixed port that nodes meet on is one that Linux also gives to outgoing connections.

    What it checks:
        A master port that is written down for a launch over several nodes lies outside 32768 to 60999.

    Why it matters:
        Any connection that the node makes before the job starts may hold that very port. The job then stops with
        "Address already in use", once in a while and only on some nodes.

    Example:
        `--master_port=45678` with `--nnodes=4`.

    Fix:
        Take a port from 1024 to 32767.

    Known limits:
        A port that is made from the job id is not fixed, and not judged; nor is the range of a site known.

    Evidence:
        Linux ip-sysctl documentation (ip_local_port_range); pytorch/pytorch#126510.
    """
    met = False
    for subject, scope, launch in subjects(job):
        several = launch is not None and certainly_several(nodes_spanned(job, launch)[0])
        for claim in distinct(job.setting("master_port", scope)) if several else ():
            met = True
            open_end = undecided(subject, (claim,), launch)
            found = numbers(claim.value)
            if open_end is not None:
                yield open_end
            elif found and all(_EPHEMERAL[0] <= port <= _EPHEMERAL[1] for port in found):
                yield failed(
                    subject,
                    f"{quoted(claim)} lies among the ports that Linux gives to outgoing connections"
                    f" ({_EPHEMERAL[0]} to {_EPHEMERAL[1]}): now and then it will be taken.",
                    at=claim,
                    remedy="Take a port from 1024 to 32767.",
                )
            else:
                yield passed(subject)
    if not met:
        yield not_applicable(job.name, "no launch over several nodes names a port")
