"""Roles and endpoints of the processes in a parameter-server job."""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight._util.hostnames import host_of
from preflight.model.findings import Fix, Severity
from preflight.model.job import Claim, Job, Launch, Scope, Unresolved
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, make_fix, passed, replace_text, rule, undecided, unknown
from preflight.plugins.claim_text import placed, quoted
from preflight.plugins.questions import SubjectQuestion, subjects, subjects_with
from preflight_rules.paddle.script_setup import is_release_from
from preflight_rules.paddle.server_lists import endpoints

#: The roles that fleet's role maker accepts in TRAINING_ROLE (paddle/distributed/fleet/base/role_maker.py, 2.6).
_ROLES = ("TRAINER", "PSERVER", "HETER_TRAINER", "COORDINATOR")
#: An image of PaddlePaddle's own repository and its release (`paddlepaddle/paddle:3.2.0-gpu-cuda12.6`).
_OFFICIAL = re.compile(r"paddlepaddle/paddle:v?(\d+(?:\.\d+)+(?:rc\d+|b\d+)?)")
#: The first release whose wheels have no parameter server (PaddlePaddle/Paddle#73999).
_FIRST_WITHOUT = "3.1.1"


@rule(
    "PPS002",
    "role-index-out-of-range",
    severity=Severity.ERROR,
    otherwise="no launch sets both an index and a count for its role",
)
def role_index_out_of_range(job: Job) -> Iterator[Verdict]:
    """A trainer or server has an index that is not below its own count.

    What it checks: PADDLE_TRAINER_ID is below PADDLE_TRAINERS_NUM, a server's index below the number of servers, and an
    index is not negative.

    Why it matters: The servers wait for the configured number of trainers and never count one with a higher index:
    training hangs at its first barrier.

    Example: `PADDLE_TRAINER_ID=2` with `PADDLE_TRAINERS_NUM=2`.

    Fix: Count from 0, or increase the number.

    Known limits: Only values visible to one launch line are compared.
    """
    for subject, scope, launch in subjects(job):
        indices = job.setting("ps_index", scope)
        roles = {text for claim in job.setting("ps_role", scope) for text in texts(claim.value)}
        if not indices or (len(roles) != 1 and launch is not None):
            continue
        counts = job.value_claims("ps_servers" if roles == {"PSERVER"} else "ps_workers", scope)
        if not counts:
            continue
        verdict = undecided(subject, (*indices, *counts), launch)
        found, most = numbers(job_value(indices)), numbers(job_value(counts))
        if verdict is None and most and max(most) < 1:
            verdict = failed(
                subject,
                f"{quoted(counts[0])} is not a number of {'servers' if roles == {'PSERVER'} else 'trainers'}: expected"
                " 1 or more.",
                at=counts[0],
                also=((indices[0], "an index below it"),),
                remedy="Give the number of processes of this role that are started.",
                severity=None if launch is not None else Severity.WARNING,
            )
        elif verdict is None and found and most and all(index >= max(most) or index < 0 for index in found):
            verdict = failed(
                subject,
                f"{quoted(indices[0])} is not an index of {quoted(counts[0])}: expected 0 to {max(most) - 1}.",
                at=indices[0],
                also=((counts[0], f"{max(most)} in total"),),
                remedy=f"Number them from 0 to {max(most) - 1}, or raise the count.",
                # A script without a launch may run as a server, which ignores the number.
                severity=None if launch is not None else Severity.WARNING,
            )
        yield verdict or passed(subject)


@rule(
    "PPS003", "training-role-unknown", severity=Severity.ERROR, fix="unsafe", otherwise="no launch sets TRAINING_ROLE"
)
def training_role_unknown(job: Job) -> Iterator[Verdict]:
    """TRAINING_ROLE is set to a role that Paddle does not know.

    What it checks: TRAINING_ROLE is TRAINER, PSERVER, HETER_TRAINER or COORDINATOR, in capitals.

    Why it matters: The role maker raises ValueError in that process, and all others wait for it.

    Example: `export TRAINING_ROLE=SERVER`, meant to be PSERVER.

    Fix: Write the role that the finding names.

    Known limits: A script that reads TRAINING_ROLE itself, without fleet, may know other roles.
    """
    for subject, scope, launch in subjects(job):
        for claim in job.setting("ps_role", scope):
            verdict = undecided(subject, (claim,), launch)
            roles = texts(claim.value)
            if verdict is None and roles and not any(role in _ROLES for role in roles):
                intended = _intended_role(roles[0])
                verdict = failed(
                    subject,
                    f"{quoted(claim)}: Paddle accepts {', '.join(_ROLES)}, not {roles[0] or 'an empty role'}.",
                    at=claim,
                    remedy=f"Write {intended}." if intended else "Write one of them.",
                    fix=_role_fix(claim, roles[0], intended) if intended and len(roles) == 1 else None,
                )
            yield verdict or passed(subject)


def _role_fix(claim: Claim, role: str, intended: str) -> Fix | None:
    """A fix for the role: safe if only the case differs, because WORKER may have its own meaning in the script."""
    return make_fix(f"write {intended}", replace_text(claim, role, intended), safe=role.upper() == intended)


def _intended_role(role: str) -> str:
    name = role.upper()
    if "SERVER" in name or name == "PS":
        return "PSERVER"
    return "TRAINER" if name in ("WORKER", "TRAIN", "TRAINER", "TRAINERS") else ""


@rule(
    "PPS004",
    "own-endpoint-of-wrong-role",
    severity=Severity.ERROR,
    otherwise="no launch sets a role, an endpoint and the list of servers for a process",
)
def own_endpoint_of_wrong_role(job: Job) -> Iterator[Verdict]:
    """A server's own endpoint is not in the list of servers, or a trainer's is.

    What it checks: POD_IP:PADDLE_PORT (or PADDLE_CURRENT_ENDPOINT) of a server is in the list of servers, written the
    same way. PADDLE_CURRENT_ENDPOINT of a trainer is not, which is a warning. Where the list has the host with another
    port, the finding points at the port, and also where POD_IP is set elsewhere and no server of the list has that
    port.

    Why it matters: A server finds its index by looking itself up in the list and stops when it is not there; a trainer
    at a server's endpoint takes the server's port, or is waited for as a server, in scripts that read it.

    Example: `POD_IP=10.0.0.3 PADDLE_PORT=6170` with a list that holds 10.0.0.1:6170 and 10.0.0.2:6170.

    Fix: Write the endpoint in the list and in the process's own variables the same way.

    Known limits: A host given by name in one place and by address in the other is reported: Paddle compares strings.
    """
    for launch in job.launches:
        own = job.setting("ps_current_endpoint", launch.scope)
        servers = job.setting("ps_server_endpoints", launch.scope)
        roles = {text for claim in job.setting("ps_role", launch.scope) for text in texts(claim.value)}
        if not own or not servers or roles not in ({"PSERVER"}, {"TRAINER"}):
            continue
        if undecided_verdict := undecided(launch.id, (*own, *servers), launch):
            port = _own_port(job, launch, own[0])
            unlisted = roles == {"PSERVER"} and port is not None and _port_is_unlisted(port, servers)
            yield (
                _unlisted_port_finding(launch, port, servers[0]) if unlisted and port is not None else undecided_verdict
            )
            continue
        listed, own_address = endpoints(servers), texts(job_value(own))
        inside = [endpoint in listed for endpoint in own_address if ":" in endpoint]
        wrong = bool(inside) and bool(listed) and (not any(inside) if roles == {"PSERVER"} else all(inside))
        if not wrong:
            yield passed(launch.id)
            continue
        yield _misplaced(
            launch, own_address[0], own[0], _own_port(job, launch, own[0]), servers[0], is_server="PSERVER" in roles
        )


def _own_port(job: Job, launch: Launch, own: Claim) -> Claim | None:
    """The claim that gives the port, where the endpoint consists of POD_IP and PADDLE_PORT."""
    if not own.spelling.removeprefix("export ").startswith("POD_IP"):
        return None
    return next(iter(job.setting("env.PADDLE_PORT", launch.scope)), None)


def _port_is_unlisted(port: Claim, servers: tuple[Claim, ...]) -> bool:
    """Whether no entry of the list has this port, so the server cannot be in it."""
    if any(isinstance(claim.value, Unresolved) for claim in (port, *servers)):
        return False
    own_address, listed = texts(port.value), {entry.rpartition(":")[2] for entry in endpoints(servers)}
    known = bool(own_address) and bool(listed) and all(text.isdecimal() for text in (*own_address, *listed))
    return known and not listed & set(own_address)


def _unlisted_port_finding(launch: Launch, port: Claim, servers: Claim) -> Verdict:
    listed = sorted({entry.rpartition(":")[2] for entry in endpoints((servers,))}, key=int)
    return failed(
        launch.id,
        f"the server's port is {texts(port.value)[0]} ({quoted(port)}), but {placed(servers)} has no entry with "
        f"that port, only with {' and '.join(listed)}.",
        at=port,
        also=((servers, "the servers"),),
        remedy="Write the server's port the same way in both places.",
    )


def _misplaced(
    launch: Launch, own_address: str, own: Claim, port: Claim | None, servers: Claim, *, is_server: bool
) -> Verdict:
    """The finding, at the part of the endpoint that differs: the port, if the list contains the host."""
    same_host = [entry for entry in endpoints((servers,)) if host_of(entry) == host_of(own_address)]
    fault = "does not list it" if is_server else "lists it as a server"
    if is_server and same_host:
        fault = f"lists that host with {' or '.join(entry.rpartition(':')[2] for entry in same_host)} only"
    parts = [own] if port is None else [own, port]
    if is_server and same_host:
        parts.reverse()
    return failed(
        launch.id,
        f"the {'server' if is_server else 'trainer'} is at {own_address} ({' and '.join(map(quoted, parts))}), but"
        f" {placed(servers)} {fault}.",
        at=parts[0],
        also=(*((part, "the other part") for part in parts[1:]), (servers, "the servers")),
        remedy="Write the server's endpoint the same way in both places."
        if is_server
        else "Give the trainer its own port, or the role PSERVER.",
        severity=Severity.ERROR if is_server else Severity.WARNING,
    )


def _server_modes(job: Job, scope: Scope) -> list[Claim]:
    return [claim for claim in job.value_claims("ps_mode", scope) if True in claim.alternatives]


def _releases(job: Job, scope: Scope) -> tuple[Claim, ...]:
    return job.value_claims("paddle_version", scope) or _images(job, scope)


@rule(
    "PPS008",
    "parameter-server-missing-in-paddle",
    severity=Severity.ERROR,
    applies_to="paddlepaddle >= 3.1.1",
    otherwise="nothing starts a parameter server",
    each=subjects_with(_server_modes, also=(_releases,)),
)
def parameter_server_missing_in_paddle(question: SubjectQuestion) -> Verdict | None:
    """A parameter-server job names a Paddle release whose wheels have no parameter server.

    What it checks: A job that starts parameter servers does not request PaddlePaddle 3.1.1 or newer.

    Why it matters: From 3.1.1 on the wheels have no parameter server. The launcher still accepts the options and starts
    all processes, and the job dies in `minimize` with an unrelated import error.

    Example: `pip install paddlepaddle==3.3.1` and `fleetrun --server_num=1 --trainer_num=2 train.py`.

    Fix: Use PaddlePaddle 3.0.0 or older, or build it with the parameter server.

    Known limits: Only a version that the job's files name is judged, such as the tag of the official image; what is
    installed is checked by `preflight check`. A custom build may contain the parameter server.
    """
    modes, versions = question.of
    found = [version for claim in versions for text in texts(claim.value) if (version := _version(text))]
    if not found:
        return unknown(question.subject, "the PaddlePaddle release is not given", at=modes[0])
    if all(is_release_from(_FIRST_WITHOUT, text) for text in found):
        return failed(
            question.subject,
            f"{quoted(versions[0])} requests PaddlePaddle {found[0]}, whose wheels have no parameter server"
            f" (since {_FIRST_WITHOUT}), but {placed(modes[0])} starts one.",
            at=versions[0],
            also=((modes[0], "starts parameter servers"),),
            remedy="Use PaddlePaddle 3.0.0 or older for this job.",
        )
    return None


def _images(job: Job, scope: Scope) -> tuple[Claim, ...]:
    """The container images of PaddlePaddle's own repository, whose tag is the release."""
    return tuple(c for c in job.setting("container", scope) if any(_OFFICIAL.search(t) for t in texts(c.value)))


def _version(text: str) -> str:
    image = _OFFICIAL.search(text)
    return image[1] if image else text if "/" not in text else ""
