"""Settings of NCCL, libfabric and UCX that override each other or belong to different networks."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Launch, Scope
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
from preflight.plugins.claim_text import placed, quoted
from preflight.plugins.questions import subjects
from preflight_rules.data_tables import Contradiction, contradictions
from preflight_rules.launches import nodes_spanned
from preflight_rules.rendezvous.interfaces import Filter, each_open_filter, names

_PREFIX = "env."
#: Interfaces that usually carry VLANs, named with a number added: bond0.2093.
_CARRIER = re.compile(r"(?:bond|team)\d+")
_HCA = re.compile(r"((?:mlx|hfi|bnxt_re|irdma|rdma)\w*?_?)(\d{1,9})(?::\d+)?")
#: From this number of nodes on, reproducing a failure costs more than the log of the first one.
_MANY_NODES = 8


@rule(
    "ENV005", "setting-voided-by-another", severity=Severity.WARNING, otherwise="no two related settings are both set"
)
def setting_voided_by_another(job: Job) -> Iterator[Verdict]:
    """One variable disables what another one configures.

    What it checks: The pairs of `data/contradictions.toml`, in one launch: NCCL_IB_DISABLE=1 beside NCCL_IB_HCA,
    NCCL_NET=IB beside NCCL_IB_DISABLE=1, NCCL_P2P_DISABLE=1 beside NCCL_P2P_LEVEL and others.

    Why it matters: One of them is left over. If it is the switch, training silently runs over a network that is several
    times slower.

    Example: `export NCCL_IB_DISABLE=1` and `export NCCL_IB_HCA=mlx5_0`.

    Fix: Remove the one that is not intended.

    Known limits: Only pairs of the table, and only what is set in the files of the job.
    """
    yield from _pairs(job, "void")


@rule(
    "ENV006",
    "settings-of-two-providers",
    severity=Severity.WARNING,
    otherwise="no settings of two providers are both set",
)
def settings_of_two_providers(job: Job) -> Iterator[Verdict]:
    """Variables for the network of one cloud provider are set together with those of another.

    What it checks: FI_PROVIDER=efa (AWS) beside Mellanox adapter names, InfiniBand interfaces, or files and settings of
    other clouds; the pairs are in `data/contradictions.toml`.

    Why it matters: A script that was moved to another cluster keeps settings that its new network does not understand.
    NCCL then stops ("Only EFA provider is supported", "no device found") or falls back to TCP.

    Example: `export FI_PROVIDER=efa` and `export NCCL_IB_HCA=mlx5`.

    Fix: Keep only the settings of the cluster the job runs on.

    Known limits: Which cluster it is cannot be read from the files; a single leftover setting that contradicts no other
    is not found.
    """
    yield from _pairs(job, "provider")


def _pairs(job: Job, kind: str) -> Iterator[Verdict]:
    seen: set[tuple[str, ...]] = set()
    for subject, scope, launch in subjects(job):
        for row in contradictions(kind):
            for claim in job.setting(f"{_PREFIX}{row.name}", scope):
                for other in _other_settings(job, row, scope):
                    key = (row.name, claim.spelling, other.quantity, other.spelling)
                    if key not in seen:
                        seen.add(key)
                        yield _judged(subject, row, claim, other, launch)


def _other_settings(job: Job, row: Contradiction, scope: Scope) -> Iterator[Claim]:
    for pattern in row.names:
        if "*" not in pattern:
            yield from job.setting(f"{_PREFIX}{pattern}", scope)
            continue
        for claim in job.environment(scope):
            if fnmatch.fnmatchcase(claim.quantity, f"{_PREFIX}{pattern}"):
                yield claim


def _judged(subject: str, row: Contradiction, claim: Claim, other: Claim, launch: Launch | None) -> Verdict:
    if undecided_verdict := undecided(subject, (claim, other), launch):
        return undecided_verdict
    ours, theirs = texts(claim.value), texts(other.value)
    if not (ours and theirs and all(_matches(row.values, text) for text in ours)):
        return passed(subject)
    if not all(_matches(row.others, text) if row.others else text.strip() not in ("", "0") for text in theirs):
        return passed(subject)
    return failed(
        subject,
        f"{quoted(claim)} is set together with {placed(other)}: {row.why}.",
        at=claim,
        also=((other, "beside it"),),
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
    begins like that, and so do the VLANs that bonds usually carry: bond0.2093, bond0.2093.1.

    Why it matters: NCCL uses all of them. Those that do not reach other nodes make the first collective hang, without a
    message.

    Example: `export NCCL_SOCKET_IFNAME=bond0` on a node with bond0, bond0.2093 and bond0.2093.1.

    Fix: `export NCCL_SOCKET_IFNAME==bond0`: the second `=` requests exactly this name.

    Known limits: Whether a node has such VLANs is known only on the node, so this is informational. Plain names such
    as eth0 are not reported, because most nodes and all containers have one interface of the kind.
    """
    item = question.of
    values = texts(item.claim.value)
    caught = [_carriers(text) for text in values]
    if caught and all(caught):
        name = caught[0]
        return failed(
            question.subject,
            f"{quoted(item.claim)} is a prefix: besides {name} it selects every VLAN on it, such as {name}.100.",
            at=item.claim,
            remedy=f"Write {item.name}=={name}, which selects exactly {name}.",
            fix=make_fix(f"select exactly {name}", replace_text(item.claim, values[0], f"={values[0]}"), safe=False)
            if len(values) == 1
            else None,
        )
    return None


def _carriers(text: str) -> str:
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

    What it checks: A list without `=` before it contains `mlx5_1`, which also selects mlx5_10 and mlx5_11, on nodes
    that have adapters with such numbers: another member of the list has one.

    Why it matters: NCCL uses adapters that were left out on purpose (storage, management), and nodes end up with
    different sets.

    Example: `export NCCL_IB_HCA=mlx5_0,mlx5_1,mlx5_12`.

    Fix: `export NCCL_IB_HCA==mlx5_0,mlx5_1,mlx5_12`.

    Known limits: Nothing is reported where no member has a two-digit number; `preflight check` looks at the adapters of
    each node.
    """
    for subject, scope, launch in subjects(job):
        for claim in job.setting(f"{_PREFIX}NCCL_IB_HCA", scope):
            verdict = undecided(subject, (claim,), launch)
            caught = [_also_selects(text) for text in texts(claim.value)]
            if verdict is None and caught and all(name for name, _ in caught):
                name, more = caught[0]
                verdict = failed(
                    subject,
                    f"{quoted(claim)} is a list of prefixes: `{name}` also selects {more}, which is not in the list.",
                    at=claim,
                    remedy="Put `=` before the list to select exactly these adapters.",
                )
            yield verdict or passed(subject)


def _also_selects(text: str) -> tuple[str, str]:
    """The member that also selects another adapter, and that adapter; both empty if there is none."""
    if text.lstrip("^").startswith("=") or text.startswith("^"):
        return "", ""
    found = [match for part in text.split(",") if (match := _HCA.fullmatch(part.strip()))]
    present = {(match[1], int(match[2])) for match in found}
    highest = max((number for _, number in present), default=0)
    for stem, number in sorted(present):
        more = number * 10
        while 0 < number < 10 and more < min(number * 10 + 10, highest):
            if (stem, more) not in present:
                return f"{stem}{number}", f"{stem}{more}"
            more += 1
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

    Why it matters: Without it NCCL reports an error number, and finding the cause requires another run on all the
    nodes.

    Example: `srun --nodes=32 torchrun ...` without NCCL_DEBUG.

    Fix: `export NCCL_DEBUG=WARN`, which costs nothing.

    Known limits: A container image or an NCCL configuration file may set it.
    """
    for launch in job.launches:
        value, claims = nodes_spanned(job, launch)
        found = numbers(value)
        if not claims:
            continue
        if job.setting("env.NCCL_DEBUG", launch.scope):
            yield passed(launch.id)
        elif not found:
            yield unknown(launch.id, "the number of nodes that it runs on", at=claims[0])
        elif min(found) >= _MANY_NODES:
            yield failed(
                launch.id,
                f"{quoted(claims[0])}: {min(found)} nodes, and NCCL_DEBUG is not set: when NCCL fails it reports"
                " only an error number.",
                at=launch,
                also=((claims[0], "nodes"),),
                remedy="Put `export NCCL_DEBUG=WARN` before the launch.",
            )
        else:
            yield passed(launch.id)
