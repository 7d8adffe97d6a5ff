"""The process group and its network: backend, interfaces, and variables of NCCL, Gloo, TensorPipe, libfabric, UCX."""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from preflight._util.usage_error import similar_names
from preflight.model.findings import Confidence, Fix, Severity
from preflight.model.job import Claim, Job, Known, Launch, Scope, Unresolved
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import (
    Question,
    Verdict,
    failed,
    make_fix,
    passed,
    replace_text,
    rule,
    undecided,
    unknown,
)
from preflight.plugins.claim_text import joined, placed, quoted
from preflight.plugins.questions import subjects
from preflight_rules.data_tables import (
    Contradiction,
    SchedulerVariables,
    contradictions,
    known_variables,
    scheduler_variables,
)
from preflight_rules.launches import certainly_one, certainly_several, nodes_of, nodes_spanned, subject_claims
from preflight_rules.rendezvous.variables import closest, nearest

#: Variables that choose a transport's interface. Without them the transport uses the address of the node's host name.
_INTERFACES = {"gloo": "GLOO_SOCKET_IFNAME", "tensorpipe": "TP_SOCKET_IFNAME"}


@rule(
    "PGR001",
    "gloo-without-interface",
    severity=Severity.WARNING,
    confidence=Confidence.LOW,
    otherwise="no launch starts a script that names its backend",
)
def gloo_without_interface(job: Job) -> Iterator[Verdict]:
    """Gloo connects several nodes, but no variable chooses its interface.

    What it checks: If a script requests the gloo backend (or starts torch's RPC, or torchdata's reading service) and
    its ranks run on several nodes, GLOO_SOCKET_IFNAME (TP_SOCKET_IFNAME) is set.

    Why it matters: Gloo listens at the address that the node's own host name resolves to. Many images resolve it to
    127.0.1.1 in /etc/hosts: each rank then makes the others connect to themselves ("Connection refused").

    Example: `dist.init_process_group("gloo")` and `torchrun --nnodes=2 ...`.

    Fix: `export GLOO_SOCKET_IFNAME=eth0`, with the interface that reaches the other nodes.

    Known limits: Host names that resolve to routable addresses are fine, but files do not show this; `preflight check`
    does. A backend that is gloo only in one branch is not judged.
    """
    for subject, scope, launch in subjects(job):
        backends = [claim for claim in job.setting("backend", scope) if claim.source == "python"]
        transport_claims = list(job.about("host_name_transport", scope))
        if launch is None or not (backends or transport_claims):
            continue
        claims = list(transport_claims) if transport_claims else _backend_arguments(launch, backends)
        transports = texts(job_value(claims))
        variable = _INTERFACES.get(transports[0], "") if len(set(transports)) == 1 else ""
        nodes = nodes_of(job, launch)
        if undecided_verdict := undecided(subject, claims, launch):
            yield undecided_verdict
        elif not variable or certainly_one(nodes) or job.about(f"env.{variable}", scope) or _runs_in_pod(job, launch):
            yield passed(subject)
        elif not certainly_several(nodes):
            yield unknown(subject, f"cannot determine whether {transports[0]} must reach another node", at=claims[0])
        else:
            yield failed(
                subject,
                f"{quoted(claims[0])} uses {transports[0]} on {joined(numbers(nodes))} nodes, and {variable} is not "
                "set, so it uses the address of the node's own host name, which many images resolve to 127.0.1.1.",
                at=claims[0],
                also=((launch, f"{joined(numbers(nodes))} nodes"),),
                remedy=f"Set {variable} to the interface that reaches the other nodes, or make sure that every host"
                " name resolves to its address in the cluster.",
            )


def _runs_in_pod(job: Job, launch: Launch) -> bool:
    """Return whether a pod with its own network starts the ranks: its host name resolves to its address."""
    pod_launches = {name for claim in job.about("workload_launch") for name in texts(claim.value)}
    return launch.id in pod_launches and all(claim.value == Known(False) for claim in job.about("host_network"))


def _backend_arguments(launch: Launch, backends: Sequence[Claim]) -> list[Claim]:
    """Return the backends among the launch's arguments, if the script reads the backend from them."""
    words = launch.arguments
    return [_backend_from_line(words, claim) if isinstance(claim.value, Unresolved) else claim for claim in backends]


def _backend_from_line(words: Sequence[str | None], claim: Claim) -> Claim:
    """Return the value of `args.backend` from `--backend gloo` on the launch line."""
    option = re.search(r"\bargs\.(\w+)", claim.spelling)
    if option is None:
        return claim
    for index, word in enumerate(words):
        name, equals, value = (word or "").partition("=")
        if name.startswith("--") and name[2:].replace("-", "_") == option.group(1):
            argument = value if equals else next(iter(words[index + 1 : index + 2]), None)
            return replace(claim, value=Known(argument.lower())) if argument else claim
    return claim


@functools.cache
def _paddle_variables() -> tuple[SchedulerVariables, ...]:
    names = known_variables()
    return tuple(
        SchedulerVariables("Paddle's launcher", prefix, frozenset(n for n in names if n.startswith(prefix)), {})
        for prefix in ("PADDLE_", "FLAGS_selected_")
    )


@rule(
    "PGR002",
    "scheduler-variable-does-not-exist",
    severity=Severity.WARNING,
    fix="unsafe",
    otherwise="no script reads a scheduler variable",
)
def scheduler_variable_does_not_exist(job: Job) -> Iterator[Verdict]:
    """A script reads a variable with a prefix of Slurm, Open MPI or Paddle, but none of these sets it.

    What it checks: Names with the prefix SLURM_, OMPI_, PADDLE_ or FLAGS_selected_ that a script or batch script reads
    and does not set itself are among those that Slurm, Open MPI or Paddle's launcher sets, or resemble none of them.

    Why it matters: `os.environ[...]` stops with KeyError; with a default, or in a shell, the job continues with a wrong
    number of nodes or ranks.

    Example: `int(os.environ["SLURM_JOB_NUMNODES"])`; the variable is SLURM_JOB_NUM_NODES.

    Fix: Use the name that the finding gives.

    Known limits: A name that resembles none of these may be specific to the site and is not judged.
    """
    for subject, read in subject_claims(job, "variable_read"):
        name = next(iter(texts(read.value)), "")
        families = (*scheduler_variables(), *_paddle_variables())
        family = next((family for family in families if name.startswith(family.prefix)), None)
        if family is None:
            continue
        if name.partition("_HET_GROUP_")[0] in family.names:
            yield passed(subject)
            continue
        # Programs of Paddle have variables of their own that differ in a word.
        similar = closest(name, family.names, 1) if family.prefix == "PADDLE_" else nearest(name, family.names)
        suggestion = family.mistaken.get(name) or similar or None
        if job.about(f"env.{name}"):
            yield passed(subject)
        elif suggestion is None:
            yield unknown(
                subject, f"{name} is not a known variable of {family.of}; it may be specific to the site", at=read
            )
        else:
            yield failed(
                subject,
                f"{quoted(read)}: {family.of} sets no {name}; {suggestion} is probably meant.",
                at=read,
                remedy=f"Read {suggestion}{_meaning(suggestion)}.",
                fix=make_fix(f"read {suggestion}", replace_text(read, name, suggestion), safe=False),
            )


_MEANINGS = {
    "SLURM_JOB_NUM_NODES": "the number of nodes of the job",
    "SLURM_NTASKS": "the total number of tasks",
    "SLURM_PROCID": "the rank of the task",
    "SLURM_LOCALID": "the index of the task on its node",
    "SLURM_NODEID": "the index of the node",
    "SLURM_GPUS_ON_NODE": "the GPUs of this node",
    "SLURM_NTASKS_PER_NODE": "the tasks per node, if --ntasks-per-node is set",
}


def _meaning(name: str) -> str:
    return f" ({_MEANINGS[name]})" if name in _MEANINGS else ""


#: Wrong names for variables of torch's `env://` rendezvous (documentation of torch.distributed,
#: environment variable initialization; torch 2.9).
_MISNOMERS = {
    "MASTER_ADDRESS": "MASTER_ADDR",
    "MASTER_ADRESS": "MASTER_ADDR",
    "MASTER_ADRR": "MASTER_ADDR",
    "MASTER_ADD": "MASTER_ADDR",
    "MASTER_IP": "MASTER_ADDR",
    "MASTER_HOST": "MASTER_ADDR",
    "MASTER_HOSTNAME": "MASTER_ADDR",
    "MASTERADDR": "MASTER_ADDR",
    "MASTERPORT": "MASTER_PORT",
    "MASTER_PROT": "MASTER_PORT",
    "WORLDSIZE": "WORLD_SIZE",
    "WORD_SIZE": "WORLD_SIZE",
    "WORLD_SIZES": "WORLD_SIZE",
    "LOCALRANK": "LOCAL_RANK",
}


@rule(
    "PGR003",
    "rendezvous-variable-misnamed",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no script sets a variable that resembles one of torch's rendezvous",
)
def rendezvous_variable_misnamed(job: Job) -> Iterator[Verdict]:
    """A script sets a variable of torch's rendezvous under a name that torch does not read.

    What it checks: A script that starts a process group sets MASTER_ADDR, MASTER_PORT, WORLD_SIZE and LOCAL_RANK under
    exactly these names.

    Why it matters: torch stops with "environment variable MASTER_ADDR expected, but not set", or the ranks use the
    address in a variable of another program.

    Example: `os.environ["MASTER_ADDRESS"] = "10.0.0.1"` and `init_process_group(init_method="env://")`.

    Fix: Use the name that the finding gives.

    Known limits: If the correct variable is also set, or a launcher sets it, the other is treated as the script's own.
    """
    for misnomer, name in _MISNOMERS.items():
        for subject, variable in subject_claims(job, f"env.{misnomer}"):
            if variable.source != "python" or not job.about("backend"):
                continue
            if job.about(f"env.{name}") or job.about(name.lower()):
                yield passed(subject)
            else:
                yield undecided(subject, (variable,)) or failed(
                    subject,
                    f"{quoted(variable)}: torch does not read {misnomer}; {name} is probably meant, and nothing sets"
                    " it.",
                    at=variable,
                    remedy=f"Write {name}.",
                )


#: The backends of torch.distributed and of the device plugins that register one (torch 2.9).
_BACKENDS = ("nccl", "gloo", "mpi", "ucc", "xccl", "ccl", "hccl", "hcl", "cncl", "eccl", "mccl", "smddp", "fake")
#: Backends of the C++ library that torch 1.0 replaced.
_REMOVED_BACKENDS = ("tcp",)


@rule(
    "PGR006", "process-group-backend-refused", severity=Severity.WARNING, otherwise="no script creates a process group"
)
def process_group_backend_refused(job: Job) -> Iterator[Verdict]:
    """A script creates its process group with a backend that torch does not have.

    What it checks: The backend that a script passes to `init_process_group` is not `tcp`, which torch removed in 1.0,
    and is not a misspelling of a known backend.

    Why it matters: Every rank stops with `ValueError` as soon as the script starts, after the job has waited in the
    queue for all of its nodes.

    Example: `dist.init_process_group("tcp")`, or `dist.init_process_group("ncll")`.

    Fix: `nccl` for GPUs, `gloo` for CPUs.

    Known limits: A backend that a plugin registers under a name that resembles none of torch's is not reported.
    """
    claims = [claim for claim in job.about("backend") if claim.source == "python"]
    for claim in claims:
        if isinstance(claim.value, Unresolved):
            yield unknown(claim.span.path, f"the backend {quoted(claim)} is unknown: {claim.value.why}", at=claim)
            continue
        yield next(
            (_refused_backend_verdict(claim, name) for name in _backend_names(claim) if _replacements(name)),
            passed(claim.span.path),
        )


def _backend_names(claim: Claim) -> list[str]:
    """Return the backends in `nccl` or in `cpu:gloo,cuda:nccl`."""
    return [part.rpartition(":")[2].strip().lower() for text in texts(claim.value) for part in text.split(",")]


def _replacements(name: str) -> tuple[str, ...]:
    """Return the backends to use instead of a backend that torch rejects; empty if torch may accept it."""
    if name in _REMOVED_BACKENDS:
        return ("gloo", "nccl")
    return () if name in _BACKENDS else tuple(similar_names(name, ("nccl", "gloo"), cutoff=0.75))


def _refused_backend_verdict(claim: Claim, name: str) -> Verdict:
    replacements = " or ".join(_replacements(name))
    why = "which torch removed in 1.0" if name in _REMOVED_BACKENDS else "which torch does not have"
    return failed(
        claim.span.path,
        f"{quoted(claim)} requests the backend `{name}`, {why}: every rank stops with ValueError.",
        at=claim,
        remedy=f"Use {replacements}.",
    )


# Variables that choose the network interfaces of NCCL, Gloo and TensorPipe, and settings of NCCL, libfabric and UCX
# that override each other or belong to different networks.


#: NCCL filters by prefix, with `^` and `=`; Gloo and TensorPipe take exact names (torch, ProcessGroupGloo).
_FILTERS = ("NCCL_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME")
_EXACT = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
#: Bridges and veth pairs, which reach only containers and virtual machines of the same node.
_LOCAL_PREFIXES = ("docker", "veth", "virbr", "br-")
#: Longest name Linux gives an interface (IFNAMSIZ - 1).
_MAX_LENGTH = 15


class Filter(NamedTuple):
    """An interface variable that is set for one launch.

    `several`: whether the launch spans several nodes; None if unknown.
    """

    subject: str
    name: str
    claim: Claim
    launch: Launch | None
    several: bool | None
    job: Job

    @property
    def exact(self) -> bool:
        """Return whether the variable matches only whole names."""
        return self.name in _EXACT


def filters(job: Job) -> Iterator[Filter]:
    """Yield each setting of an interface variable once, with a launch on several nodes if one uses it."""
    by_span: dict[tuple[str, int, int], Filter] = {}
    for subject, scope, launch in subjects(job):
        several: bool | None = None
        if launch is not None:
            nodes, _ = nodes_spanned(job, launch)
            several = True if certainly_several(nodes) else False if certainly_one(nodes) else None
        for name in (*_FILTERS, *_EXACT):
            for claim in job.setting(f"env.{name}", scope):
                key = (claim.span.path, claim.span.line, claim.span.column)
                item = Filter(subject, name, claim, launch, several, job)
                if key not in by_span or (several and not by_span[key].several):
                    by_span[key] = item
    yield from by_span.values()


def each_filter(job: Job) -> Iterator[Question[Filter]]:
    """Yield a question about each interface variable."""
    for item in filters(job):
        yield Question(item.subject, (item.claim,), item.launch, of=item)


def each_open_filter(job: Job) -> Iterator[Question[Filter]]:
    """Yield a question about each interface variable that matches name prefixes and may be for several nodes."""
    for question in each_filter(job):
        if not question.of.exact and question.of.several is not False:
            yield question


def names(text: str) -> list[str]:
    """Return the names in a filter, without `^` and `=`."""
    return [part.strip() for part in text.lstrip("^").lstrip("=").split(",") if part.strip()]


@rule(
    "IFN001",
    "interface-cannot-reach-other-nodes",
    severity=Severity.ERROR,
    otherwise="no variable selects an interface",
    each=each_filter,
)
def interface_cannot_reach_other_nodes(question: Question[Filter]) -> Verdict | None:
    """The interface filter for several nodes selects only interfaces inside the node.

    What it checks: For a launch over several nodes, NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME and TP_SOCKET_IFNAME select
    an interface other than loopback and bridges to containers on the same node, and do not list such local interfaces
    together with others.

    Why it matters: Every rank advertises an address that is local to each node. The first collective fails with
    "unhandled system error" or hangs.

    Example: `export NCCL_SOCKET_IFNAME=lo` with `torchrun --nnodes=2`.

    Fix: Name the interface that reaches the other nodes (`ip -br addr` shows them), or unset the variable.

    Known limits: Container bridges are a warning: on some sites, an interface with that name does reach other nodes.
    `preflight check` checks the interfaces of each node.
    """
    item = question.of
    values = [text for text in texts(item.claim.value) if len(text) > 1]
    local_kinds = [_local_interfaces(text) for text in values]
    if item.several is None and any(local_kinds):
        return unknown(question.subject, "the number of nodes is not given", at=item.claim)
    local_names = [name for text in values if not text.startswith("^") for name in names(text) if _is_local(name)]
    severity: Severity | None = Severity.WARNING
    if item.several and values and all(local_kinds):
        what = f"only {local_kinds[0]} and so cannot reach other nodes, but the launch spans several nodes."
        remedy = f"Name the interface that reaches the other nodes in {item.name}, or leave it unset."
        severity = None if all("loopback" in kind for kind in local_kinds) else severity
    elif item.several and local_names and all(any(map(_is_local, names(text))) for text in values):
        what = (
            f"{', '.join(local_names)} as well, which cannot reach other nodes: to exclude interfaces, a list begins"
            " with `^`."
        )
        remedy = f"List only interfaces that reach the other nodes in {item.name}, or begin the list with `^`."
    else:
        return None
    return failed(
        question.subject,
        f"{quoted(item.claim)} selects {what}",
        at=item.claim,
        also=((item.launch, "spans several nodes"),) if item.launch is not None else (),
        remedy=remedy,
        severity=severity,
    )


def _is_local(name: str) -> bool:
    return name == "lo" or name.startswith(_LOCAL_PREFIXES)


def _local_interfaces(text: str) -> str:
    """Return the kind of node-local interfaces that a filter selects; empty if it may also match other interfaces."""
    if text.startswith("^"):
        return ""
    members = names(text)
    if members and all(name == "lo" for name in members):
        return "the loopback interface"
    if members and all(map(_is_local, members)):
        return "interfaces to containers of the same node"
    return ""


@rule(
    "IFN002",
    "interface-filter-malformed",
    severity=Severity.ERROR,
    profile="default",
    fix="unsafe",
    otherwise="no variable selects an interface",
    each=each_filter,
)
def interface_filter_malformed(question: Question[Filter]) -> Verdict | None:
    """An interface variable has a form that its reader cannot parse.

    What it checks: NCCL's filter has `^` or `=` only before the whole list, no spaces inside and no name that is longer
    than Linux allows. Gloo's and TensorPipe's variables take exact names: no `^`, no `=`. An empty value is reported as
    having no effect.

    Why it matters: A name that matches no interface makes Gloo stop ("Unable to find address for") and NCCL report "no
    socket interface found", or the unparsed part is silently ignored.

    Example: `export GLOO_SOCKET_IFNAME=^docker0,lo`, which Gloo reads as two interfaces called `^docker0` and `lo`.

    Fix: For Gloo list the interface names themselves; for NCCL write `^lo,docker`, with one `^` at the start.

    Known limits: The finding is an error only if the variable belongs to the backend that the script names; otherwise
    it is a warning.
    """
    item = question.of
    values = texts(item.claim.value)
    faults = [_filter_fault(item, text) for text in values]
    if faults and all(faults):
        empty = not values[0].strip()
        return failed(
            question.subject,
            f"{quoted(item.claim)}: {faults[0]}.",
            at=item.claim,
            remedy=_filter_remedy(item, empty=empty),
            severity=Severity.INFO if empty else _filter_severity(item),
            fix=_normalize_fix(item, values[0]) if len(values) == 1 else None,
        )
    return None


def _filter_fault(item: Filter, text: str) -> str:
    if not text.strip():
        return f"an empty {item.name} has no effect"
    if item.exact and text.lstrip()[0] in "^=!~":
        return f"{item.name} takes exact interface names, not a filter that begins with `{text.lstrip()[0]}`"
    if text[0] in "!~":
        return f"{item.name} excludes with `^`, not with `{text[0]}`"
    members = text.lstrip("^").lstrip("=")
    if "^" in members or "=" in members:
        sign = "^" if "^" in members else "="
        return f"`{sign}` is only allowed before the whole list; here it is taken as part of a name"
    if any(character.isspace() for character in text):
        return "spaces are taken as part of a name: the separator is a comma without spaces"
    too_long = [name for name in names(text) if len(name) > _MAX_LENGTH]
    if too_long:
        return f"`{too_long[0]}` is longer than {_MAX_LENGTH} characters, the maximum length of an interface name"
    return ""


def _normalize_fix(item: Filter, text: str) -> Fix | None:
    """Return the fix that removes the spaces and puts the excluding sign once at the start."""
    normalized = re.sub(r"\s*,\s*", ",", text.strip())
    if normalized.startswith("^"):
        normalized = normalized.replace(",^", ",")
    if normalized == text or _filter_fault(item, normalized):
        return None
    # Unsafe: it changes which interfaces are selected.
    return make_fix(f"write {item.name}={normalized}", replace_text(item.claim, text, normalized), safe=False)


def _filter_remedy(item: Filter, *, empty: bool) -> str:
    if empty:
        return f"Remove the line, or `unset {item.name}`."
    if item.exact:
        return "List the names of the interfaces that reach the other nodes, separated by commas."
    return "Write prefixes separated by commas, with one `^` at the start to exclude (`^lo,docker`)."


def _filter_severity(item: Filter) -> Severity | None:
    scope = item.launch.scope if item.launch is not None else item.claim.scope
    backends = {text.lower() for claim in item.job.setting("backend", scope) for text in texts(claim.value)}
    backend_of_variable = "gloo" if item.exact else "nccl"
    return None if backends and all(backend_of_variable in backend for backend in backends) else Severity.WARNING


@rule(
    "IFN003",
    "interface-exclusion-keeps-loopback",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    fix="unsafe",
    otherwise="no variable selects NCCL's interfaces on several nodes",
    each=each_open_filter,
)
def interface_exclusion_keeps_loopback(question: Question[Filter]) -> Verdict | None:
    """NCCL's interface variable excludes some interfaces, but not loopback.

    What it checks: A NCCL_SOCKET_IFNAME that begins with `^` also names `lo`, unless the launch certainly runs on one
    node.

    Why it matters: Without the variable, NCCL avoids loopback and Docker's bridges by default. With it, everything that
    is not excluded may be used, and loopback is usually the first interface of a node.

    Example: `export NCCL_SOCKET_IFNAME=^docker0`.

    Fix: `export NCCL_SOCKET_IFNAME=^lo,docker`.

    Known limits: Whether loopback is chosen depends on the order in which the node lists its interfaces. If the number
    of nodes is unknown, the finding is informational.
    """
    item = question.of
    values = texts(item.claim.value)
    if values and all(text.startswith("^") and not _excludes_loopback(text) for text in values):
        excluded = ",".join(("lo", *names(values[0])))
        # If the excluded cards include the one that reaches the other nodes, `^lo,...` leaves no interface.
        cards = [name for name in names(values[0]) if not name.startswith(_LOCAL_PREFIXES)]
        remedy = f"Write {item.name}=^{excluded}."
        if cards:
            remedy = f"Name the interface that reaches the other nodes ({item.name}=NAME). If it is not"
            remedy += f" {' or '.join(cards)}, {item.name}=^{excluded} is enough."
        return failed(
            question.subject,
            f"{quoted(item.claim)} excludes {', '.join(names(values[0]))} but not lo, so NCCL may choose the "
            "loopback interface, which it excludes by default.",
            at=item.claim,
            remedy=remedy,
            fix=make_fix(f"exclude lo in {item.name}", replace_text(item.claim, values[0], f"^{excluded}"), safe=False)
            if len(values) == 1 and not values[0].startswith("^=") and not cards
            else None,
            severity=None if item.several else Severity.INFO,
        )
    return None


def _excludes_loopback(text: str) -> bool:
    exact = text.lstrip("^").startswith("=")
    return any(name == "lo" if exact else "lo".startswith(name) for name in names(text))


_PREFIX = "env."
#: Interfaces that usually carry VLANs, named with a number added: bond0.2093.
_CARRIER = re.compile(r"(?:bond|team)\d+")
_HCA = re.compile(r"((?:mlx|hfi|bnxt_re|irdma|rdma)\w*?_?)(\d{1,9})(?::\d+)?")
#: From this number of nodes on, reproducing a failure costs more than the log of the first one.
_MANY_NODES = 8


@rule(
    "ENV005", "setting-voided-by-another", severity=Severity.WARNING, otherwise="no two related variables are both set"
)
def setting_voided_by_another(job: Job) -> Iterator[Verdict]:
    """One variable disables what another one configures.

    What it checks: No launch has a pair of settings from `data/contradictions.toml`: NCCL_IB_DISABLE=1 with
    NCCL_IB_HCA, NCCL_NET=IB with NCCL_IB_DISABLE=1, NCCL_P2P_DISABLE=1 with NCCL_P2P_LEVEL and others.

    Why it matters: One of them is left over. If it is the switch, training silently runs over a network that is several
    times slower.

    Example: `export NCCL_IB_DISABLE=1` and `export NCCL_IB_HCA=mlx5_0`.

    Fix: Remove the one that is not intended.

    Known limits: Only pairs in the table and variables that the job's files set are compared.
    """
    yield from _pair_verdicts(job, "void")


@rule(
    "ENV006",
    "settings-of-two-providers",
    severity=Severity.WARNING,
    otherwise="no job sets variables of two providers",
)
def settings_of_two_providers(job: Job) -> Iterator[Verdict]:
    """Variables for the network of one cloud provider are set together with those of another.

    What it checks: FI_PROVIDER=efa (AWS) is not set together with Mellanox adapter names, InfiniBand interfaces, or
    files and settings of other clouds; the pairs are in `data/contradictions.toml`.

    Why it matters: A script that was moved to another cluster keeps settings that its new network does not understand.
    NCCL then stops ("Only EFA provider is supported", "no device found") or falls back to TCP.

    Example: `export FI_PROVIDER=efa` and `export NCCL_IB_HCA=mlx5`.

    Fix: Keep only the settings of the cluster that the job runs on.

    Known limits: The files do not show the cluster; a single leftover setting that contradicts no other is not found.
    """
    yield from _pair_verdicts(job, "provider")


def _pair_verdicts(job: Job, kind: str) -> Iterator[Verdict]:
    seen_pairs: set[tuple[str, ...]] = set()
    for subject, scope, launch in subjects(job):
        for row in contradictions(kind):
            for claim in job.setting(f"{_PREFIX}{row.name}", scope):
                for other in _other_settings(job, row, scope):
                    key = (row.name, claim.spelling, other.quantity, other.spelling)
                    if key not in seen_pairs:
                        seen_pairs.add(key)
                        yield _conflict_verdict(subject, row, claim, other, launch)


def _other_settings(job: Job, row: Contradiction, scope: Scope) -> Iterator[Claim]:
    for pattern in row.names:
        if "*" not in pattern:
            yield from job.setting(f"{_PREFIX}{pattern}", scope)
            continue
        for claim in job.environment(scope):
            if fnmatch.fnmatchcase(claim.quantity, f"{_PREFIX}{pattern}"):
                yield claim


def _conflict_verdict(subject: str, row: Contradiction, claim: Claim, other: Claim, launch: Launch | None) -> Verdict:
    if undecided_verdict := undecided(subject, (claim, other), launch):
        return undecided_verdict
    values, other_values = texts(claim.value), texts(other.value)
    if not (values and other_values and all(_matches(row.values, text) for text in values)):
        return passed(subject)
    if not all(_matches(row.others, text) if row.others else text.strip() not in ("", "0") for text in other_values):
        return passed(subject)
    return failed(
        subject,
        f"{quoted(claim)} is set together with {placed(other)}: {row.why}.",
        at=claim,
        also=((other, "set together with it"),),
        remedy=row.remedy.format(other=other.quantity.removeprefix(_PREFIX)),
        severity=None if row.severity == "warning" else Severity.INFO,
    )


def _matches(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern, text.strip(), re.IGNORECASE) is not None


@rule(
    "IFN010",
    "interface-prefix-selects-vlans",
    severity=Severity.INFO,
    fix="unsafe",
    confidence=Confidence.MEDIUM,
    otherwise="no variable selects NCCL's interfaces on several nodes",
    each=each_open_filter,
)
def interface_prefix_selects_vlans(question: Question[Filter]) -> Verdict | None:
    """NCCL_SOCKET_IFNAME selects VLANs because NCCL reads a name as a prefix.

    What it checks: NCCL_SOCKET_IFNAME names a bond or team without `=` before it. NCCL uses every interface whose name
    begins with it, including the VLANs that bonds usually carry: bond0.2093, bond0.2093.1.

    Why it matters: NCCL uses all of these interfaces. If some do not reach other nodes, the first collective hangs
    without a message.

    Example: `export NCCL_SOCKET_IFNAME=bond0` on a node with bond0, bond0.2093 and bond0.2093.1.

    Fix: `export NCCL_SOCKET_IFNAME==bond0`: the second `=` requests exactly this name.

    Known limits: Whether a node has such VLANs is known only on the node, so this is informational. Plain names such as
    eth0 are not reported, because most nodes and all containers have only one such interface.
    """
    item = question.of
    values = texts(item.claim.value)
    carriers = [_vlan_carrier(text) for text in values]
    if carriers and all(carriers):
        name = carriers[0]
        return failed(
            question.subject,
            f"{quoted(item.claim)} is a prefix: in addition to {name}, it selects every VLAN on that interface, such "
            f"as {name}.100.",
            at=item.claim,
            remedy=f"Write {item.name}=={name}, which selects exactly {name}.",
            fix=make_fix(f"select exactly {name}", replace_text(item.claim, values[0], f"={values[0]}"), safe=False)
            if len(values) == 1
            else None,
        )
    return None


def _vlan_carrier(text: str) -> str:
    if text.lstrip().startswith(("^", "=")):
        return ""
    return next((name for name in names(text) if _CARRIER.fullmatch(name)), "")


@rule(
    "IFN011",
    "adapter-prefix-selects-others",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no variable selects NCCL's adapters",
)
def adapter_prefix_selects_others(job: Job) -> Iterator[Verdict]:
    """NCCL_IB_HCA names an adapter whose name is a prefix of another adapter's name.

    What it checks: A list without a preceding `=` does not contain a name such as `mlx5_1`, which also selects mlx5_10
    and mlx5_11, if another name in the list shows that the nodes have adapters with two-digit numbers.

    Why it matters: NCCL uses adapters that were excluded on purpose (storage, management), and nodes use different
    sets.

    Example: `export NCCL_IB_HCA=mlx5_0,mlx5_1,mlx5_12`.

    Fix: `export NCCL_IB_HCA==mlx5_0,mlx5_1,mlx5_12`.

    Known limits: Nothing is reported if no name has a two-digit number; `preflight check` checks the adapters of each
    node.
    """
    for subject, scope, launch in subjects(job):
        for claim in job.setting(f"{_PREFIX}NCCL_IB_HCA", scope):
            verdict = undecided(subject, (claim,), launch)
            conflicts = [_prefix_conflict(text) for text in texts(claim.value)]
            if verdict is None and conflicts and all(name for name, _ in conflicts):
                name, extra = conflicts[0]
                verdict = failed(
                    subject,
                    f"{quoted(claim)} is a list of prefixes: `{name}` also selects {extra}, which is not in the list.",
                    at=claim,
                    remedy="Put `=` before the list to select exactly these adapters.",
                )
            yield verdict or passed(subject)


def _prefix_conflict(text: str) -> tuple[str, str]:
    """Return the name that also selects another adapter, and that adapter; both empty if there is none."""
    if text.lstrip("^").startswith("=") or text.startswith("^"):
        return "", ""
    adapters = [match for part in text.split(",") if (match := _HCA.fullmatch(part.strip()))]
    numbered = {(match[1], int(match[2])) for match in adapters}
    highest = max((number for _, number in numbered), default=0)
    for stem, number in sorted(numbered):
        extra = number * 10
        while 0 < number < 10 and extra < min(number * 10 + 10, highest):
            if (stem, extra) not in numbered:
                return f"{stem}{number}", f"{stem}{extra}"
            extra += 1
    return "", ""


@rule(
    "ENV008",
    "nccl-silent-on-many-nodes",
    severity=Severity.INFO,
    profile="pedantic",
    otherwise="the number of nodes is not given",
)
def nccl_silent_on_many_nodes(job: Job) -> Iterator[Verdict]:
    """A large run would not log why NCCL failed.

    What it checks: A launch over 8 nodes or more sets NCCL_DEBUG.

    Why it matters: Without it, NCCL reports only an error number, and finding the cause requires another run on all
    nodes.

    Example: `srun --nodes=32 torchrun ...` without NCCL_DEBUG.

    Fix: `export NCCL_DEBUG=WARN`, which costs nothing.

    Known limits: A container image or an NCCL configuration file may set it.
    """
    for launch in job.launches:
        value, claims = nodes_spanned(job, launch)
        node_counts = numbers(value)
        if not claims:
            continue
        if job.setting("env.NCCL_DEBUG", launch.scope):
            yield passed(launch.id)
        elif not node_counts:
            yield unknown(launch.id, "the number of nodes is unknown", at=claims[0])
        elif min(node_counts) >= _MANY_NODES:
            yield failed(
                launch.id,
                f"{quoted(claims[0])}: {min(node_counts)} nodes, and NCCL_DEBUG is not set: when NCCL fails, it "
                "reports only an error number.",
                at=launch,
                also=((claims[0], "nodes"),),
                remedy="Put `export NCCL_DEBUG=WARN` before the launch.",
            )
        else:
            yield passed(launch.id)
