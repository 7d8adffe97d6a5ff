"""The comment on a pull request: what it says, its size, and the requests that carry its token."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import pytest

from preflight.commands.comment import (
    ChangeReport,
    GitHub,
    GitLab,
    JobChange,
    PlatformError,
    RestClient,
    changed_lines,
    comment,
    key_of,
)
from preflight.commands.plan.plan_pages import Change
from preflight.plugins.authoring import failed
from tests.builders import job, judged, make_recording, make_rule, span
from tests.fuzz.comments import check_comment
from tests.reporters.full_report import everything

KEY = "0123456789ab"


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("", "", set()),
        ("abc", "abc", set()),
        ("abc", "axc", {2}),
        ("abc", "abxc", {3}),
        ("abc", "ac", set()),
        ("", "ab", {1, 2}),
        ("abcdef", "xbcdey", {1, 6}),
    ],
)
def test_changed_lines(old: str, new: str, changed: set[int]) -> None:
    assert changed_lines(old, new) == changed


def test_large_differences_are_not_compared_line_by_line() -> None:
    old = [f"a{number}" for number in range(50_000)]
    new = ["same", *(f"b{number}" for number in range(50_000)), "same"]
    assert changed_lines(["same", *old, "same"], new) == set(range(2, 50_002))


def test_fixed_findings_are_counted_once() -> None:
    report = everything()
    first = comment(ChangeReport(report), KEY)
    assert "2 new findings" in first.body and first.says_something
    clean = replace(report, findings=(), coverage=replace(report.coverage, unknown_outcomes=()))
    second = comment(ChangeReport(clean), KEY, before=first.body)
    assert "2 findings that this comment listed before are fixed" in second.body
    assert "are fixed" not in comment(ChangeReport(clean), KEY, before=second.body).body
    assert "are fixed" not in comment(ChangeReport(clean), KEY, before=first.body.replace("<!--", "<!- -")).body


def test_what_was_not_judged_is_said() -> None:
    body = comment(ChangeReport(replace(everything(), findings=())), KEY).body
    assert "not everything was judged" in body and "<h4>Not judged</h4>" in body


def test_what_does_not_fit_is_counted_and_the_plan_stays() -> None:
    place = span(line=3)
    rule = make_rule(lambda _: [failed(f"x{n}", f"wrong {n} " + "<&>" * 300, at=place, remedy="-") for n in range(500)])
    report = judged(make_recording(job()), [rule])
    many = ChangeReport(report, plans=(JobChange("job", (Change("torchrun", "size", "1", "2"),)),))
    for size in (10_000, 65_000):
        body = comment(many, KEY, max_characters=size).body
        assert len(body) <= size and "more that do not fit here" in body and "<code>torchrun</code>" in body
        check_comment(body)


@pytest.mark.parametrize(
    "hostile",
    [
        "@everyone",
        "x`@user`",
        "[a](https://evil.example)",
        "<!-- x -->",
        "a\n\n# heading",
        "</code></td><h1>x</h1>",
        "&#64;user",
        "#1 !2",
        "www.evil.example",
    ],
)
def test_a_stranger_writes_no_markup(hostile: str) -> None:
    rule = make_rule(lambda _: [failed(hostile, hostile, at=span(hostile, snippet=hostile), remedy=hostile)])
    report = judged(make_recording(job()), [rule])
    plans = (JobChange(hostile, (Change(hostile, hostile, hostile, hostile),)),)
    check_comment(comment(ChangeReport(report, plans=plans), KEY).body)
    check_comment(comment(ChangeReport(report, plans=plans, not_compared=hostile), KEY, before=hostile).body)


def test_the_key_depends_on_the_paths_only() -> None:
    assert key_of(["a", "b"]) == key_of(["b", "a"]) != key_of(["a"])


# --- the API ---


class _Odd(BaseHTTPRequestHandler):
    """Answers with what the path says."""

    seen: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.seen.append(f"{self.path} {self.headers.get('X-Token')}")
        kind = self.path.partition("?")[0]
        if kind == "/redirect":
            self.send_response(302)
            self.send_header("Location", "/elsewhere")
            self.end_headers()
            return
        content = {"/endless": b"[{}" + b",{}" * 99 + b"]", "/text": b"<html>", "/object": b"{}"}.get(kind, b"[]")
        self.send_response(500 if kind == "/error" else 200)
        self.end_headers()
        self.wfile.write(rb'{"message": "\u001b[31mbroken"}' if kind == "/error" else content)

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""


@contextmanager
def served() -> Iterator[RestClient]:
    server = HTTPServer(("127.0.0.1", 0), _Odd)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield RestClient(f"http://127.0.0.1:{server.server_address[1]}", {"X-Token": "secret"})
    finally:
        server.shutdown()
        server.server_close()


def test_odd_answers_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with served() as client:
        with pytest.raises(PlatformError, match="answered 302"):
            client.request("GET", "/redirect")
        assert not [line for line in _Odd.seen if line.startswith("/elsewhere")]
        with pytest.raises(PlatformError, match=r"answered 500: \\x1b\[31mbroken"):
            client.request("GET", "/error")
        with pytest.raises(PlatformError, match="not JSON"):
            client.request("GET", "/text")
        with pytest.raises(PlatformError, match="more than 5000 comments"):
            list(client.pages("/endless"))
        with pytest.raises(PlatformError, match="expected a list"):
            list(client.pages("/object"))
    with pytest.raises(PlatformError, match="does not answer"):
        client.request("GET", "/list")


@pytest.mark.parametrize(
    "address",
    ["http://api.example", "ftp://a", "file:///etc/passwd", "", "https://", "https://a@b/", "https://a/?x"],
)
def test_a_token_goes_to_no_other_address(address: str) -> None:
    with pytest.raises(PlatformError, match="is not the address of an API"):
        RestClient(address, {})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"GITHUB_TOKEN": ""}, "GITHUB_TOKEN is not set"),
        ({"GITHUB_REPOSITORY": "a/b/../c"}, "expected OWNER/NAME"),
        ({"GITHUB_EVENT_PATH": ""}, "not about a pull request"),
        ({"GITHUB_EVENT_PATH": "/nowhere"}, "cannot be read"),
    ],
)
def test_without_a_pull_request(changes: dict[str, str], why: str) -> None:
    environment = {"GITHUB_TOKEN": "x", "GITHUB_REPOSITORY": "a/b", **changes}
    with pytest.raises(PlatformError, match=why):
        GitHub(environment)


def test_without_a_merge_request() -> None:
    with pytest.raises(PlatformError, match="PREFLIGHT_COMMENT_TOKEN is not set"):
        GitLab({})
    with pytest.raises(PlatformError, match="not about a merge request"):
        GitLab({"PREFLIGHT_COMMENT_TOKEN": "x", "CI_MERGE_REQUEST_IID": "1/../2", "CI_MERGE_REQUEST_PROJECT_ID": "1"})
