"""The page over the history as a client sees it: content, filters, logins, headers, and databases in every state."""

from __future__ import annotations

import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from preflight.commands.history.database import HistoryUnavailable, open_database, open_read_only
from preflight.commands.history.past import add_run, load_past
from preflight.services.access import COOKIE
from preflight.services.fleet_page import application
from tests.commands.history.fleet import Fleet
from tests.services.fleet_page.big_fleet import build
from tests.services.fleet_page.running import TOKEN, Served, fetched, served, serving, small_history

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(small_history(tmp_path_factory.mktemp("fleet"))) as found:
        yield found


def cells(text: str) -> dict[str, str]:
    """The class of each node of the grid by what its title says."""
    return {name: style for style, name in re.findall(r'class="cell (\w+)" href="/node/([^"?]+)', text)}


# --- what is shown ---


def test_the_fleet_is_shown_as_the_newest_run_found_it(fleet: Served) -> None:
    answer = fleet.ask("/")
    assert answer.status == 200
    found = cells(answer.text)
    assert len(found) == 24 and found["node0008"] == "bad"
    assert "7 of 8 GPUs answer: GPU 5 fell off the bus &lt;b&gt;&amp;amp;&lt;/b&gt;" in answer.text
    assert "<td>kernel</td>" in answer.text and "6.8.0-31" in answer.text
    assert answer.text.count("/?run=") == 12 or answer.text.count("run=") >= 12


def test_an_earlier_run_is_shown_as_it_was(fleet: Served) -> None:
    assert cells(fleet.ask("/?run=1").text)["node0008"] == "ok"
    assert fleet.ask("/?run=999").status == 404


def test_filters_choose_nodes(fleet: Served) -> None:
    failing = cells(fleet.ask("/?state=failing").text)
    assert failing and set(failing.values()) == {"bad"}
    assert list(cells(fleet.ask(f"/?hosts={quote('node[0001-0004]')}").text)) == [f"node000{n}" for n in range(1, 5)]
    assert "node0008" in cells(fleet.ask("/?rule=gpu001").text)
    assert cells(fleet.ask("/?rule=NOD999").text) == {}
    assert "does not know other9" in fleet.ask("/?hosts=other9").text
    assert "GPU001" not in fleet.ask("/?hosts=node0001").text


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("host=node1", "did you mean &#39;hosts&#39;?"),
        ("days=0", "expected a number from 1 to 3,660"),
        ("days=9999999999999", "expected a number"),
        ("state=dead", "expected one of passing, failing"),
        ("hosts=node[1-99999999]", "hosts: "),
        ("hosts=%3Cscript%3E", "&lt;script&gt;"),
        ("days=1&days=2", "twice"),
        ("page=x", "expected a number"),
    ],
)
def test_a_wrong_filter_is_answered_with_its_reason(fleet: Served, query: str, words: str) -> None:
    answer = fleet.ask(f"/?{query}")
    assert answer.status == 400 and words in answer.text


def test_a_node_shows_its_runs_measurements_and_changes(fleet: Served) -> None:
    text = fleet.ask("/node/node0010").text
    assert "Throughput over its links" in text and re.search(r"\d Gbit/s", text)
    assert "5.15.0-105" in text and "6.8.0-31" in text
    assert 'class="of-peers"' in text
    broken = fleet.ask("/node/node0008").text
    assert "GPU001" in broken and "Failing" in broken
    assert fleet.ask("/node/absent").status == 404
    assert fleet.ask("/node/..%2f..%2fetc%2fpasswd").status == 404


def test_the_worst_link_comes_first(fleet: Served) -> None:
    text = fleet.ask("/links?quantity=link_bandwidth").text
    first = re.search(r'<th scope="row"><a href="/node/(\w+)[^>]*>\w+</a> → <a href="/node/(\w+)', text)
    assert first is not None and first.groups() == ("node0005", "node0006")
    assert "worse: " in text
    assert fleet.ask("/links?quantity=nothing").status == 404
    assert "No link of these nodes" in fleet.ask("/links?hosts=other").text


def test_long_lists_have_pages(fleet: Served) -> None:
    text = fleet.ask("/links").text
    assert "Page 1 of" in text and "/links?page=2" in text
    second = fleet.ask("/links?page=2").text
    assert "Previous" in second and "node0005</a> → <a" not in second


def test_stories_are_those_of_the_command(tmp_path: Path) -> None:
    """The pages read what the writer of preflight wrote."""
    address = f"sqlite:///{tmp_path}/h.db"
    database = open_database(address)
    for report in Fleet(12, 14).reports():
        add_run(database, report)
    past = load_past(database)
    database.close()
    with served(address) as page:
        found = cells(page.ask("/").text)
        expected = {"passing": "ok", "failing": "bad", "unknown": "unknown", None: "nothing"}
        assert found == {node: expected[states[-1]] for node, states in past.states.items()}
        assert page.ask("/stories").status == 200
        assert page.ask("/node/node001").status == 200


# --- who may see it ---


def test_without_the_token_nothing_is_shown(tmp_path: Path) -> None:
    with served(small_history(tmp_path, nights=2), token=TOKEN) as page:
        for path in ("/", "/node/node0001", "/links", "/stories"):
            answer = page.ask(path)
            assert answer.status == 303 and answer.headers["location"].startswith("/login?next=%2F")
            assert "node0001" not in answer.text
        assert page.ask("/", Cookie=f"{COOKIE}=1.x").status == 303
        assert page.ask("/", Cookie=f"{COOKIE}=99999999999.").status == 303
        assert page.ask("/", Authorization=f"Bearer {TOKEN}x").status == 303
        assert page.ask("/", Authorization=f"Bearer {TOKEN}").status == 200
        assert page.ask("/health").text == "ok\n"
        for path in ("/nothing", "/login", "/static/x"):
            assert "history.db" not in page.ask(path).text
        wrong = page.ask("/login", method="POST", body="token=wrong")
        assert wrong.status == 403 and "set-cookie" not in wrong.headers
        right = page.ask("/login", method="POST", body=f"token={TOKEN}&next=%2Flinks")
        cookie = right.headers["set-cookie"]
        assert right.status == 303 and right.headers["location"] == "/links"
        assert "HttpOnly" in cookie and "SameSite=strict" in cookie and TOKEN not in cookie
        session = cookie.partition(";")[0]
        shown = page.ask("/", Cookie=session)
        assert shown.status == 200 and TOKEN not in shown.text
        for target in ("//evil.example", "https://evil.example", "/\\evil.example", "x"):
            left = page.ask("/login", method="POST", body=f"token={TOKEN}&next={quote(target, safe='')}")
            assert left.headers["location"] == "/", target
        assert page.ask("/login", method="POST", body=f"token={'x' * 100_000}").status == 400


def test_a_wrong_token_in_a_header_is_delayed_and_logged_as_in_the_form(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    guess = {"Authorization": "Bearer another-token-of-a-guess"}
    with served(small_history(tmp_path, nights=2), token=TOKEN) as page:
        session = page.ask("/login", method="POST", body=f"token={TOKEN}").headers["set-cookie"].partition(";")[0]
        # Every page shows by its links whether a token is right.
        for path in ("/", "/nothing"):
            caplog.clear()
            started = time.monotonic()
            assert page.ask(path, **guess).status in (303, 404)
            assert time.monotonic() - started >= 1
            assert "wrong token from 127.0.0.1" in caplog.text and "a-guess" not in caplog.text
        caplog.clear()
        monkeypatch.setattr(application, "_WRONG_AT_ONCE", 0)
        assert page.ask("/", **guess).status == 429
        assert page.ask("/", **guess, Cookie=session).status == 200
        assert page.ask("/", Authorization=f"bearer {TOKEN}").status == 200
        assert page.ask("/", Authorization="Basic abc").status == 303
        assert not caplog.text


def test_without_a_token_only_names_of_this_machine_are_answered(fleet: Served) -> None:
    assert fleet.ask("/", Host="attacker.example").status == 421
    told = fleet.ask("/", Host="attacker.example").text
    assert "node0001" not in told and "history.db" not in told
    for host in ("localhost:1", "127.0.0.1", "[::1]:80"):
        assert fleet.ask("/health", Host=host).status == 200


@pytest.mark.parametrize("path", ["/", "/node/absent", "/static/report.css", "/nothing", "/?days=x", "/login"])
def test_every_answer_forbids_scripts_and_other_hosts(fleet: Served, path: str) -> None:
    headers = fleet.ask(path).headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "script" not in headers["content-security-policy"] and "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"
    assert "server" not in headers
    if "/static" not in path:
        assert headers["cache-control"] == "no-store"
        assert " style=" not in fleet.ask(path).text and "<script" not in fleet.ask(path).text


def test_nothing_can_be_sent(fleet: Served) -> None:
    for method in ("POST", "PUT", "DELETE"):
        assert fleet.ask("/", method=method).status == 405


# --- every state of a database ---


def test_a_database_without_runs(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    open_database(f"sqlite:///{tmp_path}/new.db").close()
    for name in ("empty.db", "new.db"):
        with served(f"sqlite:///{tmp_path}/{name}") as page:
            answer = page.ask("/")
            assert answer.status == 200 and "No runs yet" in answer.text, name
    assert (tmp_path / "empty.db").stat().st_size == 0, "nothing was written"


def test_a_database_that_goes_comes_back_or_changes(tmp_path: Path) -> None:
    address = small_history(tmp_path, nights=2)
    file = tmp_path / "history.db"
    with served(address) as page:
        file.rename(tmp_path / "away.db")
        gone = page.ask("/")
        assert gone.status == 503 and "no such file" in gone.text and gone.headers["retry-after"] == "30"
        assert page.ask("/health").status == 503
        (tmp_path / "away.db").rename(file)
        assert page.ask("/").status == 200
        for revision, words in (("0000", "other tables"), ("9999", "newer preflight")):
            with sqlite3.connect(file) as connection:
                connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))
            connection.close()
            answer = page.ask("/")
            assert answer.status == 503 and ("newer preflight" in answer.text or words in answer.text)
        file.write_text("this is not a database, but a text of some length" * 100)
        assert "cannot be read" in page.ask("/").text


def test_an_older_database_is_not_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from preflight.commands.history import database as module

    address = small_history(tmp_path, nights=1)
    monkeypatch.setattr(module, "_newest_revision", lambda: "0002")
    found = open_read_only(address)
    with (
        pytest.raises(HistoryUnavailable, match="written by an older preflight") as raised,
        found.reading(10),
    ):
        pass
    assert raised.value.kind == "older" and "run once: preflight history" in str(raised.value)


def test_any_name_of_a_file_can_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "a b#c?d%20&mode=rw"
    folder.mkdir()
    address = f"sqlite:///{quote(str(folder))}/history.db"
    build(address, 3, 1)
    with served(address) as page:
        assert page.ask("/").status == 200


def test_reading_cannot_write(address: str) -> None:
    from sqlalchemy import text
    from sqlalchemy.exc import SQLAlchemyError

    build(address, 4, 2)
    database = open_read_only(address)
    with pytest.raises(HistoryUnavailable), database.reading(10) as connection:
        assert connection is not None
        try:
            connection.execute(text("DELETE FROM runs"))
        except SQLAlchemyError as error:
            assert "read" in str(error).lower()
            raise
    with served(address) as page:
        assert page.ask("/").status == 200 and page.ask("/node/node0001").status == 200
        assert page.ask("/links").status == 200 and page.ask("/stories").status == 200
    database.close()


def test_pages_while_runs_are_added(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/h.db"
    reports = list(Fleet(6, 6).reports())
    database = open_database(address)
    add_run(database, reports[0])
    done = threading.Event()

    def write() -> None:
        for report in reports[1:]:
            add_run(database, report)
        done.set()

    with served(address) as page:
        writer = threading.Thread(target=write)
        writer.start()
        statuses = {page.ask("/").status for _ in range(8)}
        writer.join(60)
        assert done.is_set() and statuses == {200}
        assert len(re.findall(r'href="/\?run=', page.ask("/").text)) == 6
    database.close()


def test_a_slow_page_ends_at_its_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from preflight.services.fleet_page import application

    address = small_history(tmp_path, nights=1)
    held = threading.Event()
    monkeypatch.setattr(application, "read_past", lambda *_: held.wait(30))
    with served(address, deadline_s=0.5) as page:
        try:
            answer = page.ask("/")
            assert answer.status == 503 and "longer than 0.5 s" in answer.text
            assert "content-security-policy" in answer.headers
        finally:
            held.set()


def test_the_database_ends_a_slow_query(tmp_path: Path) -> None:
    from sqlalchemy import text

    database = open_read_only(small_history(tmp_path, nights=1))
    endless = text("WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n")
    with pytest.raises(HistoryUnavailable, match="interrupted"), database.reading(0.3) as connection:
        assert connection is not None
        connection.execute(endless).all()


# `preflight serve` as its users run it.


PROGRAM = str(Path(sys.executable).with_name("preflight"))


def refused(*arguments: str, cwd: Path) -> str:
    """What a command says that does not start."""
    done = subprocess.run(
        [PROGRAM, "serve", "--listen", "127.0.0.1:0", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    return done.stderr


def test_it_serves_until_it_is_stopped_and_logs_no_token(tmp_path: Path) -> None:
    small_history(tmp_path, nights=2)
    environment = {"PREFLIGHT_SERVE_TOKEN": TOKEN, "PREFLIGHT_HISTORY": "sqlite:///history.db"}
    before = (tmp_path / "history.db").read_bytes()
    with serving(cwd=tmp_path, environment=environment) as (url, process):
        assert "node0008" in fetched(url, TOKEN)
        assert "node0008" not in fetched(url, "another-token-0123456789")
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=60)[1]
    assert process.returncode in (0, 143, -signal.SIGTERM), said
    assert TOKEN not in said and "Traceback" not in said
    assert (tmp_path / "history.db").read_bytes() == before


def test_what_cannot_be_served_is_said_at_once(tmp_path: Path) -> None:
    assert "no history is given" in refused(cwd=tmp_path)
    assert "no such file" in refused("--history", "sqlite:///absent.db", cwd=tmp_path)
    (tmp_path / "text.db").write_text("not a database" * 100)
    assert "cannot be read" in refused("--history", "sqlite:///text.db", cwd=tmp_path)
