"""Tokens, sessions, and addresses that only this machine reaches."""

from __future__ import annotations

from pathlib import Path

import pytest

from preflight._util.usage_error import UsageError
from preflight.services.access import SESSION_S, Access, is_loopback, is_own_name, token_of
from preflight.services.fleet_page.application import listening, serve
from preflight.services.fleet_page.history_queries import Filters, filters_of
from tests.services.fleet_page.running import TOKEN


def test_a_session_ends_and_is_of_one_process() -> None:
    now = [1000.0]
    access = Access(TOKEN, clock=lambda: now[0])
    session = access.new_session()
    assert access.is_session(session)
    assert not Access(TOKEN, clock=lambda: now[0]).is_session(session)
    until, _, signature = session.partition(".")
    assert not access.is_session(f"{int(until) + 1}.{signature}")
    now[0] += SESSION_S
    assert not access.is_session(session)
    for wrong in ("", ".", "x.y", "\udcff.\udcff"):
        assert not access.is_session(wrong)


def test_an_empty_token_opens_nothing() -> None:
    assert not Access("").is_token("")
    assert Access("").allows(cookie="", authorization="")
    assert not Access(TOKEN).allows(cookie="", authorization="Bearer ")


def test_a_token_comes_from_a_file_or_a_variable(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    assert token_of(file, {"PREFLIGHT_SERVE_TOKEN": "x" * 20}) == TOKEN
    assert token_of(None, {"PREFLIGHT_SERVE_TOKEN": TOKEN}) == TOKEN
    assert token_of(None, {}) == ""
    file.chmod(0o604)
    with pytest.raises(UsageError, match="chmod 600"):
        token_of(file)
    file.chmod(0o600)
    file.write_text("short")
    with pytest.raises(UsageError, match="found 5") as raised:
        token_of(file)
    assert "short" not in str(raised.value).replace(str(file), "")
    with pytest.raises(UsageError, match="cannot be read"):
        token_of(tmp_path / "absent")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_addresses(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "127.0.0.1.example.org", ""])
def test_other_addresses_need_a_token(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(UsageError, match="--token-file"):
        serve("sqlite:///h.db", listening(f"{host or '0.0.0.0'}:0"), "", deadline_s=1, started=lambda _: None)


def test_own_names() -> None:
    assert is_own_name("[::1]:8440") and is_own_name("LOCALHOST:1".lower()) and is_own_name("127.0.0.1:8440")
    assert not is_own_name("") and not is_own_name("example.org:8440") and not is_own_name("[::]")


def test_where_to_listen() -> None:
    assert listening("8440").url == "http://127.0.0.1:8440/"
    assert listening("[::1]:8440").url == "http://[::1]:8440/"
    for wrong in ("host", "host:", "host:99999", ":x"):
        with pytest.raises(UsageError, match="HOST:PORT"):
            listening(wrong)


def test_an_address_can_be_shared() -> None:
    chosen = Filters(hosts="node[1-4]", state="failing", days=30, run=7, page=3)
    query = chosen.query()
    assert "page=1" in chosen.query(days=1) or "page" not in chosen.query(days=1)
    from urllib.parse import parse_qsl

    assert filters_of(parse_qsl(query[1:])) == Filters(hosts="node[1-4]", state="failing", days=30, run=7)
    assert Filters().query() == ""
