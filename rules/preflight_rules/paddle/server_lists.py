"""Lists of parameter servers and trainers, compared between processes."""

from __future__ import annotations

from collections.abc import Iterator

from preflight._util.hostnames import host_of, is_loopback
from preflight.model.findings import Severity
from preflight.model.job import Claim, Job, Scope, is_whole_number
from preflight.model.job.value import numbers
from preflight.plugins.authoring import Verdict, failed, not_applicable, passed, rule, undecided, unknown
from preflight.plugins.claim_text import placed, quoted, where
from preflight.plugins.questions import SubjectQuestion, subjects, subjects_with


def endpoints(claims: tuple[Claim, ...]) -> tuple[str, ...]:
    """The list that the claims state; empty when there is none or several."""
    found = [value for claim in claims for value in claim.alternatives if isinstance(value, tuple)]
    return tuple(str(item) for item in found[0]) if len(found) == 1 else ()


@rule("PPS001", "endpoint-listed-twice", severity=Severity.ERROR, otherwise="no list of servers or trainers is given")
def endpoint_listed_twice(job: Job) -> Iterator[Verdict]:
    """Two processes of a parameter-server job have the same host and port.

    What it checks: No endpoint occurs twice among the servers, twice among the trainers, or in both lists.

    Why it matters: The second process cannot listen there and stops, or trainers treat one server as two, and part of
    the parameters is never updated.

    Example: `--servers=10.0.0.1:6170,10.0.0.1:6170`.

    Fix: Give each process on one host its own port.

    Known limits: Entries without a port are not compared. The same process written once by name and once by address is
    not recognised.
    """
    for subject, scope, launch in subjects(job):
        servers = job.value_claims("ps_server_endpoints", scope)
        workers = job.value_claims("ps_worker_endpoints", scope)
        for claims, other in ((servers, ()), (workers, servers)):
            if claims:
                yield undecided(subject, (*claims, *other), launch) or _duplicates_verdict(subject, claims, other)


def place_of(claim: Claim) -> tuple[str, int, int]:
    """Path, line and column of a claim."""
    return claim.span.path, claim.span.line, claim.span.column


def _duplicates_verdict(subject: str, claims: tuple[Claim, ...], other: tuple[Claim, ...]) -> Verdict:
    listed = [item for item in endpoints(claims) if _has_port(item)]
    twice = next((item for item in listed if listed.count(item) > 1), None)
    if twice is not None:
        return failed(
            subject,
            f"{quoted(claims[0])} lists {twice} {listed.count(twice)} times: two processes cannot share one port.",
            at=claims[0],
            remedy=f"Give each process on {host_of(twice)} its own port.",
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
    return is_whole_number(port) and port != endpoint and int(port) != 0


@rule("PPS005", "server-lists-differ", severity=Severity.ERROR)
def server_lists_differ(job: Job) -> Iterator[Verdict]:
    """Processes of one parameter-server job have different lists of servers.

    What it checks: All launch lines of one program that carry a list of servers carry the same one, in the same order.

    Why it matters: Parameters are assigned to servers by their position in the list. With a different order or length
    two trainers look for one parameter on different servers: training silently goes wrong, or waits forever.

    Example: A server started with `10.0.0.1:6170,10.0.0.2:6170`, a trainer with `10.0.0.2:6170,10.0.0.1:6170`.

    Fix: Write the list once, in a file that all launch lines source.

    Known limits: Two lists that have no server in common are treated as two jobs.
    """
    lists = [(launch, job.setting("ps_server_endpoints", launch.scope)) for launch in job.launches]
    lists = [(launch, claims) for launch, claims in lists if claims]
    if len(lists) < 2:
        yield not_applicable(job.name, "no two launches carry a list of servers")
        return
    first, ours = lists[0]
    for launch, claims in lists[1:]:
        if launch.program != first.program:
            continue
        one, other = endpoints(ours), endpoints(claims)
        if undecided_verdict := undecided(launch.id, ours, first) or undecided(launch.id, claims, launch):
            yield undecided_verdict
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
    otherwise="no launch sets both the number and the list of servers or trainers",
)
def role_count_differs_from_list(job: Job) -> Iterator[Verdict]:
    """The number of servers or trainers is not the length of their list.

    What it checks: `--server_num` is compared with `--servers`, `--trainer_num` with `--workers`, and
    PADDLE_TRAINERS_NUM with PADDLE_TRAINER_ENDPOINTS.

    Why it matters: Servers wait for trainers that do not exist, or ignore some trainers.

    Example: `fleetrun --server_num=2 --servers=10.0.0.1:6170 ...`.

    Fix: Leave out the number where there is a list.

    Known limits: Only numbers and lists of one launch are compared.
    """
    for subject, scope, launch in subjects(job):
        for quantity, listed in (
            ("ps_servers", "ps_server_endpoints"),
            ("ps_workers", "ps_worker_endpoints"),
        ):
            counts = [c for c in job.about(quantity, scope) if c.value and not _is_list(job, c, listed, scope)]
            lists = job.setting(listed, scope)
            if not counts or not lists:
                continue
            if undecided_verdict := undecided(subject, (*counts, *lists), launch):
                yield undecided_verdict
                continue
            length, count = len(endpoints(lists)), numbers(counts[0].value)
            if length and count and length not in count:
                yield failed(
                    subject,
                    f"{quoted(counts[0])} gives {count[0]}, but {placed(lists[0])} lists {length}.",
                    at=counts[0],
                    also=((lists[0], f"{length} entries"),),
                    remedy=f"Remove the number, or make it {length}.",
                )
            else:
                yield passed(subject)


def _is_list(job: Job, claim: Claim, listed: str, scope: Scope) -> bool:
    """Whether a count is derived from the list itself."""
    return any(place_of(claim) == place_of(other) for other in job.about(listed, scope))


@rule(
    "PPS007",
    "servers-all-on-one-host",
    severity=Severity.WARNING,
    otherwise="no launch lists both servers and trainers",
    each=subjects_with("ps_server_endpoints", "ps_worker_endpoints"),
)
def servers_all_on_one_host(question: SubjectQuestion) -> Verdict | None:
    """All parameter servers share one host although the trainers are spread over several.

    What it checks: Where trainers are on two hosts or more, two or more servers are not all on the same one.

    Why it matters: Every parameter of every trainer goes through one network card and one host's memory, so more
    servers do not help.

    Example: `--servers=10.0.0.1:6170,10.0.0.1:6171 --workers=10.0.0.1:6172,10.0.0.2:6172`.

    Fix: Put one server on each host.

    Known limits: A single server is not reported.
    """
    servers, workers = question.of
    at, work = [host_of(e) for e in endpoints(servers)], {host_of(e) for e in endpoints(workers)}
    if len(at) > 1 and len(set(at)) == 1 and len(work) > 1:
        return failed(
            question.subject,
            f"{quoted(servers[0])} puts all {len(at)} servers on {at[0]}, while the trainers are on {len(work)} hosts.",
            at=servers[0],
            also=((workers[0], "the trainers"),),
            remedy="Spread the servers over the hosts.",
        )
    return None


@rule(
    "PPS009",
    "loopback-among-remote-endpoints",
    severity=Severity.ERROR,
    otherwise="no list of servers or trainers is given",
    each=subjects_with(also=("ps_server_endpoints", "ps_worker_endpoints"), where=any),
)
def loopback_among_remote_endpoints(question: SubjectQuestion) -> Verdict | None:
    """A list of servers or trainers mixes loopback with addresses of other hosts.

    What it checks: If a list names another host, no entry of the lists is 127.x.x.x or localhost.

    Why it matters: On every other host the loopback entry means that host itself: its processes dial themselves.

    Example: `--servers=127.0.0.1:6170,10.0.0.2:6170`.

    Fix: Write the address that the other hosts can reach.

    Known limits: Lists with only loopback addresses belong to a trial on one host and are not reported.
    """
    claims = question.claims
    entries = [(claim, entry) for claim in claims for entry in endpoints((claim,))]
    local = [(claim, entry) for claim, entry in entries if is_loopback(host_of(entry))]
    if local and len(local) < len(entries):
        claim, entry = local[0]
        others = [(other, text) for other, text in entries if not is_loopback(host_of(text))]
        # An entry of the same list is visible on the same line; one of the other list is named.
        beside, remote = min(others, key=lambda item: item[0] is not claim)
        return failed(
            question.subject,
            f"{quoted(claim)} holds {entry} beside {remote}"
            + (f" of {placed(beside)}" if beside is not claim else "")
            + f": on every other host {host_of(entry)} means that host itself.",
            at=claim,
            also=() if beside is claim else ((beside, f"holds {remote}"),),
            remedy=f"Replace {host_of(entry)} by the address that the other hosts can reach.",
        )
    return None
