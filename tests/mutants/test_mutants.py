"""A smoke run finds mutants of its own trainer in every mode, and nothing in a healthy one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.mutants.catalog import MUTANTS
from tests.mutants.patch import MODES
from tests.mutants.score import Driver

pytest.importorskip("torch")
pytestmark = [pytest.mark.thorough, pytest.mark.timeout(400)]

#: Mutants that a smoke run does not find, by name and mode, and why. docs/smoke.md explains them.
SURVIVORS: dict[tuple[str, str], str] = {}
#: A fault that depends on which process is faster may have no effect in a run; another one shows it.
TRIES = 2
PAIRS = [(name, mode) for name, mutant in sorted(MUTANTS.items()) for mode in mutant.modes]


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    """A process that forks trials."""
    found = Driver()
    yield found
    found.close()


@pytest.mark.parametrize("pair", PAIRS, ids="-in-".join)
def test_mutant_is_found(driver: Driver, pair: tuple[str, str]) -> None:
    name, mode = pair
    for _ in range(TRIES):
        result = driver.run(name, mode)
        if result.caught:
            break
    # A process that is killed because others failed does not report what it reached.
    assert result.reached or {"SMK001", "SMK021"} & set(result.caught), "the mutated function did not run in this mode"
    assert not result.details, "the mutant itself fails, which proves nothing"
    assert result.caught or (name, mode) in SURVIVORS, MUTANTS[name].what


@pytest.mark.parametrize("mode", MODES)
def test_healthy_run_is_found_healthy(driver: Driver, mode: str) -> None:
    result = driver.run("", mode)
    assert result.caught == {}, result.details


def test_there_are_mutants_of_every_mode_and_a_third_is_sealed() -> None:
    assert len(MUTANTS) >= 80
    for mode in MODES:
        assert sum(mode in mutant.modes for mutant in MUTANTS.values()) >= 10, mode
    assert all(mutant.what for mutant in MUTANTS.values())
    sealed = [mutant for mutant in MUTANTS.values() if mutant.sealed]
    assert all(mutant.apply.__module__.startswith("tests.mutants.sealed_") for mutant in sealed)
    assert {name for pair in SURVIVORS for name in pair[:1]} <= set(MUTANTS)
