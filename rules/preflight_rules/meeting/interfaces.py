"""Which network interfaces NCCL, Gloo and TensorPipe are told to use."""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.job import Claim, Job, Launch
from preflight.judgement import Verdict, failed, mend, not_applicable, passed, reworded, rule, unknown
from preflight.lazy.dataclasses import dataclass
from preflight.outcome import Confidence, Fix, Severity
from preflight_rules.reading import (
    certainly_one,
    certainly_several,
    nodes_spanned,
    quoted,
    subjects,
    texts,
    undecided,
)

#: NCCL filters by prefix, with `^` and `=`; Gloo and TensorPipe take exact names (torch, ProcessGroupGloo).
_FILTERS = ("NCCL_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME")
_EXACT = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
#: Bridges and pairs that lead to containers or virtual machines of the same node only.
_LOCAL_PREFIXES = ("docker", "veth", "virbr", "br-")
#: Longest name Linux gives an interface (IFNAMSIZ - 1).
_LONGEST = 15


@dataclass(frozen=True, slots=True)
class Filter:
    """An interface variable in force for one launch. `several`: None when the number of nodes is unknown."""

    subject: str
    name: str
    claim: Claim
    launch: Launch | None
    several: bool | None

    @property
    def exact(self) -> bool:
        """Whether only whole names count."""
        return self.name in _EXACT


def filters(job: Job) -> Iterator[Filter]:
    """Each interface variable once, with the widest launch it is in force for."""
    seen: dict[tuple[str, int, int], Filter] = {}
    for subject, scope, launch in subjects(job):
        several: bool | None = None
        if launch is not None:
            nodes, _ = nodes_spanned(job, launch)
            several = True if certainly_several(nodes) else False if certainly_one(nodes) else None
        for name in (*_FILTERS, *_EXACT):
            for claim in job.setting(f"env.{name}", scope):
                key = (claim.span.path, claim.span.line, claim.span.column)
                found = Filter(subject, name, claim, launch, several)
                if key not in seen or (several and not seen[key].several):
                    seen[key] = found
    yield from seen.values()


def names(text: str) -> list[str]:
    """The members of a filter, without `^` and `=`."""
    return [part.strip() for part in text.lstrip("^").lstrip("=").split(",") if part.strip()]


@rule(
    "IFN001",
    "interface-cannot-reach-other-nodes",
    severity=Severity.ERROR,
    profile="gate",
    evidence=("NVIDIA/nccl#286", "horovod/horovod#310", "PaddlePaddle/Paddle#51096"),
)
def interface_cannot_reach_other_nodes(job: Job) -> Iterator[Verdict]:
    """Ranks on several nodes are told to talk over an interface that ends at the node.

    What it checks:
        For a launch over several nodes, that NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME and TP_SOCKET_IFNAME leave
        more than the loopback interface, and more than bridges to containers of the same node.

    Why it matters:
        Every rank hands out an address that means the node of whoever dials it. The first collective fails with
        "unhandled system error" or hangs.

    Example:
        `export NCCL_SOCKET_IFNAME=lo` with `torchrun --nnodes=2`.

    Fix:
        Name the interface that leads to the other nodes (`ip -br addr` shows them), or leave the variable unset.

    Known limits:
        Container bridges are a warning: on some sites a name like that does lead out. What the interfaces of a
        node are called is a matter for `preflight check`.

    Evidence:
        NVIDIA/nccl#286, horovod/horovod#310, PaddlePaddle/Paddle#51096.
    """
    met = False
    for item in filters(job):
        met = True
        open_end = undecided(item.subject, (item.claim,), item.launch)
        if open_end is not None:
            yield open_end
            continue
        values = [text for text in texts(item.claim.value) if len(text) > 1]
        local = [_reach(text) for text in values]
        if item.several is None and any(local):
            yield unknown(item.subject, "nothing says over how many nodes it runs", at=item.claim)
        elif item.several and values and all(local):
            yield failed(
                item.subject,
                f"{quoted(item.claim)} leaves only {local[0]}: nothing there leads to another node, and the launch"
                " spans several.",
                at=item.claim,
                also=((item.launch, "spans several nodes"),) if item.launch is not None else (),
                remedy=f"Name the interface that leads to the other nodes in {item.name}, or leave it unset.",
                severity=None if all("loopback" in reach for reach in local) else Severity.WARNING,
            )
        else:
            yield passed(item.subject)
    if not met:
        yield not_applicable(job.name, "no variable names an interface")


def _reach(text: str) -> str:
    """Why the interfaces that a filter leaves end at the node; empty when they may lead out."""
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
    fix="unsafe",
    evidence=(
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname",
        "https://docs.pytorch.org/docs/stable/distributed.html#common-environment-variables",
    ),
)
def interface_filter_malformed(job: Job) -> Iterator[Verdict]:
    """An interface variable is written in a way its reader does not understand.

    What it checks:
        NCCL's filter has `^` or `=` only in front of the whole list, no blanks inside and no name longer than
        Linux allows. Gloo's and TensorPipe's variables hold exact names: no `^`, no `=`. An empty value is
        reported as having no effect.

    Why it matters:
        A name that matches no interface makes Gloo stop ("Unable to find address for") and NCCL report "no socket
        interface found", or the part that was not understood is silently ignored.

    Example:
        `export GLOO_SOCKET_IFNAME=^docker0,lo`, which Gloo takes for two interfaces called `^docker0` and `lo`.

    Fix:
        For Gloo list the interface names themselves; for NCCL write `^lo,docker`, with one `^` in front.

    Known limits:
        An error only where the variable belongs to the back end that the script names; a warning otherwise.

    Evidence:
        NCCL user guide, NCCL_SOCKET_IFNAME; torch.distributed documentation, common environment variables.
    """
    met = False
    for item in filters(job):
        met = True
        open_end = undecided(item.subject, (item.claim,), item.launch)
        if open_end is not None:
            yield open_end
            continue
        values = texts(item.claim.value)
        faults = [_fault(item, text) for text in values]
        if faults and all(faults):
            empty = not values[0].strip()
            yield failed(
                item.subject,
                f"{quoted(item.claim)}: {faults[0]}.",
                at=item.claim,
                remedy=_filter_remedy(item, empty=empty),
                severity=Severity.INFO if empty else _filter_severity(job, item),
                fix=_tidied(item, values[0]) if len(values) == 1 else None,
            )
        else:
            yield passed(item.subject)
    if not met:
        yield not_applicable(job.name, "no variable names an interface")


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
        return f"`{sign}` counts only in front of the whole list, so a name would have to begin with it"
    if any(character.isspace() for character in text):
        return "blanks are part of the name: the list is separated by commas alone"
    long = [name for name in names(text) if len(name) > _LONGEST]
    if long:
        return f"`{long[0]}` is longer than the {_LONGEST} characters an interface name can have"
    return ""


def _tidied(item: Filter, text: str) -> Fix | None:
    """The list without blanks, and with the sign that excludes once in front of it."""
    tidy = re.sub(r"\s*,\s*", ",", text.strip())
    if tidy.startswith("^"):
        tidy = tidy.replace(",^", ",")
    if tidy == text or _fault(item, tidy):
        return None
    # Unsafe: other interfaces are chosen from then on.
    return mend(f"write {item.name}={tidy}", reworded(item.claim, text, tidy), safe=False)


def _filter_remedy(item: Filter, *, empty: bool) -> str:
    if empty:
        return f"Leave the line out, or `unset {item.name}`."
    if item.exact:
        return "List the names of the interfaces that lead to the other nodes, separated by commas."
    return "Write prefixes separated by commas, with one `^` in front to exclude (`^lo,docker`)."


def _filter_severity(job: Job, item: Filter) -> Severity | None:
    scope = item.launch.scope if item.launch is not None else item.claim.scope
    backends = {text.lower() for claim in job.setting("backend", scope) for text in texts(claim.value)}
    own = "gloo" if item.exact else "nccl"
    return None if backends and all(own in backend for backend in backends) else Severity.WARNING


@rule(
    "IFN003",
    "interface-exclusion-keeps-loopback",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    fix="unsafe",
    evidence=(
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname",
        "NVIDIA/nccl#913",
    ),
)
def interface_exclusion_keeps_loopback(job: Job) -> Iterator[Verdict]:
    """NCCL is told which interfaces to leave out, and loopback is not among them.

    What it checks:
        A NCCL_SOCKET_IFNAME that begins with `^` names `lo`, where the launch does not certainly stay on one node.

    Why it matters:
        Without the variable NCCL avoids loopback and Docker's bridges by itself. With it, everything that is not
        excluded may be used, and loopback is usually the first interface of a node.

    Example:
        `export NCCL_SOCKET_IFNAME=^docker0`.

    Fix:
        `export NCCL_SOCKET_IFNAME=^lo,docker`.

    Known limits:
        Whether loopback is chosen depends on the order in which the node lists its interfaces. Where the number of
        nodes is unknown it is only information.

    Evidence:
        NCCL user guide, NCCL_SOCKET_IFNAME (setting it bypasses the automatic selection); NVIDIA/nccl#913.
    """
    met = False
    for item in filters(job):
        if item.exact or item.several is False:
            continue
        met = True
        open_end = undecided(item.subject, (item.claim,), item.launch)
        if open_end is not None:
            yield open_end
            continue
        values = texts(item.claim.value)
        if values and all(text.startswith("^") and not _excludes_loopback(text) for text in values):
            wanted = ",".join(("lo", *names(values[0])))
            yield failed(
                item.subject,
                f"{quoted(item.claim)} excludes {', '.join(names(values[0]))} but not lo, so NCCL may choose the"
                " loopback interface, which it would avoid by itself.",
                at=item.claim,
                remedy=f"Write {item.name}=^{wanted}.",
                fix=mend(f"exclude lo in {item.name}", reworded(item.claim, values[0], f"^{wanted}"), safe=False)
                if len(values) == 1 and not values[0].startswith("^=")
                else None,
                severity=None if item.several else Severity.INFO,
            )
        else:
            yield passed(item.subject)
    if not met:
        yield not_applicable(job.name, "NCCL is not told which interfaces to use on several nodes")


def _excludes_loopback(text: str) -> bool:
    exact = text.lstrip("^").startswith("=")
    return any(name == "lo" if exact else "lo".startswith(name) for name in names(text))
