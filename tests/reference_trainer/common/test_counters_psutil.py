"""Interface counters come from psutil if the rank's Python has it, else from /proc."""

from __future__ import annotations

import sys
from collections import namedtuple
from pathlib import Path

import psutil
import pytest

from reference_trainer.common import used_transport

Card = namedtuple("Card", ("bytes_sent", "bytes_recv"))


def test_psutil_counts_where_it_is_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "net_io_counters", lambda pernic, nowrap: {"eth0": Card(3, 5)})
    assert used_transport.count(infiniband="/nonexistent").interfaces == {"eth0": [3, 5]}


@pytest.mark.parametrize("broken", ["missing", "raises"])
def test_without_psutil_the_kernel_is_read(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    if broken == "missing":
        monkeypatch.setitem(sys.modules, "psutil", None)
    else:
        monkeypatch.setattr(psutil, "net_io_counters", lambda **_: 1 / 0)
    found = used_transport.count(infiniband="/nonexistent")
    assert "lo" in found.interfaces and not found.problem


def test_both_name_the_same_interfaces() -> None:
    text = Path(used_transport.INTERFACES).read_text()
    assert set(used_transport._by_psutil() or {}) == set(used_transport.parse_interfaces(text))
