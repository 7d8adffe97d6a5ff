"""The plan of a generated job names exactly the processes that the real launcher starts, with their settings."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.agreement.comparison import Places, places
from tests.agreement.jobs import LAUNCHERS, generated_job
from tests.agreement.trial import run_trial
from tests.ports import free_ports

#: Jobs of each launcher; `python -m tests.agreement` runs more.
JOBS = 6
CASES = [(name, seed) for name in LAUNCHERS for seed in range(JOBS)]


@pytest.fixture(scope="module")
def here() -> Iterator[Places]:
    """This machine, and virtual nodes that are started for the first job that needs them."""
    with places() as found:
        yield found


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)).replace(" ", "-"))
def test_the_plan_matches_the_launcher(case: tuple[str, int], here: Places) -> None:
    name, seed = case
    launcher = LAUNCHERS[name]
    reason = here.missing(launcher)
    if reason:
        pytest.skip(reason)
    trial = run_trial(generated_job(launcher, seed, free_ports), here)
    assert trial.comparison.differences == (), trial.shown
    assert trial.comparison.processes, trial.shown
