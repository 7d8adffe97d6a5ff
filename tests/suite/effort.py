"""The number of examples that hypothesis draws: few and fixed ones in the gate, many new ones in `make test-all`.

The same option runs the cases of large tables of which the gate runs one of each class.

A gate that draws new examples fails now and then for a reason that the change at hand did not cause; the thorough
profile is where new ones are looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from _pytest.mark.structures import ParameterSet

OPTION = "--thorough"
GATE_EXAMPLES, THOROUGH_EXAMPLES = 25, 500
#: What the numbers of `examples` refer to: hypothesis's own default.
_USUAL = 100

Case = TypeVar("Case")
#: Marks tests that run only with the option.
THOROUGH = pytest.mark.skipif(f"not config.getoption({OPTION!r})", reason=f"runs with {OPTION}; the gate runs others")

settings.register_profile("gate", max_examples=GATE_EXAMPLES, derandomize=True, database=None, deadline=None)
settings.register_profile(
    "thorough", max_examples=THOROUGH_EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption(
        OPTION,
        action="store_true",
        help=f"hypothesis draws {THOROUGH_EXAMPLES} new examples for each test instead of {GATE_EXAMPLES} fixed ones,"
        " and all cases of tables run instead of one of each class",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Load the profile before test modules are imported, whose decorators read it."""
    settings.load_profile("thorough" if config.getoption(OPTION) else "gate")


def examples(usual: int) -> int:
    """The number of examples in this profile for a test that deserves `usual` where others get 100."""
    return max(1, usual * settings().max_examples // _USUAL)


def gate_first(cases: Iterable[Case], in_gate: Callable[[Case], bool]) -> list[ParameterSet]:
    """Parameters for all cases; those outside of the gate are skipped without `--thorough`."""
    return [pytest.param(case, marks=() if in_gate(case) else THOROUGH) for case in cases]
