"""How the oracle draws cases, and blames changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tools.oracle import frameworks
from tools.oracle.cases import Change, Verdict, read, write
from tools.oracle.mutation import apply, mutants


@pytest.mark.parametrize("name", ["accelerate", "deepspeed", "torchrun", "transformers"])
def test_the_same_seed_draws_the_same_cases(name: str) -> None:
    framework = frameworks.find(name)
    first, second = ([case.id for case in framework.cases(40, 7)] for _ in range(2))
    assert first == second
    assert len(set(first)) == len(first)
    assert [case.id for case in framework.cases(40, 8)] != first


@pytest.mark.parametrize("name", ["accelerate", "deepspeed", "torchrun", "transformers"])
def test_a_change_is_located_on_its_line(name: str) -> None:
    for case in frameworks.find(name).cases(60, 3):
        for change in case.changes:
            if change.line and change.kind != "removed":
                line = case.files[change.file].splitlines()[change.line - 1]
                assert change.key.rpartition(".")[2] in line or change.value is False or change.value is None


def test_each_change_can_be_tried_alone() -> None:
    framework = frameworks.find("deepspeed")
    case = next(case for case in framework.cases(60, 3) if len(case.changes) == 2)
    alone = [next(framework.with_changes(case, (change,))) for change in case.changes]
    assert [len(part.changes) for part in alone] == [1, 1]
    assert len({case.id, *(part.id for part in alone)}) == 3


def test_changes_do_not_modify_the_seed() -> None:
    seed = {"a": {"b": 1}, "c": 2}
    drawn = list(mutants(seed, {"a.d": (1,)}, number=20, random_seed=1, keep=frozenset({"c"})))
    assert drawn
    assert seed == {"a": {"b": 1}, "c": 2}
    assert all(settings["c"] == 2 for settings, _ in drawn)


def test_a_change_makes_missing_sections() -> None:
    settings: dict[str, object] = {}
    apply(settings, Change("x.y", "value", 3))
    assert settings == {"x": {"y": 3}}


def test_verdicts_survive_a_round_trip(tmp_path: Path) -> None:
    case = next(case for case in frameworks.find("deepspeed").cases(30, 1) if case.changes)
    verdict = Verdict(case, True, "no", "deepspeed 0.19.8", "2026-11-24", blamed=(0,))
    write(tmp_path / "x.jsonl", [verdict, replace(verdict, refused=False)])
    found = list(read(tmp_path / "x.jsonl"))
    assert found[0].case.id == case.id
    assert found[0].places() == verdict.places()
