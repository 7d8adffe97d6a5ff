"""Fixtures for every test: Ctrl-C reaches the processes that tests start, and no test finds cached results of
another.
"""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.suite import alone, cpu_report, effort, unstable, worker_share

# Tests that a shell starts in the background ignore SIGINT, and their child processes would inherit that. With a
# handler in this process, started programs get the default back.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of how the tests are run."""
    for plugin in (cpu_report, effort, unstable):
        plugin.pytest_addoption(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Register the modules that define how tests are run."""
    cpu_report.pytest_configure(config)
    effort.pytest_configure(config)
    unstable.pytest_configure(config)
    for plugin in (worker_share, alone):
        config.pluginmanager.register(plugin)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import modules that only `make test-all` runs, unless they are named."""
    if (
        config.getoption(effort.OPTION)
        or not collection_path.name.startswith("test_")
        or _is_named(collection_path, config)
    ):
        return None
    return effort.is_thorough(collection_path) or None


def _is_named(path: Path, config: pytest.Config) -> bool:
    return any(Path(argument.partition("::")[0]).resolve() == path for argument in config.args)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only `make test-all` runs."""
    effort.leave_out_thorough(config, items)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cache directory for each test, created only if something is stored."""
    base: Path = tmp_path_factory.getbasetemp()
    monkeypatch.setenv("XDG_CACHE_HOME", str(base / "caches" / str(next(_NUMBERS))))
    yield


_NUMBERS = iter(range(1_000_000))


@pytest.fixture
def no_gc_callbacks() -> Iterator[None]:
    """Remove callbacks of the garbage collector: their exceptions are only printed, and hypothesis installs one."""
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks[:] = callbacks
