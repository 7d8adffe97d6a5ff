"""Decides whether the next stage of a run still makes sense, before the final verdict."""

from __future__ import annotations

from collections.abc import Sequence

from preflight.engine.evaluate import outcomes_of
from preflight.engine.suppress import apply_suppressions
from preflight.model.findings import Severity
from preflight.model.recording import NodeRecord, Recording
from preflight.plugins.authoring import Check, Rule


def without_nodes(stage: str, nodes: Sequence[NodeRecord], *, only_smoke: bool) -> str:
    """Why a stage makes no sense with the available nodes; empty if it does.

    Args:
        only_smoke: whether only the smoke run is wanted.
    """
    silent = [record for record in nodes if record.problem]
    because = f" ({silent[0].problem})" if silent and only_smoke else ""
    if len(silent) == len(nodes):
        # The first stage reports silent nodes, so it runs even without any nodes.
        return "" if stage == "node" and not only_smoke else f"no node could be reached{because}"
    if stage == "smoke" and silent:
        names = ", ".join(record.node.name for record in silent)
        return f"{names} cannot be reached{because}, and the smoke run needs all nodes of the job"
    return ""


def after_errors(recording: Recording, rules: Sequence[Rule], checks: Sequence[Check]) -> str:
    """Why a smoke run makes no sense after the errors so far; empty if it does."""
    kept = apply_suppressions(outcomes_of(recording, rules, checks), recording).kept
    errors = sorted({finding.id for finding in kept if finding.severity is Severity.ERROR})
    return f"{', '.join(errors)} would stop it anyway (--keep-going runs it regardless)" if errors else ""
