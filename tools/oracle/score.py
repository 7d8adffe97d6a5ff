"""Compares lint's results on recorded cases with the frameworks' verdicts.

python -m tools.oracle.score [NAME ...]     the table of docs/oracle.md; with --misses, what is not found
"""

from __future__ import annotations

import argparse
import functools
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from preflight import api
from preflight.model.findings import Finding, Severity
from preflight_rules.settings.tables import all_refusals
from tools.oracle.cases import VERDICTS, Verdict, read

#: Rules, and areas of them, about what comes after a framework has read its settings: ranks that meet, ports, GPUs of
#: the node, and what Trainer's own constructor refuses (HFT008). Its validator says nothing of these, so their errors
#: are not a contradiction.
_BEYOND = ("ACC001", "ACC008", "GPU", "HFT008", "PRT", "RDV")
#: The same for single frameworks: how Paddle's servers and trainers find each other, and wheels without servers
#: (PPS008); what Megatron-LM's layers (PAR010) and its groups of ranks that share experts (PAR028) cannot divide;
#: what the trainer of torchtitan refuses later: batches, sequences and groups of experts that the ranks do not divide;
#: pods that a gang scheduler waits for, and that no role has (KUB006), and pods that the API server refuses where an
#: operator creates them from an object that it accepts (KUB062).
_BEYOND_OF = {
    # What DeepSpeed refuses when the program gives it what the launcher has accepted.
    "accelerate": ("BAT002",),
    "paddle": ("PPS002", "PPS006", "PPS008", "PPS009", "PPS018"),
    "paddle2": ("PPS002", "PPS006", "PPS009", "PPS018"),
    "kubernetes": ("KUB006", "KUB062"),
    "megatron": ("PAR010", "PAR028"),
    # What its workers divide later.
    "verl": ("RLT001",),
    "torchtitan": ("BAT022", "PAR021", "PAR028"),
}


@dataclass(frozen=True, slots=True)
class Answer:
    """Lint's answer to one case. `found`: an error at a location that the refusal is about."""

    verdict: Verdict
    errors: tuple[Finding, ...]
    found: bool

    @property
    def contradictions(self) -> tuple[Finding, ...]:
        """Return the errors that contradict a framework which accepts the case."""
        if self.verdict.refused:
            return ()
        beyond = (*_BEYOND, *_BEYOND_OF.get(self.verdict.case.framework, ()))
        return tuple(
            error
            for error in self.errors
            if not error.id.startswith(beyond) and not any(why in error.message for why in _later())
        )


@functools.cache
def _later() -> tuple[str, ...]:
    """Return the messages of CFG002 about failures after settings were read."""
    return tuple({row.why for row in all_refusals() if row.later})


@dataclass(frozen=True, slots=True)
class Score:
    """The score of a framework, or of its learnt or sealed cases.

    Args:
        refused: cases that the framework refuses because of the files.
        found: refused cases in which lint reports an error at the right location.
        accepted: cases that the framework accepts on a node with GPUs.
        wrong: accepted cases in which lint reports an error that contradicts the framework.
    """

    cases: int
    refused: int
    found: int
    accepted: int
    wrong: int

    @property
    def percent(self) -> float:
        """Return the percentage of refusals that are found."""
        return 100 * self.found / self.refused if self.refused else 100.0


def answers(verdicts: Iterable[Verdict]) -> Iterator[Answer]:
    for verdict in verdicts:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for path, text in verdict.case.files.items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_text(text, encoding="utf-8")
            report = api.lint([folder], root=folder)
        errors = tuple(item for item in report.findings if item.severity is Severity.ERROR)
        places = verdict.places()
        found = any((at.path, line) in places for error in errors for at in error.locations for line in (at.line, 0))
        yield Answer(verdict, errors, found)


def score(given: Iterable[Answer]) -> Score:
    rows = list(given)
    refused = [row for row in rows if row.verdict.refused]
    accepted = [row for row in rows if not row.verdict.refused]
    return Score(
        len(rows),
        len(refused),
        sum(row.found for row in refused),
        len(accepted),
        sum(bool(row.contradictions) for row in accepted),
    )


def names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in VERDICTS.glob("*.jsonl")))


def main() -> None:
    """Print the table, or the missed refusals among the learnt cases."""
    parser = argparse.ArgumentParser(prog="python -m tools.oracle.score", description=__doc__.splitlines()[0])
    parser.add_argument("frameworks", nargs="*", help="default: all")
    parser.add_argument("--misses", action="store_true", help="list missed and wrong findings, only for learnt cases")
    given = parser.parse_args()
    if not given.misses:
        print(
            "| framework | cases | refused | found, learnt | found, sealed | accepted | with an error"
            " | only for the node |"
        )
        print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for name in given.frameworks or names():
        rows = list(answers(row for row in read(VERDICTS / f"{name}.jsonl") if not (given.misses and row.sealed)))
        if given.misses:
            _print_misses(rows)
        else:
            print(_row(rows))


def _row(rows: list[Answer]) -> str:
    learnt, sealed = (score(row for row in rows if row.verdict.sealed is kind) for kind in (False, True))
    every = score(rows)
    return (
        f"| {rows[0].verdict.version} | {every.cases} | {every.refused} |"
        f" {learnt.found} of {learnt.refused} ({learnt.percent:.1f} %) |"
        f" {sealed.found} of {sealed.refused} ({sealed.percent:.1f} %) | {every.accepted} | {every.wrong} |"
        f" {sum(row.verdict.depends_on_node for row in rows)} |"
    )


def _print_misses(rows: list[Answer]) -> None:
    for row in rows:
        verdict = row.verdict
        blamed = [f"{c.key} {c.kind} {c.value!r}" for n, c in enumerate(verdict.case.changes) if n in verdict.blamed]
        if verdict.refused and not row.found:
            print(f"MISSED {verdict.case.id} {verdict.case.form} {verdict.message[:160]} <- {'; '.join(blamed)}")
            for error in row.errors:
                print(f"    but {error.id} at {error.locations[0].path}:{error.locations[0].line}")
        if row.contradictions:
            changes = "; ".join(f"{c.key} {c.kind} {c.value!r}" for c in verdict.case.changes)
            print(f"WRONG {verdict.case.id} {verdict.case.form} <- {changes}")
            for error in row.errors:
                print(f"    {error.id} at {error.locations[0].path}:{error.locations[0].line}: {error.message}")


if __name__ == "__main__":
    main()
