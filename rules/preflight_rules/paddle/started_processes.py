"""Servers and trainers that a script starts: their number, indices and order."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from preflight._util.hostnames import host_of, is_loopback
from preflight._util.sequences import join_some
from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Known, Launch
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided, unknown
from preflight.plugins.claim_text import argument_of, quoted, where
from preflight_rules.launches import starting_file
from preflight_rules.paddle.roles_played import endpoints

#: Names of scripts that each start one node: trainer0.sh, worker-1.sh, node2.sh.
_NUMBERED = re.compile(r"(?:.*[-_.])?(?:node|worker|trainer|machine|host|rank)[-_]?\d+\.\w+")
#: Commands that wait.
_WAIT_COMMANDS = re.compile(r"\b(?:sleep|wait|nc|timeout)\b")
#: The end of a background command.
_BACKGROUND = re.compile(r"(?<![&>])&(?![&>\d])")


def _role(job: Job, launch: Launch) -> str:
    """PSERVER, TRAINER, or empty if unknown."""
    roles = {text for claim in job.setting("ps_role", launch.scope) for text in texts(claim.value)}
    return roles.pop() if len(roles) == 1 else ""


def _by_program(job: Job) -> Iterator[tuple[Launch, ...]]:
    """The launches with a role, grouped by their list of servers, otherwise by program."""
    found: dict[str, list[Launch]] = {}
    for launch in job.launches:
        if job.setting("ps_role", launch.scope):
            servers = job.value("ps_server_endpoints", launch.scope)
            key = str(servers.value) if isinstance(servers, Known) else launch.program
            found.setdefault(key, []).append(launch)
    yield from (tuple(group) for group in found.values())


def _is_on_several_hosts(job: Job, launch: Launch) -> bool:
    """Whether the endpoints of a launch are on several hosts, so that others may be started elsewhere."""
    known = (*job.setting("ps_server_endpoints", launch.scope), *job.setting("ps_worker_endpoints", launch.scope))
    hosts = {host_of(entry) for claim in known for entry in endpoints((claim,))}
    return len(hosts) > 1 or any(not alternative.alternatives for alternative in known)


@rule(
    "PPS010",
    "fewer-trainers-started-than-declared",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no script starts both the servers and the trainers of a program",
)
def fewer_trainers_started_than_declared(job: Job) -> Iterator[Verdict]:
    """A script starts fewer trainers than PADDLE_TRAINERS_NUM tells the servers to expect.

    What it checks: Where servers and trainers of one program are started side by side on one host, there are as many
    trainers, with different indices, as PADDLE_TRAINERS_NUM states.

    Why it matters: Servers in synchronous mode wait for every trainer at each step: with one missing no trainer gets
    past the first step.

    Example: `export PADDLE_TRAINERS_NUM=2` and then one server and `PADDLE_TRAINER_ID=0` only.

    Fix: Start the missing trainers, or lower the number.

    Known limits: If the endpoints name several hosts the others may be started elsewhere, and nothing is reported. A
    loop whose count is not known leaves it unknown.
    """
    for group in _by_program(job):
        trainers = [launch for launch in group if _role(job, launch) == "TRAINER"]
        if not trainers or not any(_role(job, launch) == "PSERVER" for launch in group):
            continue
        yield _count_verdict(job, group, trainers)


def _count_verdict(job: Job, group: Sequence[Launch], trainers: Sequence[Launch]) -> Verdict:
    subject = trainers[0].id
    counts = job.value_claims("ps_workers", trainers[0].scope)
    indices = [claim for launch in trainers for claim in job.setting("ps_index", launch.scope)]
    if not counts:
        return unknown(subject, "the expected number of trainers is not given")
    if undecided_verdict := undecided(subject, (*counts, *indices), trainers[0]):
        return undecided_verdict
    if any(not _role(job, launch) for launch in group) or any(_is_on_several_hosts(job, launch) for launch in group):
        return unknown(subject, "other trainers may be started on other hosts", at=counts[0])
    started = {number for claim in indices for number in numbers(claim.value)} or set(range(len(trainers)))
    wanted = min(numbers(job_value(counts)), default=0)
    if len(started) >= wanted:
        return passed(subject)
    missing = sorted(set(range(wanted)) - started)
    names = join_some([str(number) for number in missing], 8)
    return failed(
        subject,
        f"{quoted(counts[0])} declares {wanted} trainers, but only {len(started)} are started with the servers"
        f" ({'index' if len(started) == 1 else 'indices'} {', '.join(map(str, sorted(started)))}): the servers wait"
        f" for trainer {names} forever.",
        at=counts[0],
        also=tuple((launch, "a trainer") for launch in trainers[:4]),
        remedy=f"Start trainer {names} too, or set PADDLE_TRAINERS_NUM to {len(started)}.",
    )


@rule(
    "PPS011",
    "index-of-role-twice",
    severity=Severity.ERROR,
    otherwise="no two trainers or servers are started together",
)
def index_of_role_twice(job: Job) -> Iterator[Verdict]:
    """Two trainers, or two servers, that run at the same time have the same index.

    What it checks: Trainers of one list of servers that are started in the background of one script, or by scripts that
    are numbered like nodes, have different indices; so have servers, whose index is the place of their own endpoint in
    the list.

    Why it matters: The servers treat the two trainers as one and wait for the other index forever. Two servers with one
    endpoint cannot both listen on it, and the trainers wait for a server that was never started.

    Example: `PADDLE_TRAINER_ID=0 python train.py &` twice.

    Fix: Count the indices from 0, one for each trainer.

    Known limits: Launches that run one after the other, and those of files with other names, are not compared.
    """
    for group in _by_program(job):
        for role, noun in (("TRAINER", "trainer"), ("PSERVER", "server")):
            launches = [launch for launch in group if _role(job, launch) == role]
            if len(launches) > 1:
                yield from _indices(job, launches, noun)


def _indices(job: Job, launches: Sequence[Launch], noun: str) -> Iterator[Verdict]:
    seen: dict[tuple[str, int], tuple[Launch, Claim]] = {}
    for launch in launches:
        claims = job.setting("ps_index", launch.scope)
        undecided_verdict = undecided(launch.id, claims, launch)
        found = numbers(job_value(claims)) if claims else ()
        if undecided_verdict is not None or len(found) != 1:
            yield undecided_verdict or unknown(launch.id, f"the index of the {noun} is not given")
            continue
        script = starting_file(launch)
        numbered = _NUMBERED.fullmatch(script.rpartition("/")[2].lower())
        key = ("" if numbered else script, found[0])
        first, claim = seen.setdefault(key, (launch, claims[0]))
        at_once = starting_file(first) != script or first.concurrent or _continues(first)
        if first is launch or not at_once or not _same_servers(job, first, launch):
            yield passed(launch.id)
            continue
        same = where(claim) == where(claims[0]) and claim.span == claims[0].span
        start = launch.started_at[0] if launch.started_at else launch
        yield failed(
            launch.id,
            f"{quoted(claims[0])} is the index of every {noun} that runs the script."
            if same
            else f"{quoted(claims[0])} is also the index of the {noun} of {where(claim)}, which runs at the same time.",
            at=claims[0],
            also=((start, f"a second {noun}"),)
            if same
            else ((argument_of(claim) or claim, f"{noun} {found[0]} already"),),
            remedy=f"Give each {noun} its own {'endpoint' if noun == 'server' else 'index, counted from 0'}.",
        )


def _same_servers(job: Job, one: Launch, other: Launch) -> bool:
    lists = [job.value("ps_server_endpoints", launch.scope) for launch in (one, other)]
    return lists[0] == lists[1] and (isinstance(lists[0], Known) or one.condition == other.condition)


def _continues(launch: Launch) -> bool:
    """Whether the script continues while the launch runs."""
    return _BACKGROUND.search(launch.span.snippet[max(0, launch.span.column - 1) :]) is not None


@rule(
    "PPS012",
    "trainer-started-with-its-server",
    severity=Severity.WARNING,
    confidence=Confidence.LOW,
    otherwise="no servers and trainers are started together",
)
def trainer_started_with_its_server(job: Job) -> Iterator[Verdict]:
    """Servers and trainers are started at the same time, and nothing waits until the servers listen.

    What it checks: Servers that are started in the background, and trainers on the same or the very next line, run a
    program that waits for its servers' ports: fleet, or a transpiler of Paddle 1.3 or newer.

    Why it matters: A trainer that dials before its server listens stops with "Connect Failed", or loses its first
    requests. With little data it happens at every start, otherwise occasionally.

    Example: `for r in PSERVER TRAINER; do TRAINING_ROLE=$r python train.py & done`.

    Fix: Start the servers first and wait until their ports answer, or set `wait_port` of the transpiler.

    Known limits: If the lines are further apart, the script may wait in between. Whether the program waits is known
    only if it is among the files.
    """
    for group in _by_program(job):
        for launch in group:
            if not _role(job, launch) and _continues(launch):
                yield unknown(launch.id, "the roles that the line starts are known only at run time")
        pair = _started_together(job, group)
        if pair is not None:
            yield _waits_for_servers(job, *pair)


def _started_together(job: Job, group: Sequence[Launch]) -> tuple[Launch, Launch] | None:
    """The first trainer that is started on the line of a server in the background, or on the next one."""
    last: Launch | None = None
    for launch in group:
        role = _role(job, launch)
        if role == "PSERVER" and _continues(launch) and not _WAIT_COMMANDS.search(launch.span.snippet):
            last = launch
        elif role == "TRAINER" and last is not None:
            near = launch.span.path == last.span.path and 0 <= launch.span.line - last.span.line <= 1
            return (launch, last) if near else None
    return None


def _waits_for_servers(job: Job, trainer: Launch, server: Launch) -> Verdict:
    waiting = [c for c in job.about("waits_for_servers", trainer.scope) if True in c.alternatives]
    if waiting:
        return passed(trainer.id)
    role = job.setting("ps_role", trainer.scope)[0]
    if undecided_verdict := undecided(trainer.id, (role,), trainer):
        return undecided_verdict
    if not _continues(server):
        return passed(trainer.id)
    return failed(
        trainer.id,
        f"{quoted(role)}: trainers are started together with their servers, and nothing waits until the servers"
        " listen.",
        at=trainer,
        also=((role, "the roles"),),
        remedy="Start the servers first and wait for their ports (`nc -z host port`) before the trainers.",
    )


@rule(
    "PPS013",
    "gloo-port-left-to-chance",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no launch lists servers and workers",
)
def gloo_port_left_to_chance(job: Job) -> Iterator[Verdict]:
    """Every host of a parameter-server job chooses its own port for Gloo's rendezvous.

    What it checks: A launch with `--servers` and `--workers` on several hosts also gives `--http_port`, unless
    PADDLE_WITH_GLOO is 0 or the port comes from `--gloo_port`.

    Why it matters: Without `--http_port` the launcher chooses a port that is free on the host where it runs, and passes
    it only to its own processes. Processes of the other hosts look for Gloo at another port: barriers and global
    shuffles hang.

    Example: `fleetrun --servers=10.0.0.1:6170,10.0.0.2:6170 --workers=10.0.0.1:6171,10.0.0.2:6171 train.py`.

    Fix: Give the same `--http_port` on every host, a port free on the host of the first server.

    Known limits: A job that never uses Gloo (PADDLE_WITH_GLOO unset in PaddlePaddle 2.1 to 2.6, no barrier, no global
    shuffle) runs without it.
    """
    for launch in job.launches:
        servers = job.setting("ps_server_endpoints", launch.scope)
        workers = job.setting("ps_worker_endpoints", launch.scope)
        if launch.launcher != "paddle" or not servers or not workers:
            continue
        # The option `--workers` is the old launcher's; `--trainers` of the new one has a fixed port.
        if (
            "worker" not in workers[0].spelling
            or job.setting("gloo_http_port", launch.scope)
            or _avoids_gloo_rendezvous(job, launch)
        ):
            yield passed(launch.id)
            continue
        verdict = undecided(launch.id, (*servers, *workers), launch)
        hosts = {host_of(entry) for entry in (*endpoints(servers), *endpoints(workers))}
        if verdict is None and len(hosts) > 1 and not all(is_loopback(host) for host in hosts):
            verdict = failed(
                launch.id,
                f"{quoted(servers[0])} and {quoted(workers[0])} span {len(hosts)} hosts without --http_port: each"
                " host chooses its own free port, and Gloo's processes do not find each other.",
                at=launch,
                also=((servers[0], "the servers"),),
                remedy="Add the same --http_port to the launch line of every host.",
            )
        yield verdict or passed(launch.id)


def _avoids_gloo_rendezvous(job: Job, launch: Launch) -> bool:
    """Whether the launch switches Gloo off, or sets its endpoint itself."""
    off = job.setting("env.PADDLE_WITH_GLOO", launch.scope)
    own = job.setting("env.PADDLE_GLOO_HTTP_ENDPOINT", launch.scope)
    return bool(own) or (bool(off) and set(texts(job_value(off))) == {"0"})
