"""Lists of parameter servers and trainers, and whether everybody was told the same."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Claim, Job, Scope
from preflight.judgement import Verdict, failed, not_applicable, passed, rule, unknown
from preflight.outcome import Severity
from preflight_rules.reading import (
    deciding,
    host_of,
    is_loopback,
    numbers,
    placed,
    quoted,
    subjects,
    undecided,
    where,
)


def endpoints(claims: tuple[Claim, ...]) -> tuple[str, ...]:
    """The one list the claims give; empty when there is none or several."""
    found = [value for claim in claims for value in claim.alternatives if isinstance(value, tuple)]
    return tuple(str(item) for item in found[0]) if len(found) == 1 else ()


@rule(
    "PPS001",
    "endpoint-listed-twice",
    severity=Severity.ERROR,
    profile="gate",
    evidence=("PaddlePaddle/Paddle#4281", "PaddlePaddle/Paddle#16138"),
)
def endpoint_listed_twice(job: Job) -> Iterator[Verdict]:
    """Two processes of a parameter-server job are given one host and port.

    What it checks:
        No endpoint occurs twice among the servers, twice among the trainers, or in both lists.

    Why it matters:
        The second process cannot listen there and stops, or trainers talk to one server as if it were two, and
        part of the parameters is never updated.

    Example:
        `--servers=10.0.0.1:6170,10.0.0.1:6170`.

    Fix:
        Give each process on one host a port of its own.

    Known limits:
        Entries without a port are not compared. The same process written once by name and once by address is not
        recognised.

    Evidence:
        PaddlePaddle/Paddle#4281, PaddlePaddle/Paddle#16138.
    """
    met = False
    seen: set[tuple[str, int, int]] = set()
    for subject, scope, launch in subjects(job):
        servers = deciding(job, "ps_server_endpoints", scope)
        workers = deciding(job, "ps_worker_endpoints", scope)
        for claims, other in ((servers, ()), (workers, servers)):
            if not claims or (key := place_of(claims[0])) in seen:
                continue
            seen.add(key)
            met = True
            open_end = undecided(subject, (*claims, *other), launch)
            if open_end is not None:
                yield open_end
                continue
            yield _once(subject, claims, other)
    if not met:
        yield not_applicable(job.name, "no list of servers or trainers is given")


def place_of(claim: Claim) -> tuple[str, int, int]:
    """Path, line and column of a claim."""
    return claim.span.path, claim.span.line, claim.span.column


def _once(subject: str, claims: tuple[Claim, ...], other: tuple[Claim, ...]) -> Verdict:
    listed = [item for item in endpoints(claims) if _has_port(item)]
    twice = next((item for item in listed if listed.count(item) > 1), None)
    if twice is not None:
        return failed(
            subject,
            f"{quoted(claims[0])} lists {twice} {listed.count(twice)} times: two processes cannot share one port.",
            at=claims[0],
            remedy=f"Give each process on {host_of(twice)} a port of its own.",
        )
    both = next((item for item in listed if item in endpoints(other)), None)
    if both is not None:
        return failed(
            subject,
            f"{both} is given to a trainer ({quoted(claims[0])}) and to a server ({quoted(other[0])},"
            f" {where(other[0])}): two processes cannot share one port.",
            at=claims[0],
            also=((other[0], "the servers"),),
            remedy=f"Give trainer and server on {host_of(both)} different ports.",
        )
    return passed(subject)


def _has_port(endpoint: str) -> bool:
    port = endpoint.rpartition(":")[2]
    return port.isdigit() and port != endpoint and int(port) != 0


@rule(
    "PPS005",
    "server-lists-differ",
    severity=Severity.ERROR,
    profile="gate",
    evidence=("PaddlePaddle/Paddle#3532", "PaddlePaddle/Paddle#4281"),
)
def server_lists_differ(job: Job) -> Iterator[Verdict]:
    """Processes of one parameter-server job were given different lists of servers.

    What it checks:
        All launch lines of one program that carry a list of servers carry the same one, in the same order.

    Why it matters:
        Parameters are divided over the servers by their place in the list. With another order or length two
        trainers keep one parameter in two places: training goes on and goes wrong, or waits for ever.

    Example:
        A server started with `10.0.0.1:6170,10.0.0.2:6170`, a trainer with `10.0.0.2:6170,10.0.0.1:6170`.

    Fix:
        Write the list once, in a file that all launch lines source.

    Known limits:
        Two lists that have no server in common are taken for two jobs.

    Evidence:
        PaddlePaddle/Paddle#3532, PaddlePaddle/Paddle#4281.
    """
    told = [(launch, job.setting("ps_server_endpoints", launch.scope)) for launch in job.launches]
    told = [(launch, claims) for launch, claims in told if claims]
    if len(told) < 2:
        yield not_applicable(job.name, "no two launches carry a list of servers")
        return
    first, ours = told[0]
    for launch, claims in told[1:]:
        if launch.program != first.program:
            continue
        open_end = undecided(launch.id, ours, first) or undecided(launch.id, claims, launch)
        one, other = endpoints(ours), endpoints(claims)
        if open_end is not None:
            yield open_end
        elif one and other and one != other and set(one) & set(other):
            kind = "in another order" if sorted(one) == sorted(other) else "other servers"
            yield failed(
                launch.id,
                f"{quoted(claims[0])} lists {kind} than {placed(ours[0])} of the same job.",
                at=claims[0],
                also=((ours[0], "the other list"),),
                remedy="Give every process the same list in the same order.",
            )
        elif not one or not other:
            yield unknown(launch.id, f"{quoted(claims[0])} is known only at run time", at=claims[0])
        else:
            yield passed(launch.id)


@rule(
    "PPS006",
    "role-count-differs-from-list",
    severity=Severity.ERROR,
    profile="gate",
    evidence=("PaddlePaddle/Paddle#2224", "PaddlePaddle/Paddle#7422"),
)
def role_count_differs_from_list(job: Job) -> Iterator[Verdict]:
    """The number of servers or trainers is not the length of their list.

    What it checks:
        `--server_num` against `--servers`, `--trainer_num` against `--workers`, PADDLE_TRAINERS_NUM against
        PADDLE_TRAINER_ENDPOINTS.

    Why it matters:
        Servers wait for trainers that do not exist, or some trainers are never waited for.

    Example:
        `fleetrun --server_num=2 --servers=10.0.0.1:6170 ...`.

    Fix:
        Leave out the number where there is a list.

    Known limits:
        Only numbers and lists of one launch are compared.

    Evidence:
        PaddlePaddle/Paddle#2224, PaddlePaddle/Paddle#7422.
    """
    met = False
    for subject, scope, launch in subjects(job):
        for quantity, listed in (
            ("ps_servers", "ps_server_endpoints"),
            ("ps_workers", "ps_worker_endpoints"),
        ):
            counts = [c for c in job.about(quantity, scope) if c.value and not _is_list(job, c, listed, scope)]
            lists = job.setting(listed, scope)
            if not counts or not lists:
                continue
            met = True
            open_end = undecided(subject, (*counts, *lists), launch)
            if open_end is not None:
                yield open_end
                continue
            length, said = len(endpoints(lists)), numbers(counts[0].value)
            if length and said and length not in said:
                yield failed(
                    subject,
                    f"{quoted(counts[0])} says {said[0]}, but {placed(lists[0])} lists {length}.",
                    at=counts[0],
                    also=((lists[0], f"{length} entries"),),
                    remedy=f"Leave the number out, or make it {length}.",
                )
            else:
                yield passed(subject)
    if not met:
        yield not_applicable(job.name, "no launch gives both a number and a list of servers or trainers")


def _is_list(job: Job, claim: Claim, listed: str, scope: Scope) -> bool:
    """Whether a count is only the length of the list itself."""
    return any(place_of(claim) == place_of(other) for other in job.about(listed, scope))


@rule(
    "PPS007",
    "servers-all-on-one-host",
    severity=Severity.WARNING,
    evidence=("tensorflow/tensorflow#3762", "PaddlePaddle/Paddle#10398"),
)
def servers_all_on_one_host(job: Job) -> Iterator[Verdict]:
    """All parameter servers share one host although the trainers are spread over several.

    What it checks:
        Where trainers are on two hosts or more, two or more servers are not all on the same one.

    Why it matters:
        Every parameter of every trainer goes through one network card and one host's memory, so adding servers
        adds nothing.

    Example:
        `--servers=10.0.0.1:6170,10.0.0.1:6171 --workers=10.0.0.1:6172,10.0.0.2:6172`.

    Fix:
        Put one server on each host.

    Known limits:
        One server alone is a choice and stays silent.

    Evidence:
        tensorflow/tensorflow#3762, PaddlePaddle/Paddle#10398.
    """
    met = False
    for subject, scope, launch in subjects(job):
        servers = job.setting("ps_server_endpoints", scope)
        workers = job.setting("ps_worker_endpoints", scope)
        if not servers or not workers:
            continue
        met = True
        open_end = undecided(subject, (*servers, *workers), launch)
        if open_end is not None:
            yield open_end
            continue
        at, work = [host_of(e) for e in endpoints(servers)], {host_of(e) for e in endpoints(workers)}
        if len(at) > 1 and len(set(at)) == 1 and len(work) > 1:
            yield failed(
                subject,
                f"{quoted(servers[0])} puts all {len(at)} servers on {at[0]}, while the trainers are on"
                f" {len(work)} hosts.",
                at=servers[0],
                also=((workers[0], "the trainers"),),
                remedy="Spread the servers over the hosts.",
            )
        else:
            yield passed(subject)
    if not met:
        yield not_applicable(job.name, "no launch lists both servers and trainers")


@rule(
    "PPS009",
    "loopback-among-remote-endpoints",
    severity=Severity.ERROR,
    profile="gate",
    evidence=("PaddlePaddle/Paddle#37951", "PaddlePaddle/Paddle#37116"),
)
def loopback_among_remote_endpoints(job: Job) -> Iterator[Verdict]:
    """A list of servers or trainers mixes loopback with addresses of other hosts.

    What it checks:
        Where a list names another host, no entry of the lists is 127.x.x.x or localhost.

    Why it matters:
        On every other host the loopback entry means that host itself: its processes dial themselves.

    Example:
        `--servers=127.0.0.1:6170,10.0.0.2:6170`.

    Fix:
        Write the address that the other hosts can reach.

    Known limits:
        Lists that hold loopback only belong to a trial on one host and stay silent.

    Evidence:
        PaddlePaddle/Paddle#37951, PaddlePaddle/Paddle#37116.
    """
    met = False
    for subject, scope, launch in subjects(job):
        claims = (*job.setting("ps_server_endpoints", scope), *job.setting("ps_worker_endpoints", scope))
        if not claims:
            continue
        met = True
        open_end = undecided(subject, claims, launch)
        if open_end is not None:
            yield open_end
            continue
        entries = [(claim, entry) for claim in claims for entry in endpoints((claim,))]
        local = [(claim, entry) for claim, entry in entries if is_loopback(host_of(entry))]
        if local and len(local) < len(entries):
            claim, entry = local[0]
            others = [(other, text) for other, text in entries if not is_loopback(host_of(text))]
            # A neighbour in the same list shows the fault on one line; one in the other list has to be named.
            beside, remote = min(others, key=lambda item: item[0] is not claim)
            yield failed(
                subject,
                f"{quoted(claim)} holds {entry} beside {remote}"
                + (f" of {placed(beside)}" if beside is not claim else "")
                + f": on every other host {host_of(entry)} is that host.",
                at=claim,
                also=() if beside is claim else ((beside, f"holds {remote}"),),
                remedy=f"Replace {host_of(entry)} by the address that the other hosts can reach.",
            )
        else:
            yield passed(subject)
    if not met:
        yield not_applicable(job.name, "no list of servers or trainers is given")
