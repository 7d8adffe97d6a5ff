"""PaddlePaddle 0.x: servers and trainers started by `paddle pserver`, `paddle train` or cluster_train."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Launch, Relation, Scope
from preflight.model.job.claim import distinct
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import placed, quoted, where
from preflight.plugins.questions import LaunchQuestion, launches_with, subjects

_MAX_PORT = 65535
_RANGE = ("pserver_port", "pserver_ports", "pserver_sparse_ports")
_NAMES = {
    "pserver_port": "--port",
    "pserver_ports": "--ports_num",
    "pserver_sparse_ports": "--ports_num_for_sparse",
    "ps_workers": "--num_gradient_servers",
}


def _setting(job: Job, quantity: str, scope: Scope) -> Claim | None:
    """The claim that sets a quantity in a scope, if there is exactly one."""
    found = job.setting(quantity, scope)
    return found[0] if len(found) == 1 else None


def _range(job: Job, scope: Scope) -> tuple[tuple[Claim, ...], tuple[int, int] | None]:
    """The claims about a server's ports, and the first and last port if known."""
    claims = tuple(claim for name in _RANGE if (claim := _setting(job, name, scope)) is not None)
    known = {claim.quantity: numbers(claim.value) for claim in claims}
    if len(claims) < 2 or not all(len(found) == 1 for found in known.values()) or "pserver_port" not in known:
        return claims, None
    first = known["pserver_port"][0]
    count = sum(found[0] for name, found in known.items() if name != "pserver_port")
    return claims, (first, first + max(1, count) - 1)


@rule(
    "CLT001",
    "server-ports-out-of-range",
    severity=Severity.ERROR,
    applies_to="paddlepaddle < 0.12",
    otherwise="no server of PaddlePaddle 0.x names its ports",
)
def server_ports_out_of_range(job: Job) -> Iterator[Verdict]:
    """The ports of a server run past port 65535, or into those of another server on the same host.

    What it checks: port + ports_num + ports_num_for_sparse - 1 is at most 65535, each number is positive, and the port
    ranges of two servers in one script do not overlap.

    Why it matters: A server listens on that many consecutive ports. One that cannot be bound stops it, and all trainers
    wait. A firewall has to let the whole range through.

    Example: `PADDLE_PORT = 65534` with `PADDLE_PORTS_NUM = 2` and `PADDLE_PORTS_NUM_FOR_SPARSE = 2`.

    Fix: Choose a lower first port.

    Known limits: Which ports are free on the hosts is not known.
    """
    seen: list[tuple[Launch, tuple[int, int], Claim]] = []
    judged: set[tuple[str, int]] = set()
    for subject, scope, launch in subjects(job):
        claims, ports = _range(job, scope)
        if len(claims) < 2 or (claims[0].span.path, claims[0].span.line) in judged:
            continue
        judged.add((claims[0].span.path, claims[0].span.line))
        undecided_verdict = undecided(subject, claims, launch)
        if undecided_verdict is not None or ports is None:
            yield undecided_verdict or unknown(
                subject, f"{quoted(claims[0])}: not all of its ports are known", at=claims[0]
            )
            continue
        first, last = ports
        together = " + ".join(quoted(claim) for claim in claims)
        if first < 1 or last > _MAX_PORT or any(min(numbers(claim.value)) < 0 for claim in claims):
            yield failed(
                subject,
                f"{together} use ports {first} to {last}, but the highest port is {_MAX_PORT}.",
                at=claims[0],
                also=tuple((claim, "counts") for claim in claims[1:]),
                remedy=f"Choose a first port of at most {_MAX_PORT - (last - first)}.",
            )
            continue
        role = {text for c in job.setting("ps_role", scope) for text in texts(c.value)}
        if launch is not None and role == {"PSERVER"}:
            clash = next((other for other in seen if other[1][0] <= last and first <= other[1][1]), None)
            beside = clash is not None and clash[0].span.path == launch.span.path and not launch.wrappers
            seen.append((launch, ports, claims[0]))
            if clash is not None and beside:
                yield failed(
                    subject,
                    f"{together} use ports {first} to {last}, but the server of {where(clash[2])} listens on"
                    f" {clash[1][0]} to {clash[1][1]}.",
                    at=claims[0],
                    also=((clash[2], "the other server"),),
                    remedy=f"Start this server's ports after {clash[1][1]}.",
                )
                continue
        yield passed(subject)


@rule(
    "CLT002",
    "trainer-dials-other-ports",
    severity=Severity.ERROR,
    applies_to="paddlepaddle < 0.12",
    otherwise="no trainer of PaddlePaddle 0.x is started together with its servers",
)
def trainer_dials_other_ports(job: Job) -> Iterator[Verdict]:
    """Trainers and servers are given different ports or different numbers of trainers.

    What it checks: --port, --ports_num, --ports_num_for_sparse and --num_gradient_servers of `paddle train`, and what a
    program of the v2 API gives to `paddle.init()`, are those of `paddle pserver`; and `paddle.py` passes the same
    numbers to trainers as conf.py to servers.

    Why it matters: A trainer treats each port as a separate server: with more ports it dials unused ones and retries
    forever, with fewer some servers wait forever. paddle.py passes options from its command line to trainers only.

    Example: `PADDLE_PORTS_NUM_FOR_SPARSE = 4` in conf.py and `python paddle.py --ports_num_for_sparse=2`.

    Fix: Write the numbers once, in conf.py or in variables of the script.

    Known limits: Trainers and servers of different scripts are compared only where the scripts belong to one job.
    """
    for subject, launch, name, ours, theirs in _pairs(job):
        verdict = undecided(subject, (ours, theirs), launch)
        trainers, servers = numbers(ours.value), numbers(theirs.value)
        if verdict is None and trainers and servers and not set(trainers) & set(servers):
            verdict = failed(
                subject,
                f"{quoted(ours)} gives trainers {trainers[0]}, but {placed(theirs)} gives servers {servers[0]}.",
                at=ours,
                also=((theirs, "the servers"),),
                remedy=f"Make {name} the same for servers and trainers.",
            )
        yield verdict or passed(subject)


class _Pair(NamedTuple):
    """A setting that trainers and servers are given, under the name of its option."""

    subject: str
    launch: Launch | None
    option: str
    trainers: Claim
    servers: Claim


def _pairs(job: Job) -> Iterator[_Pair]:
    servers = [launch for launch in job.launches if launch.launcher == "paddle-v2" and _role(job, launch) == "PSERVER"]
    one_server = servers[0] if len(servers) == 1 else None
    for quantity, option in _NAMES.items():
        theirs = _setting(job, quantity, one_server.scope) if one_server is not None else None
        for launch in job.launches:
            if launch.launcher == "cluster_train":
                required = [c for c in job.about(quantity, launch.scope) if c.relation is Relation.REQUIRES]
                ours, servers_own = (required[0] if required else None), _setting(job, quantity, launch.scope)
            elif launch.launcher == "paddle-v2" and _role(job, launch) == "TRAINER":
                ours, servers_own = _setting(job, quantity, launch.scope), theirs
            else:
                continue
            if ours is not None and servers_own is not None:
                yield _Pair(launch.id, launch, option, ours, servers_own)
        # A program of the v2 API is started by python and gives them to `paddle.init()`.
        for claim in distinct(job.about(f"setting.paddle_v2.{option.removeprefix('--')}")):
            if theirs is not None:
                yield _Pair(claim.span.path, None, option, claim, theirs)


def _role(job: Job, launch: Launch) -> str:
    return "".join(text for claim in job.setting("ps_role", launch.scope) for text in texts(claim.value))


@rule(
    "CLT006",
    "trainer-left-local",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    applies_to="paddlepaddle < 0.12",
    otherwise="no trainer of PaddlePaddle 0.x is given servers",
    profile="pedantic",
    each=launches_with("trains_locally", where=lambda stated: bool(stated.job.setting("ps_mode", stated.scope))),
)
def trainer_left_local(question: LaunchQuestion) -> Verdict | None:
    """A trainer is given servers and trains without them.

    What it checks: `paddle train` with `--pservers`, and `paddle.py`, are given `--local=0`.

    Why it matters: `--local` is on by default. Every trainer then trains a model of its own, and the servers wait for
    gradients that never come.

    Example: `paddle train --pservers=10.0.0.1 --trainer_id=0 --config=conf.py`.

    Fix: Add `--local=0`.

    Known limits: A configuration may set it too.
    """
    claims = question.claims
    if claims[0].alternatives == (True,):
        return failed(
            question.subject,
            f"{quoted(claims[0])} makes the trainer train alone, without the servers that it is given.",
            at=claims[0],
            remedy="Add `--local=0`.",
        )
    return None
