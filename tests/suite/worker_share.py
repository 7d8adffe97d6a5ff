"""Several workers share the tests (`pytest -n 2 --dist loadgroup`): what stays together, and in which order.

A file stays with one worker, so that what its tests share is made once; rows of the fault matrix stay together by tens,
so that no worker has much left when the others are done. The groups of pytest-xdist are not used for it: they are
recognised by names of tests, which newer releases of pytest do not allow to change.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

_ROWS_TOGETHER = 10
_MATRIX = "test_fault_matrix.py"


def groups_of(names: Sequence[str]) -> dict[str, str]:
    """The group of each test, by its name."""
    rows: dict[str, int] = {}
    found: dict[str, str] = {}
    for name in names:
        group = name.partition("::")[0]
        if PurePosixPath(group).name == _MATRIX:
            number = rows[group] = rows.get(group, -1) + 1
            group = f"{group}-{number // _ROWS_TOGETHER}"
        found[name] = group
    return found


# Not called without pytest-xdist.
@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """Hand out whole groups."""
    return _by_groups(config, log) if config.getoption("dist") == "loadgroup" else None


def _by_groups(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    from xdist.scheduler import LoadScopeScheduling

    class ByGroups(LoadScopeScheduling):
        """One group after the other, in the order of the tests."""

        @functools.cached_property
        def _groups(self) -> dict[str, str]:
            assert self.collection is not None
            return groups_of(self.collection)

        def _split_scope(self, nodeid: str) -> str:
            return self._groups[nodeid]

    return ByGroups(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run long tests first; without workers, pytest's own order is kept."""
    if hasattr(config, "workerinput"):
        items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    """Files that wait for clusters and trainers come first, and small ones that fill gaps last."""
    if item.path.name == _MATRIX:
        return 1
    return 0 if item.get_closest_marker("thorough") else 2
