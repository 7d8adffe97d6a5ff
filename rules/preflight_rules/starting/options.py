"""Options of launchers whose value the launcher itself refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.job import Claim, Job, Strength, Unresolved
from preflight.judgement import Verdict, failed, mend, not_applicable, passed, reworded, rule, unknown
from preflight.lazy.patterns import lazy_pattern
from preflight.outcome import Fix, Severity
from preflight_rules.reading import distinct, quoted, why_unresolved

_LAUNCHERS = frozenset(("torchrun", "deepspeed", "paddle"))
_COUNTS = ("nodes", "processes_per_node", "node_rank", "max_restarts", "ps_servers", "ps_workers")
#: How a reader says that a word is no number; the word itself is all that is taken from it.
_NO_NUMBER = lazy_pattern(r"invalid literal for int\(\) with base 10: '(.*)'|'(.*)' is neither a number nor min:max")
#: What stands for a number that the reader of the script is to write in: `<n>`, `{rank}`, `N`, `NUM_NODES`, `xx`.
_BLANK = lazy_pattern(r"|<.*|\{.*\}|\[.*\]|[A-Z][A-Z0-9_]*|[a-z]+(?:_[a-z]+)+|x+|\?+|\.\.\.")


@rule(
    "ARG001",
    "launcher-count-not-a-number",
    severity=Severity.ERROR,
    profile="gate",
    fix="safe",
    evidence=("PaddlePaddle/Paddle#47326", "https://docs.python.org/3/library/argparse.html#type"),
)
def launcher_count_not_a_number(job: Job) -> Iterator[Verdict]:
    """A launcher is given something else where it takes a whole number.

    What it checks:
        The numbers of nodes, processes, servers, trainers and restarts, and the node rank, that a launch line gives
        are whole numbers, or one of the words that the launcher takes instead. A blank to be filled in
        (`<rank>`, `NODE_RANK`) is a warning.

    Why it matters:
        The launcher stops on that node with "invalid int value", while those with a right line wait for it.

    Example:
        `fleetrun --nnodes=2 --trainer_num =1 train.py`, where the blank makes the value "=1".

    Fix:
        Write the number directly behind `=`, or behind a blank.

    Known limits:
        Only options of the launcher itself are judged, not those of the script.

    Evidence:
        PaddlePaddle/Paddle#47326 (`--trainer_num =1` in the worker's line); Python documentation, argparse.
    """
    met = False
    for launch in job.launches:
        for claim in distinct(c for quantity in _COUNTS for c in job.about(quantity, launch.scope)):
            if claim.source not in _LAUNCHERS or claim.strength is not Strength.FLAG or claim.scope.launch != launch.id:
                continue
            met = True
            word = _refused(claim)
            open_end = why_unresolved((claim,), launch)
            if word is None and open_end is not None:
                yield unknown(launch.id, f"{quoted(claim)} is left open: {open_end[1]}", at=claim)
            elif word is None:
                yield passed(launch.id)
            else:
                blank = _BLANK.fullmatch(word) is not None
                yield failed(
                    launch.id,
                    f"{quoted(claim)} gives {word!r} where {launch.launcher} takes a whole number"
                    + (": it seems to be left for the reader to fill in." if blank else "."),
                    at=claim,
                    remedy="Write a whole number"
                    + (", with no blank before or behind the `=`." if word.startswith("=") else "."),
                    severity=Severity.WARNING if blank else None,
                    fix=_closed_up(claim, word),
                )
    if not met:
        yield not_applicable(job.name, "no launch line gives a launcher a number")


def _closed_up(claim: Claim, word: str) -> Fix | None:
    """`--trainer_num =1` without its blank."""
    blank = re.search(rf"\s+{re.escape(word)}$", claim.spelling) if re.fullmatch(r"=\d+", word) else None
    if blank is None:
        return None
    return mend("take the blank before = out", reworded(claim, blank[0], word), safe=True)


def _refused(claim: Claim) -> str | None:
    """The word that is no number; None where the value is one, or not known."""
    if not isinstance(claim.value, Unresolved):
        return None
    found = _NO_NUMBER.fullmatch(claim.value.why)
    return next((group for group in found.groups() if group is not None), None) if found else None
