"""Several workers share the tests (`pytest -n 2 --dist loadgroup`): what stays together, and in which order.

A file stays with one worker, so that what its tests share is made once; rows of the fault matrix stay together by tens,
so that no worker has much left when the others are done.
"""

from __future__ import annotations

from pathlib import Path

import pytest

_ROWS_TOGETHER = 10
_MATRIX = "test_fault_matrix.py"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put each test into its group, and first what takes long; alone, pytest's own order stays."""
    if not hasattr(config, "workerinput"):
        return
    rows: dict[Path, int] = {}
    for item in items:
        group = item.nodeid.partition("::")[0]
        if item.path.name == _MATRIX:
            number = rows[item.path] = rows.get(item.path, -1) + 1
            group = f"{group}-{number // _ROWS_TOGETHER}"
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    """Files that wait for clusters and trainers come first, and last what fills gaps well."""
    if item.path.name == _MATRIX:
        return 1
    return 0 if any(item.get_closest_marker(name) for name in ("slow", "smoke", "cluster")) else 2
