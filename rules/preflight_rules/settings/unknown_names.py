"""The verdict on a name that a framework does not have, with the nearest one that it has."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from preflight.model.findings import Severity
from preflight.model.job import Claim
from preflight.plugins.authoring import Verdict, failed, unknown
from preflight_rules.helpers import quoted, why_unresolved
from preflight_rules.settings.given import Given

#: Similarity from which an unknown name is treated as a misspelling.
_MISSPELLING_SIMILARITY = 0.85
#: Names of a file that are compared with all known ones: each comparison takes milliseconds.
_MAX_COMPARED = 20


@dataclass(slots=True)
class NearestNames:
    """The known names nearest to unknown ones. Only the first unknown names of each file are looked up.

    Args:
        found: what was found, by file, section and name; empty where nothing is close.
        compared: how many names of each file were looked up.
    """

    found: dict[tuple[str, str, str], str] = field(default_factory=dict)
    compared: dict[str, int] = field(default_factory=dict)

    def nearest(self, claim: Claim, section: str, name: str, known: Callable[[], Iterable[str]]) -> str:
        """The nearest name; empty if none is close, or if the file has too many unknown names.

        Args:
            claim: what the file says.
            section: what has the names, in a message.
            name: the unknown name.
            known: gives the names that exist there.
        """
        path = claim.span.path
        if (path, section, name) not in self.found:
            if self.compared.get(path, 0) >= _MAX_COMPARED:
                return ""
            self.compared[path] = self.compared.get(path, 0) + 1
            close = difflib.get_close_matches(name, known(), n=1, cutoff=_MISSPELLING_SIMILARITY)
            self.found[path, section, name] = close[0] if close else ""
        return self.found[path, section, name]


def unknown_name(
    place: Given,
    claim: Claim,
    *,
    name: str,
    owner: str,
    release: str,
    nearest: str,
    sure: bool,
    unless_sure: Severity | None,
    stopped: str = "every rank stops",
) -> Verdict:
    """The verdict on a name that its framework does not have.

    Args:
        place: the place of the name.
        claim: what the place says.
        name: the name, without its section.
        owner: what does not have it: `TrainingArguments`.
        release: the releases that do not: `trl 1.16.0`, `any release up to 1.16.0`.
        nearest: the name that is meant, empty if none is known.
        sure: whether no other release can have the name.
        unless_sure: the severity where that is possible; None if it is unknown then.
        stopped: what happens at an unknown name: `SkyPilot refuses the task`.
    """
    if claim.condition and (unresolved := why_unresolved((claim,), place.launch)) is not None:
        return unknown(place.subject, f"{quoted(claim)} is unknown: {unresolved[1]}", at=claim)
    if not sure and unless_sure is None:
        reason = f"{quoted(claim)}: {owner} has no {name} in {release}; a newer one may have it"
        return unknown(place.subject, reason, at=claim)
    return failed(
        place.subject,
        f"{quoted(claim)}: {owner} has no {name} in {release}, and {stopped}.",
        at=claim,
        remedy=f"Write {nearest}, or remove it." if nearest else "Remove it.",
        severity=None if sure else unless_sure,
    )
