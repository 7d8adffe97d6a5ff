"""Launcher options that take a whole number."""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.model.findings import Fix, Severity
from preflight.model.job import Claim, Job, Strength, refused_number
from preflight.plugins.authoring import Verdict, failed, make_fix, passed, replace_text, rule, unknown
from preflight_rules.helpers import distinct, is_placeholder, quoted, why_unresolved

_LAUNCHERS = frozenset(("torchrun", "deepspeed", "paddle"))
_COUNTS = ("nodes", "processes_per_node", "node_rank", "max_restarts", "ps_servers", "ps_workers")


@rule(
    "ARG001",
    "launcher-count-not-a-number",
    severity=Severity.ERROR,
    profile="gate",
    fix="safe",
    otherwise="no launch line passes a number to a launcher",
    evidence=(
        ("`--trainer_num =1` in the worker's line", "PaddlePaddle/Paddle#47326"),
        ("Python documentation, argparse", "https://docs.python.org/3/library/argparse.html#type"),
    ),
)
def launcher_count_not_a_number(job: Job) -> Iterator[Verdict]:
    """A launcher option that takes a whole number is given something else.

    What it checks: The numbers of nodes, processes, servers, trainers and restarts, and the node rank, that a launch
    line gives are whole numbers, or one of the words that the launcher takes instead. A placeholder (`<rank>`,
    `NODE_RANK`) is a warning.

    Why it matters: The launcher stops on that node with "invalid int value", while the nodes with a correct line wait
    for it.

    Example: `fleetrun --nnodes=2 --trainer_num =1 train.py`, where the space makes the value "=1".

    Fix: Write the number directly after `=`, or after a space.

    Known limits: Only options of the launcher itself are judged, not those of the script.
    """
    for launch in job.launches:
        for claim in distinct(c for quantity in _COUNTS for c in job.about(quantity, launch.scope)):
            if claim.source not in _LAUNCHERS or claim.strength is not Strength.FLAG or claim.scope.launch != launch.id:
                continue
            word = refused_number(claim.value)
            undecided_verdict = why_unresolved((claim,), launch)
            if word is None and undecided_verdict is not None:
                yield unknown(launch.id, f"{quoted(claim)} is unknown: {undecided_verdict[1]}", at=claim)
            elif word is None:
                yield passed(launch.id)
            else:
                blank = not word or is_placeholder(word)
                yield failed(
                    launch.id,
                    f"{quoted(claim)} gives {word!r}, but {launch.launcher} expects a whole number"
                    + (": it looks like a placeholder." if blank else "."),
                    at=claim,
                    remedy="Write a whole number"
                    + (", with no space before or after the `=`." if word.startswith("=") else "."),
                    severity=Severity.WARNING if blank else None,
                    fix=_joined_value(claim, word),
                )


def _joined_value(claim: Claim, word: str) -> Fix | None:
    """`--trainer_num =1` without its space."""
    blank = re.search(rf"\s+{re.escape(word)}$", claim.spelling) if re.fullmatch(r"=\d+", word) else None
    if blank is None:
        return None
    return make_fix("remove the space before =", replace_text(claim, blank[0], word), safe=True)
