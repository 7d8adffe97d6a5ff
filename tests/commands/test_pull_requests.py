"""The comment on a pull request: what it says, its size, and the requests that carry its token."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from preflight import Configuration, UsageError, VerdictKind, judge, lint
from preflight.cli.main import run
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
from preflight.model.recording import Recording
from preflight.model.recording_io import load, save
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
    assert "not everything was checked" in body and "<h4>Not judged</h4>" in body


def test_what_does_not_fit_is_counted_and_the_plan_stays() -> None:
    place = span(line=3)
    rule = make_rule(lambda _: [failed(f"x{n}", f"wrong {n} " + "<&>" * 300, at=place, remedy="-") for n in range(500)])
    report = judged(make_recording(job()), [rule])
    many = ChangeReport(report, plans=(JobChange("job", (Change("torchrun", "size", "1", "2"),)),))
    for size in (10_000, 65_000):
        body = comment(many, KEY, max_characters=size).body
        assert (
            len(body) <= size and "more that do not fit into this comment" in body and "<code>torchrun</code>" in body
        )
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
        with pytest.raises(PlatformError, match="returned 302"):
            client.request("GET", "/redirect")
        assert not [line for line in _Odd.seen if line.startswith("/elsewhere")]
        with pytest.raises(PlatformError, match=r"returned 500: \\x1b\[31mbroken"):
            client.request("GET", "/error")
        with pytest.raises(PlatformError, match="not JSON"):
            client.request("GET", "/text")
        with pytest.raises(PlatformError, match="more than 5000 comments"):
            list(client.pages("/endless"))
        with pytest.raises(PlatformError, match="expected a list"):
            list(client.pages("/object"))
    with pytest.raises(PlatformError, match="does not respond"):
        client.request("GET", "/list")


@pytest.mark.parametrize(
    "address",
    ["http://api.example", "ftp://a", "file:///etc/passwd", "", "https://", "https://a@b/", "https://a/?x"],
)
def test_a_token_goes_to_no_other_address(address: str) -> None:
    with pytest.raises(PlatformError, match="is not a valid API address"):
        RestClient(address, {})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"GITHUB_TOKEN": ""}, "GITHUB_TOKEN is not set"),
        ({"GITHUB_REPOSITORY": "a/b/../c"}, "expected OWNER/NAME"),
        ({"GITHUB_EVENT_PATH": ""}, "not a pull request workflow"),
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
    with pytest.raises(PlatformError, match="not a merge request pipeline"):
        GitLab({"PREFLIGHT_COMMENT_TOKEN": "x", "CI_MERGE_REQUEST_IID": "1/../2", "CI_MERGE_REQUEST_PROJECT_ID": "1"})


# `lint --since`: the jobs that a change touches, and what is new in them.


Git = Callable[..., None]
LOOPBACK = "torchrun --nnodes=2 --nproc_per_node=1 --node_rank=$R --master_addr=localhost train.py\n"
REACHABLE = LOOPBACK.replace("localhost", "node1")
TRAIN = "import torch.distributed as dist\ndist.init_process_group('gloo')\n"


@pytest.fixture
def git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Git:
    """Runs git in a repository with two jobs: `old` has a fault, `good` has none."""
    monkeypatch.chdir(tmp_path)

    def git(*words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}
        subprocess.run(["git", *who, *words], cwd=tmp_path, env=environment, check=True, timeout=30)

    for name, line in (("old", LOOPBACK), ("good", REACHABLE)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.sh").write_text(f"#!/bin/bash\n{line}")
        (tmp_path / name / "train.py").write_text(TRAIN)
    git("init", "--quiet", "--initial-branch=main")
    git("add", "--all")
    git("commit", "--quiet", "--message", "one")
    return git


def ids(paths: str = ".", **more: str) -> list[str]:
    """The rules with new findings since the commit, and where."""
    return [f"{finding.id} {finding.locations[0].path}" for finding in lint([paths], since="HEAD").findings]


def test_without_a_change_nothing_is_judged_and_nothing_fails(git: Git) -> None:
    report = lint(["."], since="HEAD")
    assert (report.verdict, report.exit_code, report.jobs) == (VerdictKind.NOT_JUDGED, 0, ())
    assert report.configuration.since is not None and report.configuration.since.unchanged_jobs == 2


def test_only_what_is_new_counts(git: Git, tmp_path: Path) -> None:
    (tmp_path / "old" / "run.sh").write_text(f"#!/bin/bash\n# moved\n\n{LOOPBACK}")
    report = lint(["."], since="HEAD")
    assert report.verdict is VerdictKind.GO and [job.name for job in report.jobs] == ["old/run.sh"]
    assert {(finding.id, finding.suppressed_by) for finding in report.suppressed} >= {("RDV001", "since")}
    (tmp_path / "good" / "run.sh").write_text(f"#!/bin/bash\n{LOOPBACK}")
    assert ids() == ["RDV001 good/run.sh"]
    assert lint(["."], since="HEAD").exit_code == 1
    assert ids("old") == []


def test_a_changed_file_touches_every_job_that_includes_it(git: Git, tmp_path: Path) -> None:
    (tmp_path / "good" / "train.py").write_text(TRAIN + "dist.barrier()\n")
    assert [job.name for job in lint(["."], since="HEAD").jobs] == ["good/run.sh"]


def test_a_new_job_is_judged_and_a_removed_one_is_not(git: Git, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "run.sh").write_text(f"#!/bin/bash\n{LOOPBACK}")
    (tmp_path / "old" / "run.sh").unlink()
    assert ids() == ["RDV001 new/run.sh"]


def test_a_removed_file_touches_the_job_that_had_it(git: Git, tmp_path: Path) -> None:
    (tmp_path / "good" / "train.py").unlink()
    report = lint(["."], since="HEAD")
    assert [job.name for job in report.jobs] == ["good/run.sh"]
    assert report.configuration.since is not None and "good/train.py" in report.configuration.since.changed


def test_a_fault_whose_suppression_is_removed_is_new(git: Git, tmp_path: Path) -> None:
    line = LOOPBACK.replace("\n", "  # preflight: ignore[RDV001] a test\n")
    (tmp_path / "old" / "run.sh").write_text(f"#!/bin/bash\n{line}")
    git("commit", "--quiet", "--all", "--message", "two")
    (tmp_path / "old" / "run.sh").write_text(f"#!/bin/bash\n{LOOPBACK}")
    assert "RDV001 old/run.sh" in ids()


def test_mandatory_rules_count_as_with_a_baseline(git: Git, tmp_path: Path) -> None:
    (tmp_path / "old" / "run.sh").write_text(f"#!/bin/bash\n# moved\n{LOOPBACK}")
    report = lint(["."], since="HEAD", configuration=Configuration(mandatory=("RDV001",)))
    assert "RDV001" in {finding.id for finding in report.findings}


def test_a_changed_file_that_cannot_be_read_is_not_passed_over(git: Git, tmp_path: Path) -> None:
    (tmp_path / "good" / "run.sh").write_bytes(b"#!/bin/bash\n# \0\n")
    report = lint(["good/run.sh"], since="HEAD")
    assert report.verdict is VerdictKind.INCOMPLETE


def test_the_recording_of_it_is_judged_the_same(git: Git, tmp_path: Path) -> None:
    (tmp_path / "old" / "run.sh").write_text(f"#!/bin/bash\n# moved\n{LOOPBACK}")
    report = lint(["."], since="HEAD")
    recording = Recording(
        jobs=report.jobs, created=report.run.created, tool_version="0", configuration=report.configuration
    )
    again = judge(load(save(recording)))
    assert again.suppressed == report.suppressed and again.findings == report.findings


def test_the_command(git: Git, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["lint", "--since", "HEAD"]) == 0
    assert "the change since HEAD touches none of 2 jobs" in capfd.readouterr().out
    (tmp_path / "good" / "run.sh").write_text(f"#!/bin/bash\n{LOOPBACK}")
    assert run(["lint", "--since", "HEAD"]) == 1
    assert "only findings that are new since HEAD" in capfd.readouterr().out
    assert run(["lint", "--since", "HEAD", "-o", "json"]) == 1
    since = json.loads(capfd.readouterr().out)["configuration"]["since"]
    assert since["changed"] == ["good/run.sh"]
    assert run(["lint", "--since", "nowhere"]) == 2
    assert "this clone has no commit 'nowhere'" in capfd.readouterr().err


def test_standard_input_has_no_earlier_version(git: Git) -> None:
    with pytest.raises(UsageError, match="standard input"):
        lint(["x.sh"], since="HEAD", given={Path("x.sh"): b""})
