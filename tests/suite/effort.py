"""Two tiers: the gate (`make test`), and everything (`make test-all`, with `--thorough`).

The gate runs what is deterministic: tests in this process, and a thin slice of the real thing. A test marked `thorough`
runs in `make test-all` only. Hypothesis draws few and fixed examples in the gate, many new ones with the option.

A gate that draws new examples fails now and then for a reason that the change at hand did not cause; the thorough
profile is where new ones are looked for.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

OPTION = "--thorough"
GATE_EXAMPLES, THOROUGH_EXAMPLES = 25, 500
#: What the numbers of `examples` refer to: hypothesis's own default.
_USUAL = 100

_WHOLE_MODULE = re.compile(r"^pytestmark = (\[\s*)?pytest\.mark\.thorough\b", re.MULTILINE)
#: Marks tests that run only with the option.
THOROUGH = pytest.mark.thorough

settings.register_profile("gate", max_examples=GATE_EXAMPLES, derandomize=True, database=None, deadline=None)
settings.register_profile(
    "thorough", max_examples=THOROUGH_EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption(
        OPTION,
        action="store_true",
        help=f"run the tests marked thorough as well; hypothesis draws {THOROUGH_EXAMPLES} new examples for each test"
        f" instead of {GATE_EXAMPLES} fixed ones",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Load the profile before test modules are imported, whose decorators read it."""
    config.addinivalue_line("markers", f"thorough: runs with {OPTION} only, in `make test-all`")
    settings.load_profile("thorough" if config.getoption(OPTION) else "gate")


def is_thorough(path: Path) -> bool:
    """Whether a test module is marked as a whole, by its text: it need not be imported then."""
    return bool(_WHOLE_MODULE.search(path.read_text(encoding="utf-8")))


def leave_out_thorough(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect thorough tests without the option."""
    if config.getoption(OPTION):
        return
    left_out = [item for item in items if item.get_closest_marker("thorough")]
    if left_out:
        items[:] = [item for item in items if not item.get_closest_marker("thorough")]
        config.hook.pytest_deselected(items=left_out)


def examples(usual: int) -> int:
    """The number of examples in this profile for a test that deserves `usual` where others get 100."""
    return max(1, usual * settings().max_examples // _USUAL)
