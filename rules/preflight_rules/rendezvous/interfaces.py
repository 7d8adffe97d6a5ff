"""Variables that choose the network interfaces of NCCL, Gloo and TensorPipe."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from preflight.model.findings import Confidence, Fix, Severity
from preflight.model.job import Claim, Job, Launch
from preflight.model.job.value import texts
from preflight.plugins.authoring import Question, Verdict, failed, make_fix, replace_text, rule, unknown
from preflight.plugins.claim_text import quoted
from preflight.plugins.questions import subjects
from preflight_rules.launches import certainly_one, certainly_several, nodes_spanned

#: NCCL filters by prefix, with `^` and `=`; Gloo and TensorPipe take exact names (torch, ProcessGroupGloo).
_FILTERS = ("NCCL_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME")
_EXACT = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
#: Bridges and veth pairs, which reach only containers and virtual machines of the same node.
_LOCAL_PREFIXES = ("docker", "veth", "virbr", "br-")
#: Longest name Linux gives an interface (IFNAMSIZ - 1).
_MAX_LENGTH = 15


class Filter(NamedTuple):
    """An interface variable in force for one launch. `several`: whether it spans several nodes; None if unknown."""

    subject: str
    name: str
    claim: Claim
    launch: Launch | None
    several: bool | None
    job: Job

    @property
    def exact(self) -> bool:
        """Whether the variable matches whole names only."""
        return self.name in _EXACT


def filters(job: Job) -> Iterator[Filter]:
    """Each interface variable once, with the launch over the most nodes that it applies to."""
    seen: dict[tuple[str, int, int], Filter] = {}
    for subject, scope, launch in subjects(job):
        several: bool | None = None
        if launch is not None:
            nodes, _ = nodes_spanned(job, launch)
            several = True if certainly_several(nodes) else False if certainly_one(nodes) else None
        for name in (*_FILTERS, *_EXACT):
            for claim in job.setting(f"env.{name}", scope):
                key = (claim.span.path, claim.span.line, claim.span.column)
                found = Filter(subject, name, claim, launch, several, job)
                if key not in seen or (several and not seen[key].several):
                    seen[key] = found
    yield from seen.values()


def each_filter(job: Job) -> Iterator[Question[Filter]]:
    """Ask about each interface variable."""
    for item in filters(job):
        yield Question(item.subject, (item.claim,), item.launch, of=item)


def each_open_filter(job: Job) -> Iterator[Question[Filter]]:
    """Ask about each one that matches prefixes of names, and may be for several nodes."""
    for question in each_filter(job):
        if not question.of.exact and question.of.several is not False:
            yield question


def names(text: str) -> list[str]:
    """The members of a filter, without `^` and `=`."""
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

    What it checks: For a launch over several nodes, that NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME and TP_SOCKET_IFNAME
    select at least one interface besides loopback and bridges to containers of the same node.

    Why it matters: Every rank advertises an address that is local to each node. The first collective fails with
    "unhandled system error" or hangs.

    Example: `export NCCL_SOCKET_IFNAME=lo` with `torchrun --nnodes=2`.

    Fix: Name the interface that reaches the other nodes (`ip -br addr` shows them), or leave the variable unset.

    Known limits: Container bridges are a warning: on some sites an interface of that name does reach other nodes. The
    interfaces of a node are checked by `preflight check`.
    """
    item = question.of
    values = [text for text in texts(item.claim.value) if len(text) > 1]
    local = [_local_interfaces(text) for text in values]
    if item.several is None and any(local):
        return unknown(question.subject, "the number of nodes is not given", at=item.claim)
    if item.several and values and all(local):
        return failed(
            question.subject,
            f"{quoted(item.claim)} selects only {local[0]} and so cannot reach other nodes, but the launch"
            " spans several.",
            at=item.claim,
            also=((item.launch, "spans several nodes"),) if item.launch is not None else (),
            remedy=f"Name the interface that reaches the other nodes in {item.name}, or leave it unset.",
            severity=None if all("loopback" in reach for reach in local) else Severity.WARNING,
        )
    return None


def _local_interfaces(text: str) -> str:
    """The node-local interfaces that a filter selects; empty when others may match too."""
    if text.startswith("^"):
        return ""
    found = names(text)
    if found and all(name == "lo" for name in found):
        return "the loopback interface"
    if found and all(name == "lo" or name.startswith(_LOCAL_PREFIXES) for name in found):
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
    """An interface variable has a form that its reader does not understand.

    What it checks: NCCL's filter has `^` or `=` only before the whole list, no spaces inside and no name that is longer
    than Linux allows. Gloo's and TensorPipe's variables take exact names: no `^`, no `=`. An empty value is reported as
    having no effect.

    Why it matters: A name that matches no interface makes Gloo stop ("Unable to find address for") and NCCL report "no
    socket interface found", or the part that was not understood is silently ignored.

    Example: `export GLOO_SOCKET_IFNAME=^docker0,lo`, which Gloo reads as two interfaces called `^docker0` and `lo`.

    Fix: For Gloo list the interface names themselves; for NCCL write `^lo,docker`, with one `^` at the start.

    Known limits: An error only where the variable belongs to the backend that the script names; a warning otherwise.
    """
    item = question.of
    values = texts(item.claim.value)
    faults = [_fault(item, text) for text in values]
    if faults and all(faults):
        empty = not values[0].strip()
        return failed(
            question.subject,
            f"{quoted(item.claim)}: {faults[0]}.",
            at=item.claim,
            remedy=_filter_remedy(item, empty=empty),
            severity=Severity.INFO if empty else _filter_severity(item),
            fix=_normalized(item, values[0]) if len(values) == 1 else None,
        )
    return None


def _fault(item: Filter, text: str) -> str:
    if not text.strip():
        return f"an empty {item.name} has no effect"
    if item.exact and text.lstrip()[0] in "^=!~":
        return f"{item.name} takes exact interface names, not a filter that begins with `{text.lstrip()[0]}`"
    if text[0] in "!~":
        return f"{item.name} excludes with `^`, not with `{text[0]}`"
    rest = text.lstrip("^").lstrip("=")
    if "^" in rest or "=" in rest:
        sign = "^" if "^" in rest else "="
        return f"`{sign}` is only allowed before the whole list; here it is read as part of a name"
    if any(character.isspace() for character in text):
        return "spaces are read as part of a name: the separator is a comma alone"
    long = [name for name in names(text) if len(name) > _MAX_LENGTH]
    if long:
        return f"`{long[0]}` is longer than the {_MAX_LENGTH} characters an interface name can have"
    return ""


def _normalized(item: Filter, text: str) -> Fix | None:
    """The list without spaces, with the excluding sign once at the start."""
    tidy = re.sub(r"\s*,\s*", ",", text.strip())
    if tidy.startswith("^"):
        tidy = tidy.replace(",^", ",")
    if tidy == text or _fault(item, tidy):
        return None
    # Unsafe: it changes which interfaces are selected.
    return make_fix(f"write {item.name}={tidy}", replace_text(item.claim, text, tidy), safe=False)


def _filter_remedy(item: Filter, *, empty: bool) -> str:
    if empty:
        return f"Remove the line, or `unset {item.name}`."
    if item.exact:
        return "List the names of the interfaces that reach the other nodes, separated by commas."
    return "Write prefixes separated by commas, with one `^` at the start to exclude (`^lo,docker`)."


def _filter_severity(item: Filter) -> Severity | None:
    scope = item.launch.scope if item.launch is not None else item.claim.scope
    backends = {text.lower() for claim in item.job.setting("backend", scope) for text in texts(claim.value)}
    own = "gloo" if item.exact else "nccl"
    return None if backends and all(own in backend for backend in backends) else Severity.WARNING


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

    What it checks: A NCCL_SOCKET_IFNAME that begins with `^` names `lo`, where the launch does not certainly stay on
    one node.

    Why it matters: Without the variable NCCL avoids loopback and Docker's bridges by itself. With it, everything that
    is not excluded may be used, and loopback is usually the first interface of a node.

    Example: `export NCCL_SOCKET_IFNAME=^docker0`.

    Fix: `export NCCL_SOCKET_IFNAME=^lo,docker`.

    Known limits: Whether loopback is chosen depends on the order in which the node lists its interfaces. Where the
    number of nodes is unknown the finding is informational.
    """
    item = question.of
    values = texts(item.claim.value)
    if values and all(text.startswith("^") and not _excludes_loopback(text) for text in values):
        wanted = ",".join(("lo", *names(values[0])))
        # Without a card of the node that leads to the others, `^lo,...` leaves nothing.
        cards = [name for name in names(values[0]) if not name.startswith(_LOCAL_PREFIXES)]
        remedy = f"Write {item.name}=^{wanted}."
        if cards:
            remedy = f"Name the interface that leads to the other nodes ({item.name}=NAME). If it is not"
            remedy += f" {' or '.join(cards)}, {item.name}=^{wanted} will do."
        return failed(
            question.subject,
            f"{quoted(item.claim)} excludes {', '.join(names(values[0]))} but not lo, so NCCL may choose"
            " the loopback interface, which it avoids by default.",
            at=item.claim,
            remedy=remedy,
            fix=make_fix(f"exclude lo in {item.name}", replace_text(item.claim, values[0], f"^{wanted}"), safe=False)
            if len(values) == 1 and not values[0].startswith("^=") and not cards
            else None,
            severity=None if item.several else Severity.INFO,
        )
    return None


def _excludes_loopback(text: str) -> bool:
    exact = text.lstrip("^").startswith("=")
    return any(name == "lo" if exact else "lo".startswith(name) for name in names(text))
