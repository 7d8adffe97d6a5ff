"""Whether the next stage of a run still makes sense: what is judged before the end."""

from __future__ import annotations

from collections.abc import Sequence

from preflight.engine import outcomes_of
from preflight.judgement import Check, Rule
from preflight.outcome import Severity
from preflight.recording import NodeRecord, Recording
from preflight.suppress import sift


def without_nodes(stage: str, nodes: Sequence[NodeRecord], *, only_smoke: bool) -> str:
    """Why a stage makes no sense with the nodes that there are; empty when it does.

    Args:
        only_smoke: nothing but the smoke run is wanted.
    """
    silent = [record for record in nodes if record.problem]
    because = f" ({silent[0].problem})" if silent and only_smoke else ""
    if len(silent) == len(nodes):
        # The first stage is where silent nodes are reported, so it takes place even when there is nobody to ask.
        return "" if stage == "node" and not only_smoke else f"no node could be reached{because}"
    if stage == "smoke" and silent:
        names = ", ".join(record.node.name for record in silent)
        return f"{names} cannot be reached{because}, and the run would not be the job without them"
    return ""


def after_errors(recording: Recording, rules: Sequence[Rule], checks: Sequence[Check]) -> str:
    """Why a smoke run makes no sense after what was found so far; empty when it does."""
    kept = sift(outcomes_of(recording, rules, checks), recording).kept
    errors = sorted({finding.id for finding in kept if finding.severity is Severity.ERROR})
    return f"{', '.join(errors)} would stop it anyway (--keep-going runs it all the same)" if errors else ""
