"""What holds for every test: Ctrl-C reaches the processes that tests start, and no test finds results of another."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.suite import alone, second_try, sharing

# A shell that starts the tests in its background has them ignore SIGINT, and whatever they start would inherit that.
# With a handler in this process, started programs get the default back.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """How the tests are run is told in modules of their own."""
    for plugin in (sharing, alone, second_try):
        config.pluginmanager.register(plugin)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(second_try.SecondTries())


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cache directory for each test, which nothing makes unless something is kept there."""
    base: Path = tmp_path_factory.getbasetemp()
    monkeypatch.setenv("XDG_CACHE_HOME", str(base / "caches" / str(next(_NUMBERS))))
    yield


_NUMBERS = iter(range(1_000_000))
