"""Roles and endpoints of parameter-server jobs: lists of servers and trainers, and processes that a script starts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from preflight._util.hostnames import host_of, is_loopback
from preflight._util.sequences import join_some
from preflight.model.findings import Confidence, Fix, Severity
from preflight.model.job import Claim, Job, Known, Launch, Scope, Unresolved, is_whole_number
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import (
    Verdict,
    failed,
    make_fix,
    not_applicable,
    passed,
    replace_text,
    rule,
    undecided,
    unknown,
)
from preflight.plugins.claim_text import argument_of, placed, quoted, where
from preflight.plugins.questions import SubjectQuestion, subjects, subjects_with
from preflight_rules.launches import starting_file
from preflight_rules.paddle.script_setup import is_at_least_release

#: The roles that fleet's role maker accepts in TRAINING_ROLE (paddle/distributed/fleet/base/role_maker.py, 2.6).
_ROLES = ("TRAINER", "PSERVER", "HETER_TRAINER", "COORDINATOR")
#: An image of PaddlePaddle's own repository and its release (`paddlepaddle/paddle:3.2.0-gpu-cuda12.6`).
_OFFICIAL_IMAGE = re.compile(r"paddlepaddle/paddle:v?(\d+(?:\.\d+)+(?:rc\d+|b\d+)?)")
#: The first release whose wheels have no parameter server (PaddlePaddle/Paddle#73999).
_FIRST_WITHOUT_SERVERS = "3.1.1"


@rule(
    "PPS002",
    "role-index-out-of-range",
    severity=Severity.ERROR,
    otherwise="no launch sets both an index and a count for its role",
)
def role_index_out_of_range(job: Job) -> Iterator[Verdict]:
    """A trainer or server has an index that is not below the number of processes in its role.

    What it checks: PADDLE_TRAINER_ID is below PADDLE_TRAINERS_NUM, a server's index below the number of servers, and an
    index is not negative.

    Why it matters: The servers wait for the configured number of trainers and never count a trainer with a higher
    index: training hangs at its first barrier.

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
        index_numbers, count_numbers = numbers(job_value(indices)), numbers(job_value(counts))
        if verdict is None and count_numbers and max(count_numbers) < 1:
            verdict = failed(
                subject,
                f"{quoted(counts[0])} is not a valid number of {'servers' if roles == {'PSERVER'} else 'trainers'}: "
                "expected 1 or more.",
                at=counts[0],
                also=((indices[0], "an index below this number"),),
                remedy="Set the number of processes of this role that are started.",
                severity=None if launch is not None else Severity.WARNING,
            )
        elif (
            verdict is None
            and index_numbers
            and count_numbers
            and all(index >= max(count_numbers) or index < 0 for index in index_numbers)
        ):
            verdict = failed(
                subject,
                f"{quoted(indices[0])} is not a valid index with {quoted(counts[0])}: expected 0 to "
                f"{max(count_numbers) - 1}.",
                at=indices[0],
                also=((counts[0], f"{max(count_numbers)} in total"),),
                remedy=f"Number them from 0 to {max(count_numbers) - 1}, or raise the count.",
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

    Known limits: A script that reads TRAINING_ROLE itself, without fleet, may know other roles. A job without any other
    sign of Paddle is not judged.
    """
    claim_texts = (f"{claim.quantity} {claim.span.snippet}".lower() for claim in job.claims)
    if not any("paddle" in text for text in claim_texts):
        read_paths = {file.path for file in job.files}
        unread_launch = next(
            (launch for launch in job.launches if launch.program and launch.program not in read_paths), None
        )
        if unread_launch is not None and job.about("ps_role"):
            yield unknown(
                job.name,
                f"`{unread_launch.program}` is not one of the job's files, and may use Paddle",
                at=unread_launch,
            )
        else:
            yield not_applicable(job.name, "nothing in the job uses Paddle")
        return
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
    """Return a fix for the role, safe only if the case differs: WORKER may have its own meaning in the script."""
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
    same way. PADDLE_CURRENT_ENDPOINT of a trainer is not in it (otherwise a warning). The finding is at the port if the
    list has the host with another port, or if POD_IP is set elsewhere and no server in the list has that port.

    Why it matters: A server finds its index by looking itself up in the list and stops when it is not there; a trainer
    at a server's endpoint uses the server's port, or, in scripts that read the endpoint, others wait for it as a
    server.

    Example: `POD_IP=10.0.0.3 PADDLE_PORT=6170` with a list that contains 10.0.0.1:6170 and 10.0.0.2:6170.

    Fix: Write the endpoint in the list and in the process's own variables the same way.

    Known limits: A host that is written as a name in one place and as an address in the other is reported, because
    Paddle compares strings.
    """
    for launch in job.launches:
        own = job.setting("ps_current_endpoint", launch.scope)
        servers = job.setting("ps_server_endpoints", launch.scope)
        roles = {text for claim in job.setting("ps_role", launch.scope) for text in texts(claim.value)}
        if not own or not servers or roles not in ({"PSERVER"}, {"TRAINER"}):
            continue
        if undecided_verdict := undecided(launch.id, (*own, *servers), launch):
            port = _own_port(job, launch, own[0])
            is_unlisted = roles == {"PSERVER"} and port is not None and _port_is_unlisted(port, servers)
            yield (
                _unlisted_port_finding(launch, port, servers[0])
                if is_unlisted and port is not None
                else undecided_verdict
            )
            continue
        entries, own_address = endpoints(servers), texts(job_value(own))
        are_listed = [endpoint in entries for endpoint in own_address if ":" in endpoint]
        is_wrong = (
            bool(are_listed) and bool(entries) and (not any(are_listed) if roles == {"PSERVER"} else all(are_listed))
        )
        if not is_wrong:
            yield passed(launch.id)
            continue
        yield _misplaced_finding(
            launch, own_address[0], own[0], _own_port(job, launch, own[0]), servers[0], is_server="PSERVER" in roles
        )


def _own_port(job: Job, launch: Launch, own: Claim) -> Claim | None:
    """Return the claim about the port if the endpoint consists of POD_IP and PADDLE_PORT; otherwise None."""
    if not own.spelling.removeprefix("export ").startswith("POD_IP"):
        return None
    return next(iter(job.setting("env.PADDLE_PORT", launch.scope)), None)


def _port_is_unlisted(port: Claim, servers: tuple[Claim, ...]) -> bool:
    """Return whether certainly no entry of the list of servers has this port."""
    if any(isinstance(claim.value, Unresolved) for claim in (port, *servers)):
        return False
    ports, listed_ports = texts(port.value), {entry.rpartition(":")[2] for entry in endpoints(servers)}
    are_known = bool(ports) and bool(listed_ports) and all(text.isdecimal() for text in (*ports, *listed_ports))
    return are_known and not listed_ports & set(ports)


def _unlisted_port_finding(launch: Launch, port: Claim, servers: Claim) -> Verdict:
    listed_ports = sorted({entry.rpartition(":")[2] for entry in endpoints((servers,))}, key=int)
    return failed(
        launch.id,
        f"the server's port is {texts(port.value)[0]} ({quoted(port)}), but {placed(servers)} has no entry with "
        f"that port, only with {' and '.join(listed_ports)}.",
        at=port,
        also=((servers, "the servers"),),
        remedy="Use the same server port in both places.",
    )


def _misplaced_finding(
    launch: Launch, own_address: str, own: Claim, port: Claim | None, servers: Claim, *, is_server: bool
) -> Verdict:
    """Return the finding at the part of the endpoint that differs: the port, if the list contains the host."""
    same_host = [entry for entry in endpoints((servers,)) if host_of(entry) == host_of(own_address)]
    fault = "does not list this endpoint" if is_server else "lists it as a server"
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
        remedy="Use the same server endpoint in both places."
        if is_server
        else "Give the trainer its own port, or the role PSERVER.",
        severity=Severity.ERROR if is_server else Severity.WARNING,
    )


def _server_mode_claims(job: Job, scope: Scope) -> list[Claim]:
    return [claim for claim in job.value_claims("ps_mode", scope) if True in claim.alternatives]


def _release_claims(job: Job, scope: Scope) -> tuple[Claim, ...]:
    return job.value_claims("paddle_version", scope) or _image_claims(job, scope)


@rule(
    "PPS008",
    "parameter-server-missing-in-paddle",
    severity=Severity.ERROR,
    applies_to="paddlepaddle >= 3.1.1",
    otherwise="nothing starts a parameter server",
    each=subjects_with(_server_mode_claims, also=(_release_claims,)),
)
def parameter_server_missing_in_paddle(question: SubjectQuestion) -> Verdict | None:
    """A parameter-server job names a Paddle release whose wheels have no parameter server.

    What it checks: A job that starts parameter servers does not request PaddlePaddle 3.1.1 or newer.

    Why it matters: Since 3.1.1, the wheels have no parameter server. The launcher still accepts the options and starts
    all processes, and the job dies in `minimize` with an unrelated import error.

    Example: `pip install paddlepaddle==3.3.1` and `fleetrun --server_num=1 --trainer_num=2 train.py`.

    Fix: Use PaddlePaddle 3.0.0 or older, or build it with the parameter server.

    Known limits: Only a version that the job's files name is judged, such as the tag of the official image; what is
    installed is checked by `preflight check`. A custom build may contain the parameter server.
    """
    modes, versions = question.of
    releases = [version for claim in versions for text in texts(claim.value) if (version := _version(text))]
    if not releases:
        return unknown(question.subject, "the PaddlePaddle release is not given", at=modes[0])
    if all(is_at_least_release(_FIRST_WITHOUT_SERVERS, text) for text in releases):
        return failed(
            question.subject,
            f"{quoted(versions[0])} requests PaddlePaddle {releases[0]}, whose wheels have no parameter server"
            f" (since {_FIRST_WITHOUT_SERVERS}), but {placed(modes[0])} starts one.",
            at=versions[0],
            also=((modes[0], "starts parameter servers"),),
            remedy="Use PaddlePaddle 3.0.0 or older for this job.",
        )
    return None


def _image_claims(job: Job, scope: Scope) -> tuple[Claim, ...]:
    """Return the container images of PaddlePaddle's own repository, whose tag is the release."""
    return tuple(c for c in job.setting("container", scope) if any(_OFFICIAL_IMAGE.search(t) for t in texts(c.value)))


def _version(text: str) -> str:
    image = _OFFICIAL_IMAGE.search(text)
    return image[1] if image else text if "/" not in text else ""


def endpoints(claims: tuple[Claim, ...]) -> tuple[str, ...]:
    """Return the entries of the list that the claims give; empty unless they give exactly one list."""
    lists = [value for claim in claims for value in claim.alternatives if isinstance(value, tuple)]
    return tuple(str(item) for item in lists[0]) if len(lists) == 1 else ()


@rule("PPS001", "endpoint-listed-twice", severity=Severity.ERROR, otherwise="no list of servers or trainers is given")
def endpoint_listed_twice(job: Job) -> Iterator[Verdict]:
    """Two processes of a parameter-server job have the same host and port.

    What it checks: No endpoint occurs twice among the servers, twice among the trainers, or in both lists.

    Why it matters: The second process cannot listen there and stops, or trainers treat one server as two, and some
    parameters are never updated.

    Example: `--servers=10.0.0.1:6170,10.0.0.1:6170`.

    Fix: Give each process on a host its own port.

    Known limits: Entries without a port are not compared. A process that is written once by name and once by address is
    not recognized.
    """
    for subject, scope, launch in subjects(job):
        servers = job.value_claims("ps_server_endpoints", scope)
        workers = job.value_claims("ps_worker_endpoints", scope)
        for claims, other in ((servers, ()), (workers, servers)):
            if claims:
                yield undecided(subject, (*claims, *other), launch) or _duplicates_verdict(subject, claims, other)


def location_of(claim: Claim) -> tuple[str, int, int]:
    """Return path, line and column of a claim."""
    return claim.span.path, claim.span.line, claim.span.column


def _duplicates_verdict(subject: str, claims: tuple[Claim, ...], other_claims: tuple[Claim, ...]) -> Verdict:
    entries = [item for item in endpoints(claims) if _has_port(item)]
    duplicate = next((item for item in entries if entries.count(item) > 1), None)
    if duplicate is not None:
        return failed(
            subject,
            f"{quoted(claims[0])} lists {duplicate} {entries.count(duplicate)} times: two processes cannot share one"
            " port.",
            at=claims[0],
            remedy=f"Give each process on {host_of(duplicate)} its own port.",
        )
    shared_entry = next((item for item in entries if item in endpoints(other_claims)), None)
    if shared_entry is not None:
        return failed(
            subject,
            f"{shared_entry} is given to a trainer ({quoted(claims[0])}) and to a server ({quoted(other_claims[0])},"
            f" {where(other_claims[0])}): two processes cannot share one port.",
            at=claims[0],
            also=((other_claims[0], "the servers"),),
            remedy=f"Give trainer and server on {host_of(shared_entry)} different ports.",
        )
    return passed(subject)


def _has_port(endpoint: str) -> bool:
    port = endpoint.rpartition(":")[2]
    return is_whole_number(port) and port != endpoint and int(port) != 0


@rule("PPS005", "server-lists-differ", severity=Severity.ERROR)
def server_lists_differ(job: Job) -> Iterator[Verdict]:
    """Processes of one parameter-server job have different lists of servers.

    What it checks: All launch lines of one program that have a list of servers have the same list, in the same order.

    Why it matters: Parameters are assigned to servers by their position in the list. With a different order or length,
    two trainers look for the same parameter on different servers: training is silently wrong, or waits forever.

    Example: A server started with `10.0.0.1:6170,10.0.0.2:6170`, a trainer with `10.0.0.2:6170,10.0.0.1:6170`.

    Fix: Write the list once, in a file that all launch lines source.

    Known limits: Two lists that have no server in common are treated as two jobs, unless one is the list of the only
    started servers and the other the list of the only started trainers.
    """
    lists = [(launch, job.setting("ps_server_endpoints", launch.scope)) for launch in job.launches]
    lists = [(launch, claims) for launch, claims in lists if claims]
    if len(lists) < 2:
        yield not_applicable(job.name, "no two launches have a list of servers")
        return
    first, first_claims = lists[0]
    reported_lists: list[Sequence[str]] = []
    for launch, claims in lists[1:]:
        entries, other_entries = endpoints(first_claims), endpoints(claims)
        if launch.program != first.program or other_entries in reported_lists:
            continue
        if undecided_verdict := undecided(launch.id, first_claims, first) or undecided(launch.id, claims, launch):
            yield undecided_verdict
        elif (
            entries
            and other_entries
            and entries != other_entries
            and (set(entries) & set(other_entries) or _is_served_by(job, launch, first, lists))
        ):
            kind = "a different order of servers" if sorted(entries) == sorted(other_entries) else "other servers"
            reported_lists.append(other_entries)
            yield _list_difference_finding(launch, claims[0], first, first_claims[0], kind)
        elif not entries or not other_entries:
            yield unknown(launch.id, f"{quoted(claims[0])} is known only at run time", at=claims[0])
        else:
            yield passed(launch.id)


def _list_difference_finding(launch: Launch, claim: Claim, first: Launch, first_claim: Claim, kind: str) -> Verdict:
    remedy = "Give every process the same list in the same order."
    if location_of(claim) != location_of(first_claim):
        return failed(
            launch.id,
            f"{quoted(claim)} lists {kind} than {placed(first_claim)} of the same job.",
            at=claim,
            also=((first_claim, "the other list"),),
            remedy=remedy,
        )
    # One expression gives each process a different list.
    entries, other_entries = (join_some(list(endpoints((each,))), 4) for each in (first_claim, claim))
    return failed(
        launch.id,
        f"{quoted(claim)} gives {launch.id} {kind} ({other_entries}) than {first.id} ({entries}).",
        at=launch,
        also=((first, "the other process"), (claim, "the list")),
        remedy=remedy,
    )


def _is_served_by(job: Job, launch: Launch, other: Launch, lists: Sequence[tuple[Launch, tuple[Claim, ...]]]) -> bool:
    """Return whether one launch starts servers and the other trainers, and every launch of a role has the same list."""
    if {role_of(job, launch), role_of(job, other)} != {"PSERVER", "TRAINER"}:
        return False
    lists_by_role: dict[str, set[str]] = {}
    for member, claims in lists:
        lists_by_role.setdefault(role_of(job, member), set()).add(",".join(endpoints(claims)))
    return lists_by_role.keys() == {"PSERVER", "TRAINER"} and all(
        len(role_lists) == 1 for role_lists in lists_by_role.values()
    )


@rule(
    "PPS006",
    "role-count-differs-from-list",
    severity=Severity.ERROR,
    otherwise="no launch sets both the number and the list of servers or trainers",
)
def role_count_differs_from_list(job: Job) -> Iterator[Verdict]:
    """The number of servers or trainers differs from the length of their list.

    What it checks: `--server_num` equals the length of `--servers`, `--trainer_num` that of `--workers`, and
    PADDLE_TRAINERS_NUM that of PADDLE_TRAINER_ENDPOINTS.

    Why it matters: Servers wait for trainers that do not exist, or ignore some trainers.

    Example: `fleetrun --server_num=2 --servers=10.0.0.1:6170 ...`.

    Fix: Omit the number if there is a list.

    Known limits: Only numbers and lists of one launch are compared.
    """
    for subject, scope, launch in subjects(job):
        for quantity, list_quantity in (("ps_servers", "ps_server_endpoints"), ("ps_workers", "ps_worker_endpoints")):
            counts = [
                c
                for c in job.about(quantity, scope)
                if c.value and not _is_derived_from_list(job, c, list_quantity, scope)
            ]
            lists = job.setting(list_quantity, scope)
            if not counts or not lists:
                continue
            if undecided_verdict := undecided(subject, (*counts, *lists), launch):
                yield undecided_verdict
                continue
            length, count = len(endpoints(lists)), numbers(counts[0].value)
            if length and count and length not in count:
                yield failed(
                    subject,
                    f"{quoted(counts[0])} sets {count[0]}, but {placed(lists[0])} lists {length}.",
                    at=counts[0],
                    also=((lists[0], f"{length} entries"),),
                    remedy=f"Remove the number, or change it to {length}.",
                )
            else:
                yield passed(subject)


def _is_derived_from_list(job: Job, claim: Claim, listed: str, scope: Scope) -> bool:
    """Return whether a count is derived from the list itself."""
    return any(location_of(claim) == location_of(other) for other in job.about(listed, scope))


@rule(
    "PPS007",
    "servers-all-on-one-host",
    severity=Severity.WARNING,
    otherwise="no launch lists both servers and trainers",
    each=subjects_with("ps_server_endpoints", "ps_worker_endpoints"),
)
def servers_all_on_one_host(question: SubjectQuestion) -> Verdict | None:
    """All parameter servers share one host although the trainers are spread over several.

    What it checks: If trainers are on two or more hosts, two or more servers are not all on the same host.

    Why it matters: Every parameter of every trainer goes through one network card and one host's memory, so more
    servers do not help.

    Example: `--servers=10.0.0.1:6170,10.0.0.1:6171 --workers=10.0.0.1:6172,10.0.0.2:6172`.

    Fix: Put one server on each host.

    Known limits: A single server is not reported.
    """
    servers, workers = question.of
    server_hosts, worker_hosts = [host_of(e) for e in endpoints(servers)], {host_of(e) for e in endpoints(workers)}
    if len(server_hosts) > 1 and len(set(server_hosts)) == 1 and len(worker_hosts) > 1:
        return failed(
            question.subject,
            f"{quoted(servers[0])} puts all {len(server_hosts)} servers on {server_hosts[0]}, but the trainers are "
            f"on {len(worker_hosts)} hosts.",
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

    Why it matters: On every other host the loopback entry means that host itself: its processes connect to themselves.

    Example: `--servers=127.0.0.1:6170,10.0.0.2:6170`.

    Fix: Write the address that the other hosts can reach.

    Known limits: Lists with only loopback addresses belong to a trial on one host and are not reported.
    """
    claims = question.claims
    entries = [(claim, entry) for claim in claims for entry in endpoints((claim,))]
    local_entries = [(claim, entry) for claim, entry in entries if is_loopback(host_of(entry))]
    if local_entries and len(local_entries) < len(entries):
        claim, entry = local_entries[0]
        others = [(other, text) for other, text in entries if not is_loopback(host_of(text))]
        # An entry of the same list is preferred, because it is visible on the same line.
        remote_claim, remote = min(others, key=lambda item: item[0] is not claim)
        return failed(
            question.subject,
            f"{quoted(claim)} lists {entry} in addition to {remote}"
            + (f" of {placed(remote_claim)}" if remote_claim is not claim else "")
            + f": on every other host {host_of(entry)} means that host itself.",
            at=claim,
            also=() if remote_claim is claim else ((remote_claim, f"lists {remote}"),),
            remedy=f"Replace {host_of(entry)} with an address that the other hosts can reach.",
        )
    return None


# Servers and trainers that a script starts: their number, indices and order.


#: Names of scripts that each start one node: trainer0.sh, worker-1.sh, node2.sh.
_NUMBERED_SCRIPT = re.compile(r"(?:.*[-_.])?(?:node|worker|trainer|machine|host|rank)[-_]?\d+\.\w+")
#: Commands that wait.
_WAIT_COMMANDS = re.compile(r"\b(?:sleep|wait|nc|timeout)\b")
#: The end of a background command.
_BACKGROUND = re.compile(r"(?<![&>])&(?![&>\d])")


def role_of(job: Job, launch: Launch) -> str:
    """Return the role of a launch, such as PSERVER or TRAINER; empty if unknown."""
    roles = {text for claim in job.setting("ps_role", launch.scope) for text in texts(claim.value)}
    return roles.pop() if len(roles) == 1 else ""


def _launches_by_program(job: Job) -> Iterator[tuple[Launch, ...]]:
    """Yield the launches with a role, grouped by their list of servers, otherwise by program."""
    launches: dict[str, list[Launch]] = {}
    for launch in job.launches:
        if job.setting("ps_role", launch.scope):
            servers = job.value("ps_server_endpoints", launch.scope)
            key = str(servers.value) if isinstance(servers, Known) else launch.program
            launches.setdefault(key, []).append(launch)
    yield from (tuple(group) for group in launches.values())


def _is_on_several_hosts(job: Job, launch: Launch) -> bool:
    """Return whether the endpoints of a launch may be on several hosts, so that others may be started elsewhere."""
    claims = (*job.setting("ps_server_endpoints", launch.scope), *job.setting("ps_worker_endpoints", launch.scope))
    hosts = {host_of(entry) for claim in claims for entry in endpoints((claim,))}
    return len(hosts) > 1 or any(not alternative.alternatives for alternative in claims)


@rule(
    "PPS010",
    "fewer-trainers-started-than-declared",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no script starts both the servers and the trainers of a program",
)
def fewer_trainers_started_than_declared(job: Job) -> Iterator[Verdict]:
    """A script starts fewer trainers than PADDLE_TRAINERS_NUM tells the servers to expect.

    What it checks: If servers and trainers of one program are started next to each other on one host, there are as many
    trainers, with different indices, as PADDLE_TRAINERS_NUM states.

    Why it matters: Servers in synchronous mode wait for every trainer at each step: if one is missing, no trainer gets
    past the first step.

    Example: `export PADDLE_TRAINERS_NUM=2` and then one server and `PADDLE_TRAINER_ID=0` only.

    Fix: Start the missing trainers, or reduce the number.

    Known limits: If the endpoints name several hosts the others may be started elsewhere, and nothing is reported. With
    a loop of unknown length the result is unknown.
    """
    for group in _launches_by_program(job):
        trainers = [launch for launch in group if role_of(job, launch) == "TRAINER"]
        if not trainers or not any(role_of(job, launch) == "PSERVER" for launch in group):
            continue
        yield _count_verdict(job, group, trainers)


def _count_verdict(job: Job, group: Sequence[Launch], trainers: Sequence[Launch]) -> Verdict:
    subject = trainers[0].id
    declared_counts = [job.value_claims("ps_workers", launch.scope) for launch in (*trainers, *group)]
    counts = max(declared_counts, key=lambda claims: max(numbers(job_value(claims)), default=0) if claims else -1)
    indices = [claim for launch in trainers for claim in job.setting("ps_index", launch.scope)]
    if not counts:
        return unknown(subject, "the expected number of trainers is not given")
    if undecided_verdict := undecided(
        subject, [*(each for claims in declared_counts for each in claims), *indices], trainers[0]
    ):
        return undecided_verdict
    if any(not role_of(job, launch) for launch in group) or any(_is_on_several_hosts(job, launch) for launch in group):
        return unknown(subject, "other trainers may be started on other hosts", at=counts[0])
    indices_started = {number for claim in indices for number in numbers(claim.value)} or set(range(len(trainers)))
    expected = min(numbers(job_value(counts)), default=0)
    if len(indices_started) >= expected:
        return passed(subject)
    missing = sorted(set(range(expected)) - indices_started)
    names = join_some([str(number) for number in missing], 8)
    return failed(
        subject,
        f"{quoted(counts[0])} declares {expected} trainers, but only {len(indices_started)} are started together "
        f"with the servers ({'index' if len(indices_started) == 1 else 'indices'} "
        f"{', '.join(map(str, sorted(indices_started)))}): the servers wait for trainer {names} forever.",
        at=counts[0],
        also=tuple((launch, "a trainer") for launch in trainers[:4]),
        remedy=f"Also start trainer {names}, or set PADDLE_TRAINERS_NUM to {len(indices_started)}.",
    )


@rule(
    "PPS011",
    "index-of-role-twice",
    severity=Severity.ERROR,
    otherwise="no two trainers or servers are started together",
)
def index_of_role_twice(job: Job) -> Iterator[Verdict]:
    """Two trainers, or two servers, that run at the same time have the same index.

    What it checks: Trainers of one list of servers that are started in the background of one script, or by scripts with
    numbered names, one per node, have different indices, and so do servers, whose index is the position of their
    endpoint in the list.

    Why it matters: The servers treat the two trainers as one and wait for the other index forever. Two servers with one
    endpoint cannot both listen on it, and the trainers wait for a server that was never started.

    Example: `PADDLE_TRAINER_ID=0 python train.py &` twice.

    Fix: Count the indices from 0, one for each trainer.

    Known limits: Launches that run one after the other, and launches in files with other names are not compared.
    """
    for group in _launches_by_program(job):
        for role, noun in (("TRAINER", "trainer"), ("PSERVER", "server")):
            launches = [launch for launch in group if role_of(job, launch) == role]
            if len(launches) > 1:
                yield from _index_verdicts(job, launches, noun)


def _index_verdicts(job: Job, launches: Sequence[Launch], noun: str) -> Iterator[Verdict]:
    first_by_key: dict[tuple[str, int], tuple[Launch, Claim]] = {}
    for launch in launches:
        claims = job.setting("ps_index", launch.scope)
        undecided_verdict = undecided(launch.id, claims, launch)
        index_numbers = numbers(job_value(claims)) if claims else ()
        if undecided_verdict is not None or len(index_numbers) != 1:
            yield undecided_verdict or unknown(launch.id, f"the index of the {noun} is not given")
            continue
        script = starting_file(launch)
        is_numbered = _NUMBERED_SCRIPT.fullmatch(script.rpartition("/")[2].lower())
        key = ("" if is_numbered else script, index_numbers[0])
        first, claim = first_by_key.setdefault(key, (launch, claims[0]))
        is_concurrent = starting_file(first) != script or first.concurrent or _runs_in_background(first)
        if first is launch or not is_concurrent or not _have_same_servers(job, first, launch):
            yield passed(launch.id)
            continue
        is_same_line = where(claim) == where(claims[0]) and claim.span == claims[0].span
        start = launch.started_at[0] if launch.started_at else launch
        yield failed(
            launch.id,
            f"{quoted(claims[0])} is the index of every {noun} that runs the script."
            if is_same_line
            else f"{quoted(claims[0])} is also the index of the {noun} of {where(claim)}, which runs at the same time.",
            at=claims[0],
            also=((start, f"a second {noun}"),)
            if is_same_line
            else ((argument_of(claim) or claim, f"{noun} {index_numbers[0]} already"),),
            remedy=f"Give each {noun} its own {'endpoint' if noun == 'server' else 'index, counted from 0'}.",
        )


def _have_same_servers(job: Job, first: Launch, second: Launch) -> bool:
    lists = [job.value("ps_server_endpoints", launch.scope) for launch in (first, second)]
    return lists[0] == lists[1] and (isinstance(lists[0], Known) or first.condition == second.condition)


def _runs_in_background(launch: Launch) -> bool:
    """Return whether the script continues while the launch runs."""
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

    Why it matters: A trainer that connects before its server listens stops with "Connect Failed", or loses its first
    requests. With little data this happens at every start, otherwise occasionally.

    Example: `for r in PSERVER TRAINER; do TRAINING_ROLE=$r python train.py & done`.

    Fix: Start the servers first and wait until their ports accept connections, or set `wait_port` of the transpiler.

    Known limits: If the lines are further apart, the script may wait in between. Whether the program waits is known
    only if it is one of the job's files.
    """
    for group in _launches_by_program(job):
        for launch in group:
            if not role_of(job, launch) and _runs_in_background(launch):
                yield unknown(launch.id, "the roles that the line starts are known only at run time")
        pair = _adjacent_start(job, group)
        if pair is not None:
            yield _waits_for_servers(job, *pair)


def _adjacent_start(job: Job, group: Sequence[Launch]) -> tuple[Launch, Launch] | None:
    """Return the first trainer and the server before it, if the trainer starts on the server's line or the next one."""
    server: Launch | None = None
    for launch in group:
        role = role_of(job, launch)
        if role == "PSERVER" and _runs_in_background(launch) and not _WAIT_COMMANDS.search(launch.span.snippet):
            server = launch
        elif role == "TRAINER" and server is not None:
            is_adjacent = launch.span.path == server.span.path and 0 <= launch.span.line - server.span.line <= 1
            return (launch, server) if is_adjacent else None
    return None


def _waits_for_servers(job: Job, trainer: Launch, server: Launch) -> Verdict:
    waiting = [c for c in job.about("waits_for_servers", trainer.scope) if True in c.alternatives]
    if waiting:
        return passed(trainer.id)
    role = job.setting("ps_role", trainer.scope)[0]
    if undecided_verdict := undecided(trainer.id, (role,), trainer):
        return undecided_verdict
    if not _runs_in_background(server):
        return passed(trainer.id)
    return failed(
        trainer.id,
        f"{quoted(role)}: trainers are started together with their servers, but nothing waits until the servers "
        "listen.",
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

    Why it matters: Without `--http_port`, the launcher chooses a port that is free on its own host, and passes it only
    to its own processes. Processes of the other hosts look for Gloo at another port: barriers and global shuffles hang.

    Example: `fleetrun --servers=10.0.0.1:6170,10.0.0.2:6170 --workers=10.0.0.1:6171,10.0.0.2:6171 train.py`.

    Fix: Give the same `--http_port` on every host, which must be free on the host of the first server.

    Known limits: A job that never uses Gloo (PADDLE_WITH_GLOO unset in PaddlePaddle 2.1 to 2.6, no barrier, no global
    shuffle) runs without it.
    """
    for launch in job.launches:
        servers = job.setting("ps_server_endpoints", launch.scope)
        workers = job.setting("ps_worker_endpoints", launch.scope)
        if launch.launcher != "paddle" or not servers or not workers:
            continue
        # `--workers` is an option of the old launcher. The new launcher's `--trainers` has a fixed port.
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
                f"{quoted(servers[0])} and {quoted(workers[0])} span {len(hosts)} hosts without --http_port: each "
                "host chooses its own free port, so Gloo's processes cannot find each other.",
                at=launch,
                also=((servers[0], "the servers"),),
                remedy="Add the same --http_port to the launch line of every host.",
            )
        yield verdict or passed(launch.id)


def _avoids_gloo_rendezvous(job: Job, launch: Launch) -> bool:
    """Return whether the launch disables Gloo, or sets its endpoint itself."""
    switch = job.setting("env.PADDLE_WITH_GLOO", launch.scope)
    own_endpoint = job.setting("env.PADDLE_GLOO_HTTP_ENDPOINT", launch.scope)
    return bool(own_endpoint) or (bool(switch) and set(texts(job_value(switch))) == {"0"})
