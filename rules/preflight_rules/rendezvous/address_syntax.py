"""Rendezvous addresses that are no host names."""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.model.findings import Severity
from preflight.model.job import Claim, Job
from preflight.model.job.value import texts
from preflight.plugins.authoring import Verdict, failed, passed, rule
from preflight_rules.helpers import quoted, undecided
from preflight_rules.rendezvous.identities import address_in_force

#: What no host name or address contains, and what it shows.
_FAULTS = (
    (re.compile(r"[^@\s]+@[^@\s]+"), "carries a user name, as for ssh"),
    (re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+"), "is a URL"),
    (re.compile(r"(?:\S+[,;]\s*)+\S+"), "is a list of hosts"),
    (re.compile(r"\S+(?:\s+\S+)+"), "holds several words"),
)


@rule(
    "RDV029",
    "rendezvous-address-is-no-host",
    severity=Severity.ERROR,
    profile="gate",
    otherwise="no launch gives the address of its rendezvous",
    evidence=(
        "huggingface/accelerate#1317",
        (
            "torchrun documentation (master_addr is a host name or address)",
            "https://docs.pytorch.org/docs/stable/elastic/run.html",
        ),
    ),
)
def rendezvous_address_is_no_host(job: Job) -> Iterator[Verdict]:
    """The rendezvous address is written in a way that no host name has.

    What it checks: The address at which the nodes meet (`--master_addr`, `main_process_ip`, MASTER_ADDR where it is in
    force) carries no user name (`user@host`), scheme (`http://`), or second host.

    Why it matters: No resolver knows such a name. Every node waits for the rendezvous, or stops because the name is not
    known.

    Example: `main_process_ip: ubuntu@10.0.0.4`.

    Fix: Give the bare host name or address of the node of rank 0.

    Known limits: Only addresses that are written out are judged.
    """
    for launch in job.launches:
        addresses = address_in_force(job, launch)
        if not addresses:
            continue
        undecided_verdict = undecided(launch.id, addresses, launch)
        faults = [(claim, fault) for claim in addresses if (fault := _fault(claim))]
        if undecided_verdict is not None:
            yield undecided_verdict
        elif len(faults) < len(addresses):
            yield passed(launch.id)
        else:
            claim, fault = faults[0]
            yield failed(
                launch.id,
                f"The address of the rendezvous, {quoted(claim)}, {fault}: no node can resolve it.",
                at=claim,
                also=((launch, "started here"),),
                remedy="Give the bare host name or address of the node of rank 0.",
                waits_at="rendezvous",
            )


def _fault(claim: Claim) -> str:
    """What is wrong with every alternative of an address; empty if nothing is."""
    found = [next((fault for form, fault in _FAULTS if form.fullmatch(text)), "") for text in texts(claim.value)]
    return found[0] if found and all(found) else ""
