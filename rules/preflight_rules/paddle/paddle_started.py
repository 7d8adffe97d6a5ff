"""Which servers and trainers a script really starts, and when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from preflight.job import Claim, Job, Known, Launch
from preflight.judgement import Verdict, failed, not_applicable, passed, rule, unknown
from preflight.lazy.patterns import lazy_pattern
from preflight.outcome import Confidence, Severity
from preflight_rules.paddle.paddle_ps import endpoints
from preflight_rules.reading import (
    deciding,
    host_of,
    is_loopback,
    job_value,
    numbers,
    quoted,
    texts,
    undecided,
    where,
)

#: Names of scripts of which each starts one node: trainer0.sh, worker-1.sh, node2.sh.
_NUMBERED = lazy_pattern(r"(?:.*[-_.])?(?:node|worker|trainer|machine|host|rank)[-_]?\d+\.\w+")
#: What a line waits with.
_PAUSE = lazy_pattern(r"\b(?:sleep|wait|nc|timeout)\b")
#: A command ends with this where the shell goes on without waiting for it.
_BACKGROUND = lazy_pattern(r"(?<![&>])&(?![&>\d])")


def _role(job: Job, launch: Launch) -> str:
    """PSERVER, TRAINER, or empty where it is not known."""
    roles = {text for claim in job.setting("ps_role", launch.scope) for text in texts(claim.value)}
    return roles.pop() if len(roles) == 1 else ""


def _by_program(job: Job) -> Iterator[tuple[Launch, ...]]:
    """The launches with a role that belong together: those with one list of servers, or else of one program."""
    found: dict[str, list[Launch]] = {}
    for launch in job.launches:
        if job.setting("ps_role", launch.scope):
            servers = job.value("ps_server_endpoints", launch.scope)
            key = str(servers.value) if isinstance(servers, Known) else launch.program
            found.setdefault(key, []).append(launch)
    yield from (tuple(group) for group in found.values())


def _spread(job: Job, launch: Launch) -> bool:
    """Whether the endpoints that a launch knows lie on several hosts, so that others may be started elsewhere."""
    known = (*job.setting("ps_server_endpoints", launch.scope), *job.setting("ps_worker_endpoints", launch.scope))
    hosts = {host_of(entry) for claim in known for entry in endpoints((claim,))}
    return len(hosts) > 1 or any(not alternative.alternatives for alternative in known)


@rule(
    "PPS010",
    "fewer-trainers-started-than-declared",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("PaddlePaddle/Paddle#7422", "PaddlePaddle/Paddle#7465"),
)
def fewer_trainers_started_than_declared(job: Job) -> Iterator[Verdict]:
    """A script that starts a whole parameter-server job starts fewer trainers than it tells the servers to expect.

    What it checks:
        Where servers and trainers of one program are started side by side on one host, there are as many trainers,
        each with an index of its own, as PADDLE_TRAINERS_NUM says.

    Why it matters:
        Servers in synchronous mode wait for every trainer at each step: with one missing nobody gets past the first.

    Example:
        `export PADDLE_TRAINERS_NUM=2` and then one server and `PADDLE_TRAINER_ID=0` only.

    Fix:
        Start the missing trainers, or lower the number.

    Known limits:
        Where the endpoints name several hosts the others may be started elsewhere, and nothing is said. A loop whose
        count is not known leaves it unknown.

    Evidence:
        PaddlePaddle/Paddle#7422, PaddlePaddle/Paddle#7465.
    """
    met = False
    for group in _by_program(job):
        trainers = [launch for launch in group if _role(job, launch) == "TRAINER"]
        if not trainers or not any(_role(job, launch) == "PSERVER" for launch in group):
            continue
        met = True
        yield _enough(job, group, trainers)
    if not met:
        yield not_applicable(job.name, "no script starts both the servers and the trainers of a program")


def _enough(job: Job, group: Sequence[Launch], trainers: Sequence[Launch]) -> Verdict:
    subject = trainers[0].id
    counts = deciding(job, "ps_workers", trainers[0].scope)
    indices = [claim for launch in trainers for claim in job.setting("ps_index", launch.scope)]
    if not counts:
        return unknown(subject, "nothing says how many trainers there are to be")
    open_end = undecided(subject, (*counts, *indices), trainers[0])
    if open_end is not None:
        return open_end
    if any(not _role(job, launch) for launch in group) or any(_spread(job, launch) for launch in group):
        return unknown(subject, "other trainers may be started on other hosts", at=counts[0])
    started = {number for claim in indices for number in numbers(claim.value)} or set(range(len(trainers)))
    wanted = min(numbers(job_value(counts)), default=0)
    if len(started) >= wanted:
        return passed(subject)
    missing = sorted(set(range(wanted)) - started)
    names = ", ".join(map(str, missing[:8])) + (" ..." if len(missing) > 8 else "")
    return failed(
        subject,
        f"{quoted(counts[0])} says {wanted} trainers, but only {len(started)} are started beside the servers"
        f" ({'index' if len(started) == 1 else 'indices'} {', '.join(map(str, sorted(started)))}): the servers wait"
        f" for trainer {names} for ever.",
        at=counts[0],
        also=tuple((launch, "a trainer") for launch in trainers[:4]),
        remedy=f"Start trainer {names} too, or set PADDLE_TRAINERS_NUM to {len(started)}.",
    )


@rule(
    "PPS011",
    "index-of-role-twice",
    severity=Severity.ERROR,
    profile="gate",
    evidence=("PaddlePaddle/Paddle#16138", "PaddlePaddle/Paddle#3659"),
)
def index_of_role_twice(job: Job) -> Iterator[Verdict]:
    """Two trainers that run at the same time have one index.

    What it checks:
        Trainers of one list of servers that are started in the background of one script, or by scripts that are
        numbered like nodes, have different indices.

    Why it matters:
        The servers take the two for one trainer and wait for the other index for ever.

    Example:
        `PADDLE_TRAINER_ID=0 python train.py &` twice.

    Fix:
        Count the indices from 0, one for each trainer.

    Known limits:
        Launches that run one after the other, and those of files with other names, are not compared.

    Evidence:
        PaddlePaddle/Paddle#16138, PaddlePaddle/Paddle#3659.
    """
    met = False
    for group in _by_program(job):
        seen: dict[tuple[str, int], tuple[Launch, Claim]] = {}
        trainers = [launch for launch in group if _role(job, launch) == "TRAINER"]
        for launch in trainers if len(trainers) > 1 else ():
            met = True
            claims = job.setting("ps_index", launch.scope)
            open_end = undecided(launch.id, claims, launch)
            found = numbers(job_value(claims)) if claims else ()
            if open_end is not None or len(found) != 1:
                yield open_end or unknown(launch.id, "nothing says which trainer it is")
                continue
            numbered = _NUMBERED.fullmatch(launch.span.path.rpartition("/")[2].lower())
            key = ("" if numbered else launch.span.path, found[0])
            first = seen.setdefault(key, (launch, claims[0]))
            apart = first[0].span.path != launch.span.path
            if first[0] is not launch and (apart or _stays(first[0])) and _same_servers(job, first[0], launch):
                same = first[1].span == claims[0].span
                yield failed(
                    launch.id,
                    f"{quoted(claims[0])} is the index of every trainer that runs the script."
                    if same
                    else f"{quoted(claims[0])} is the index of the trainer of {where(first[1])} too, which runs at the"
                    " same time.",
                    at=claims[0],
                    also=((launch, "a second trainer"),) if same else ((first[1], f"trainer {found[0]} already"),),
                    remedy="Give each trainer an index of its own, counted from 0.",
                )
            else:
                yield passed(launch.id)
    if not met:
        yield not_applicable(job.name, "no two trainers are started together")


def _same_servers(job: Job, one: Launch, other: Launch) -> bool:
    lists = [job.value("ps_server_endpoints", launch.scope) for launch in (one, other)]
    return lists[0] == lists[1] and (isinstance(lists[0], Known) or one.condition == other.condition)


def _stays(launch: Launch) -> bool:
    """Whether the script goes on while it runs."""
    return _BACKGROUND.search(launch.span.snippet[max(0, launch.span.column - 1) :]) is not None


@rule(
    "PPS012",
    "trainer-started-with-its-server",
    severity=Severity.WARNING,
    confidence=Confidence.LOW,
    evidence=("PaddlePaddle/Paddle#9893",),
)
def trainer_started_with_its_server(job: Job) -> Iterator[Verdict]:
    """Servers and trainers are started at once, and nothing waits until the servers listen.

    What it checks:
        Servers that are started in the background, and trainers on the same or the very next line, run a program that
        waits for its servers' ports: fleet, or a transpiler of Paddle 1.3 or newer.

    Why it matters:
        A trainer that dials before its server listens stops with "Connect Failed", or loses its first requests.
        With little data it happens at every start, otherwise now and then.

    Example:
        `for r in PSERVER TRAINER; do TRAINING_ROLE=$r python train.py & done`.

    Fix:
        Start the servers first and wait until their ports answer, or set `wait_port` of the transpiler.

    Known limits:
        Lines further apart may wait in between. Whether the program waits is seen only where it is among the files.

    Evidence:
        PaddlePaddle/Paddle#9893.
    """
    met = False
    for group in _by_program(job):
        for launch in group:
            if not _role(job, launch) and _stays(launch):
                met = True
                yield unknown(launch.id, "which roles the line starts is known only at run time")
        pair = _started_together(job, group)
        if pair is not None:
            met = True
            yield _waits(job, *pair)
    if not met:
        yield not_applicable(job.name, "no servers and trainers are started together")


def _started_together(job: Job, group: Sequence[Launch]) -> tuple[Launch, Launch] | None:
    """The first trainer that is started on the line of a server in the background, or on the next one."""
    last: Launch | None = None
    for launch in group:
        role = _role(job, launch)
        if role == "PSERVER" and _stays(launch) and not _PAUSE.search(launch.span.snippet):
            last = launch
        elif role == "TRAINER" and last is not None:
            near = launch.span.path == last.span.path and 0 <= launch.span.line - last.span.line <= 1
            return (launch, last) if near else None
    return None


def _waits(job: Job, trainer: Launch, server: Launch) -> Verdict:
    waiting = [c for c in job.about("waits_for_servers", trainer.scope) if True in c.alternatives]
    if waiting:
        return passed(trainer.id)
    role = job.setting("ps_role", trainer.scope)[0]
    open_end = undecided(trainer.id, (role,), trainer)
    if open_end is not None:
        return open_end
    if not _stays(server):
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
    evidence=("PaddlePaddle/Paddle#37951",),
)
def gloo_port_left_to_chance(job: Job) -> Iterator[Verdict]:
    """Every host of a parameter-server job chooses its own port for Gloo to meet at.

    What it checks:
        A launch with `--servers` and `--workers` on several hosts also gives `--http_port`, unless PADDLE_WITH_GLOO
        is 0 or the port comes from `--gloo_port`.

    Why it matters:
        Without `--http_port` the launcher takes a port that is free on the host where it runs, and tells only its
        own processes. Processes of the other hosts look for Gloo at another port: barriers and global shuffles hang.

    Example:
        `fleetrun --servers=10.0.0.1:6170,10.0.0.2:6170 --workers=10.0.0.1:6171,10.0.0.2:6171 train.py`.

    Fix:
        Give the same `--http_port` on every host, a port free on the host of the first server.

    Known limits:
        A job that never uses Gloo (PADDLE_WITH_GLOO unset in PaddlePaddle 2.1 to 2.6, no barrier, no global shuffle)
        runs without it.

    Evidence:
        PaddlePaddle/Paddle#37951; paddle/distributed/fleet/launch_utils.py (ParameterServerLauncher) of 2.6.2.
    """
    met = False
    for launch in job.launches:
        servers = job.setting("ps_server_endpoints", launch.scope)
        workers = job.setting("ps_worker_endpoints", launch.scope)
        if launch.launcher != "paddle" or not servers or not workers:
            continue
        met = True
        # The option `--workers` is the old launcher's; `--trainers` of the new one has a fixed port.
        if "worker" not in workers[0].spelling or job.setting("gloo_http_port", launch.scope) or _without(job, launch):
            yield passed(launch.id)
            continue
        open_end = undecided(launch.id, (*servers, *workers), launch)
        hosts = {host_of(entry) for entry in (*endpoints(servers), *endpoints(workers))}
        if open_end is not None:
            yield open_end
        elif len(hosts) > 1 and not all(is_loopback(host) for host in hosts):
            yield failed(
                launch.id,
                f"{quoted(servers[0])} and {quoted(workers[0])} span {len(hosts)} hosts without --http_port: each host"
                " takes a free port of its own, and Gloo's processes do not find each other.",
                at=launch,
                also=((servers[0], "the servers"),),
                remedy="Add the same --http_port to the launch line of every host.",
            )
        else:
            yield passed(launch.id)
    if not met:
        yield not_applicable(job.name, "no launch lists servers and workers")


def _without(job: Job, launch: Launch) -> bool:
    """Whether the launch switches Gloo off, or sets its endpoint itself."""
    off = job.setting("env.PADDLE_WITH_GLOO", launch.scope)
    own = job.setting("env.PADDLE_GLOO_HTTP_ENDPOINT", launch.scope)
    return bool(own) or (bool(off) and set(texts(job_value(off))) == {"0"})
