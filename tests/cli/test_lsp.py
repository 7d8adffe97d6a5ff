"""Options of `preflight lsp`, and its message without the library."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from preflight.cli.main import run
from preflight.config.resolve import Choices
from preflight.services.language_server import server


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Choices, tuple[str, int] | None]]:
    """What would be served."""
    found: list[tuple[Choices, tuple[str, int] | None]] = []
    monkeypatch.setattr(server, "serve", lambda choices, address: found.append((choices, address)))
    return found


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ([], None),
        (["--stdio"], None),
        (["--tcp", "2087"], ("127.0.0.1", 2087)),
        (["--tcp", ":2087"], ("127.0.0.1", 2087)),
        (["--tcp", "0.0.0.0:2087"], ("0.0.0.0", 2087)),
        (["--tcp", "[::1]:2087"], ("::1", 2087)),
    ],
)
def test_only_a_given_host_is_bound(served: list[Any], given: list[str], address: tuple[str, int] | None) -> None:
    assert run(["lsp", "--no-config", *given]) == 0
    ((choices, bound),) = served
    assert bound == address and not choices.use_file


@pytest.mark.parametrize(
    "given", [["--tcp", "x"], ["--tcp", "localhost:0"], ["--tcp", "1:70000"], ["--tcp", "1", "--stdio"]]
)
def test_an_address_that_cannot_be_used(served: list[Any], given: list[str]) -> None:
    assert run(["lsp", *given]) == 2 and not served


def test_without_the_extra_the_message_names_it(
    served: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "pygls" else find(name, *more))
    assert run(["lsp"]) == 2 and not served
    assert 'pip install "preflight-train[lsp]"' in capsys.readouterr().err
