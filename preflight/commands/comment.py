"""The effect of a change on a repository's jobs, and the comment about it on a pull request (GitHub and GitLab).

The author of the change controls file names, values and their quotations in messages, so these may try to imitate the
comment or to mention people. The text is written into an HTML block, where Markdown has no effect. Words with
characters other than letters go into `<code>`, where mentions (`@user`), references (`#1`, `!2`) and addresses do not
become links.
"""

from __future__ import annotations

import difflib
import hashlib
import html
import json
import os
import re
import time
import urllib
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

from preflight import __version__
from preflight._util import regular_file
from preflight._util.hostnames import is_loopback
from preflight._util.sanitize import clean
from preflight._util.sequences import value_at
from preflight.commands.plan.compose import plan_of
from preflight.commands.plan.plan_pages import Change, changes_between
from preflight.commands.since import Versions, judge_versions, versions_of
from preflight.engine.report import Report
from preflight.model.configuration import Configuration
from preflight.model.findings import Finding, Severity
from preflight.model.job import Job
from preflight.reporters.github import summary_of
from preflight.reporters.text.groups import count, why_incomplete
from preflight.sources.formats.tree import MAX_BYTES

#: Lines between the first and the last difference of two files that are compared; comparing more takes too long.
_MAX_COMPARED_LINES = 2000


@dataclass(frozen=True, slots=True)
class JobChange:
    """The changes for the ranks of one job."""

    job: str
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class ChangeReport:
    """The content of a comment.

    Args:
        report: the report on the jobs that the change touches, with the findings that are new.
        on_changed_lines: fingerprints of the findings that are located on a changed or added line.
        plans: the plans by job, only of jobs whose ranks are affected.
        not_compared: why a comparison was not possible, so that the report covers all jobs; otherwise empty.
    """

    report: Report
    on_changed_lines: frozenset[str] = frozenset()
    plans: tuple[JobChange, ...] = ()
    not_compared: str = ""


def change_report(
    root: Path,
    paths: Sequence[Path],
    revision: str,
    configuration: Configuration,
    *,
    created: str,
    branch_point: bool = False,
    processes: int = 1,
) -> ChangeReport:
    """Compare the jobs in `paths` with those of a commit. Raises UsageError if the commit cannot be read."""
    with versions_of(
        root, paths, revision, configuration.exclude, branch_point=branch_point, processes=processes
    ) as versions:
        report = judge_versions(versions, revision, configuration, created=created)
        lines = {
            path: changed_lines(_lines(versions.old_root / path), _lines(root / path)) for path in versions.changed
        }
        on_changed_lines = frozenset(
            finding.fingerprint
            for finding in report.findings
            if any(place.line in lines.get(place.path, ()) for place in finding.locations)
        )
        return ChangeReport(report, on_changed_lines, tuple(_plans(versions)))


def _plans(versions: Versions) -> list[JobChange]:
    old = {job.name: job for job in versions.old_jobs}
    new = {job.name: job for job in versions.touched}
    return [
        JobChange(name, changes)
        for name in sorted({*old, *new})
        if (changes := changes_between(plan_of(_as_tuple(old.get(name))), plan_of(_as_tuple(new.get(name)))))
    ]


def _as_tuple(job: Job | None) -> tuple[Job, ...]:
    return () if job is None else (job,)


def _lines(path: Path) -> list[str]:
    try:
        return regular_file.read(path, MAX_BYTES).decode("utf-8", "replace").split("\n")
    except OSError:
        return []


def changed_lines(old: Sequence[str], new: Sequence[str]) -> frozenset[int]:
    """Return the line numbers (from 1) that are new in `new`; for large files, the range of all differences."""
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    before, after = old[start : len(old) - end], new[start : len(new) - end]
    if max(len(before), len(after)) > _MAX_COMPARED_LINES:
        return frozenset(range(start + 1, start + len(after) + 1))
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    return frozenset(
        start + 1 + line
        for kind, _, _, first, last in matcher.get_opcodes()
        if kind != "equal"
        for line in range(first, last)
    )


#: Largest comment on each platform, in characters; slightly below its limit, because it may count differently.
GITHUB_CHARACTERS, GITLAB_CHARACTERS = 65_000, 990_000
_SIGNS = {Severity.ERROR: "❌ error", Severity.WARNING: "⚠️ warning", Severity.INFO: "ℹ️ info"}
_MAX_TEXT = 1200
_MAX_VALUE = 300
_MAX_REASONS = 10
#: Largest number of findings in the hidden line, which holds the first characters of their fingerprints.
_MAX_REMEMBERED = 400
_REMEMBERED_LENGTH = 12
#: Space for the list of what was not judged.
_MAX_REASONS_LENGTH = 8_000
_MARKER = "<!-- preflight-comment"
_REMEMBERED = re.compile(r"<!-- preflight-comment ([0-9a-f]{12}) listed=((?:[0-9a-f]{12}(?:,[0-9a-f]{12})*)?) -->")
#: A word or number that no platform turns into a link, with punctuation around it.
_PLAIN = re.compile(r"\(?(?:[A-Za-z]{1,24}(?:['-][a-z]{1,24}){0,4}|\d{1,6}(?:\.\d{1,4})?)\)?[.,;:]?\Z")


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment in Markdown; `says_something` is whether it is worth creating if none exists yet."""

    body: str
    says_something: bool


def key_of(paths: Sequence[str]) -> str:
    """Return a hash of the checked paths, which distinguishes the comments of several runs on one pull request."""
    return hashlib.sha256("\0".join(sorted(paths)).encode("utf-8", "surrogateescape")).hexdigest()[:12]


def is_ours(body: str, key: str) -> bool:
    """Return whether a run with this key wrote the comment."""
    found = _REMEMBERED.match(body)
    return found is not None and found[1] == key


def comment(changes: ChangeReport, key: str, *, before: str = "", max_characters: int = GITHUB_CHARACTERS) -> Comment:
    """Write the comment in up to `max_characters`; findings that do not fit are counted. `before` is the current
    comment.
    """
    findings = changes.report.findings
    now = [finding.fingerprint[:_REMEMBERED_LENGTH] for finding in findings]
    previous = _REMEMBERED.match(before)
    earlier = set(filter(None, previous[2].split(","))) if previous is not None else set()
    fixed = len(earlier - {*now})
    lines = [f"{_MARKER} {key} listed={','.join(dict.fromkeys(now[:_MAX_REMEMBERED]))} -->"]
    lines += [f"### preflight: {_headline(changes)}", ""]
    lines += _summary_lines(changes, fixed)
    lower_lines = list(_undecided_block(changes))
    room = max_characters - sum(len(line) + 2 for line in (*lines, *lower_lines))
    on_lines = [finding for finding in findings if finding.fingerprint in changes.on_changed_lines]
    elsewhere = [finding for finding in findings if finding.fingerprint not in changes.on_changed_lines]
    sections = (
        ("Findings on changed lines", ("", "rule", "where", "what"), [_finding(item) for item in on_lines]),
        (
            "Findings in all jobs" if changes.not_compared else "New findings on other lines",
            ("", "rule", "where", "what"),
            [_finding(item) for item in elsewhere],
        ),
        ("What changes for the ranks", ("job", "launch", "what", "before", "after"), list(_changes(changes))),
    )
    for number, (title, head, rows) in enumerate(sections):
        if rows:
            # A quarter is reserved for the plan, so that many findings do not hide it.
            reserve = 0 if number == len(sections) - 1 or not sections[-1][2] else max_characters // 4
            table = _table(title, head, rows, room - reserve)
            room -= len(table)
            lines += [table, ""]
    lines += lower_lines
    text = "\n".join(lines).rstrip("\n") + "\n"
    return Comment(text, bool(findings or changes.plans or changes.not_compared or _is_incomplete(changes)))


def _is_incomplete(changes: ChangeReport) -> bool:
    return bool(why_incomplete(changes.report))


def _headline(changes: ChangeReport) -> str:
    number = len(changes.report.findings)
    since = changes.report.configuration.since
    if not changes.report.jobs and not changes.plans and since is not None and since.unchanged_jobs:
        return "the change touches no job"
    if changes.not_compared:
        return f"{count(number, 'finding')}, not compared with the base"
    if number:
        return count(number, "new finding")
    return "no new findings" if not _is_incomplete(changes) else "no new findings, but not everything was checked"


def _summary_lines(changes: ChangeReport, fixed: int) -> Iterator[str]:
    """Yield sentences that contain text from the repository only in `_html`."""
    if fixed:
        were = "is" if fixed == 1 else "are"
        yield f"✅ {count(fixed, 'finding')} that this comment listed before {were} fixed."
        yield ""
    since = changes.report.configuration.since
    existed = sum(finding.suppressed_by == "since" for finding in changes.report.suppressed)
    if changes.not_compared:
        yield f"<p>All findings are listed, because they could not be compared: {_html(changes.not_compared)}</p>"
        yield ""
    elif since is not None:
        unchanged = f" {count(since.unchanged_jobs, 'job')} did not change." if since.unchanged_jobs else ""
        before = f" {count(existed, 'finding')} in the changed jobs already existed." if existed else ""
        yield f"Compared with `{since.commit[:12]}`.{unchanged}{before}"
        yield ""
    if changes.report.findings or _is_incomplete(changes):
        yield f"<p>{_html(f'Verdict: {changes.report.verdict.value}. {summary_of(changes.report)}')}</p>"
        yield ""


def _undecided_block(changes: ChangeReport) -> Iterator[str]:
    reasons = why_incomplete(changes.report)
    if reasons:
        items: list[str] = []
        for reason in reasons[:_MAX_REASONS]:
            item = f"<li>{_html(reason[:_MAX_VALUE])}</li>"
            if sum(map(len, items)) + len(item) > _MAX_REASONS_LENGTH:
                break
            items.append(item)
        if len(reasons) > len(items):
            items.append(f"<li>and {len(reasons) - len(items)} more</li>")
        yield "\n".join(("<h4>Not judged</h4>", "<ul>", *items, "</ul>"))


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], room: int) -> str:
    """Return an HTML block without an empty line, which would end the block. Rows that do not fit are counted."""
    cells = "".join(f"<th>{name}</th>" for name in head)
    lines = [f"<h4>{title}</h4>", "<table>", f"<tr>{cells}</tr>"]
    left = room - sum(map(len, lines)) - 300
    for number, row in enumerate(rows):
        line = f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>"
        left -= len(line) + 1
        if left < 0:
            lines.append(
                f'<tr><td colspan="{len(head)}">and {len(rows) - number} more that do not fit into this '
                "comment</td></tr>"
            )
            break
        lines.append(line)
    return "\n".join([*lines, "</table>"])


def _finding(finding: Finding) -> tuple[str, ...]:
    where = next((f"{place.path}:{place.line}" for place in finding.locations), finding.subject)
    fix = f"<br>Fix: {_html(finding.remedy)}" if finding.remedy else ""
    rule = f"{_html(finding.id)} {_html(finding.name)}"
    return _SIGNS[finding.severity], rule, _code(where), f"{_html(finding.message)}{fix}"


def _changes(changes: ChangeReport) -> Iterator[tuple[str, ...]]:
    for plan in changes.plans:
        for change in plan.changes:
            yield (
                _code(plan.job),
                _code(change.launch),
                _html(change.what),
                _code(change.before) or "none",
                _code(change.after) or "none",
            )


def _html(text: str) -> str:
    """Return untrusted text as one line of HTML; words that a platform could turn into a link are in `<code>`."""
    words = _shorten(text, _MAX_TEXT).replace("`", " ").split(" ")
    return " ".join(word if _PLAIN.match(word) else _code(word) for word in words if word)


def _code(text: str) -> str:
    plain = _shorten(text, _MAX_VALUE)
    return f"<code>{html.escape(plain)}</code>" if plain else ""


def _shorten(text: str, length: int) -> str:
    plain = clean(" ".join(text.split()))
    return plain if len(plain) <= length else f"{plain[:length]} …"


_MAX_EVENT_BYTES = 32 << 20
_COMMIT = re.compile(r"(?:[0-9a-f]{40}|[0-9a-f]{64})\Z")
_REPOSITORY = re.compile(r"[A-Za-z0-9_.-]{1,100}/[A-Za-z0-9_.-]{1,100}\Z")
_NUMBER = re.compile(r"[0-9]{1,15}\Z")


class GitHub:
    """The pull request of a workflow run, from the runner's variables. Raises PlatformError without one or a token."""

    max_characters = GITHUB_CHARACTERS

    def __init__(self, environment: Mapping[str, str]) -> None:
        token = environment.get("GITHUB_TOKEN", "")
        if not token:
            raise PlatformError("GITHUB_TOKEN is not set; pass the job's token: ${{ github.token }}")
        repository = environment.get("GITHUB_REPOSITORY", "")
        if not _REPOSITORY.match(repository):
            raise PlatformError(f"GITHUB_REPOSITORY is {clean(repository)!r}; expected OWNER/NAME")
        event = _event(environment.get("GITHUB_EVENT_PATH", ""))
        number = value_at(event, "pull_request", "number")
        if not isinstance(number, int):
            raise PlatformError("this is not a pull request workflow; run it `on: pull_request`")
        self.base = _commit(value_at(event, "pull_request", "base", "sha"))
        self.head = _commit(value_at(event, "pull_request", "head", "sha"))
        self._comments = f"/repos/{repository}/issues"
        self._number = number
        headers = {"Authorization": f"Bearer {token}", "X-GitHub-Api-Version": "2022-11-28"}
        self._client = RestClient(environment.get("GITHUB_API_URL", "https://api.github.com"), headers)

    def find(self, key: str) -> tuple[int, str] | None:
        """Return the number and text of our comment, written by this token's account, because anybody may copy the
        line.
        """
        found = [
            item for item in self._client.pages(f"{self._comments}/{self._number}/comments") if _is_with(item, key)
        ]
        login = self._login() if found else ""
        for item in found:
            if value_at(item, "user", "login") == login if login else value_at(item, "user", "type") == "Bot":
                return item["id"], item["body"]
        return None

    def _login(self) -> str:
        """Return the account of the token; empty for the token of an app, such as a job token, which has no account."""
        try:
            user = self._client.request("GET", "/user")
        except PlatformError as error:
            if error.status in (401, 403, 404):
                return ""
            raise
        return str(value_at(user, "login") or "")

    def create(self, body: str) -> None:
        self._client.request("POST", f"{self._comments}/{self._number}/comments", {"body": body})

    def update(self, number: int, body: str) -> None:
        self._client.request("PATCH", f"{self._comments}/comments/{number}", {"body": body})


class GitLab:
    """The merge request of a pipeline, from the runner's variables. Raises PlatformError without one or a token."""

    max_characters = GITLAB_CHARACTERS

    def __init__(self, environment: Mapping[str, str]) -> None:
        token = environment.get("PREFLIGHT_COMMENT_TOKEN", "")
        if not token:
            raise PlatformError(
                "PREFLIGHT_COMMENT_TOKEN is not set; it holds a project access token with the scope api, because "
                "GitLab does not allow a job's token to write comments"
            )
        project = environment.get("CI_MERGE_REQUEST_PROJECT_ID", "")
        number = environment.get("CI_MERGE_REQUEST_IID", "")
        if not _NUMBER.match(project) or not _NUMBER.match(number):
            raise PlatformError("this is not a merge request pipeline; run it on merge_request_event")
        self.base = _commit(environment.get("CI_MERGE_REQUEST_DIFF_BASE_SHA"))
        self.head = ""
        self._notes = f"/projects/{project}/merge_requests/{number}/notes"
        address = environment.get("CI_API_V4_URL", "https://gitlab.com/api/v4")
        self._client = RestClient(address, {"PRIVATE-TOKEN": token})

    def find(self, key: str) -> tuple[int, str] | None:
        """Return the number and the text of our note, written by the account of this token."""
        found = [
            item for item in self._client.pages(f"{self._notes}?sort=asc&order_by=created_at") if _is_with(item, key)
        ]
        if not found:
            return None
        own = value_at(self._client.request("GET", "/user"), "id")
        ours = (item for item in found if own is not None and value_at(item, "author", "id") == own)
        return next(((item["id"], item["body"]) for item in ours), None)

    def create(self, body: str) -> None:
        self._client.request("POST", self._notes, {"body": body})

    def update(self, number: int, body: str) -> None:
        self._client.request("PUT", f"{self._notes}/{number}", {"body": body})


def publish(platform: GitHub | GitLab, key: str, write: Callable[[str], Comment]) -> str:
    """Write the comment (`write` is given the current one) unless there is nothing to report. Raises PlatformError."""
    try:
        present = platform.find(key)
        new_comment = write(present[1] if present is not None else "")
        if present is None:
            if not new_comment.says_something:
                return "there is nothing to report, so no comment is written"
            platform.create(new_comment.body)
            return "comment written"
        if present[1].strip() == new_comment.body.strip():
            return "the comment is up to date"
        platform.update(present[0], new_comment.body)
        return "comment updated"
    except PlatformError as error:
        if error.status in (401, 403, 404):
            raise PlatformError(
                f"{error}; the token may not write comments (GitHub: `permissions: pull-requests: write`, which a pull "
                "request from a fork never gets; GitLab: a project access token with the scope api)",
                error.status,
            ) from None
        raise


def _is_with(item: Mapping[str, Any], key: str) -> bool:
    body, number = item.get("body"), item.get("id")
    return isinstance(body, str) and isinstance(number, int) and is_ours(body, key)


def _event(path: str) -> object:
    try:
        return json.loads(regular_file.read(Path(path), _MAX_EVENT_BYTES)) if path else None
    except OSError as error:
        raise PlatformError(f"the event in GITHUB_EVENT_PATH cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise PlatformError(f"the event in GITHUB_EVENT_PATH is not JSON: {error}") from None


def _commit(name: object) -> str:
    return name if isinstance(name, str) and _COMMIT.match(name) else ""


def platform_of(name: str, environment: Mapping[str, str] = os.environ) -> GitHub | GitLab:
    """Return the pull request on `github`, or merge request on `gitlab`, of this job. Raises PlatformError."""
    return GitHub(environment) if name == "github" else GitLab(environment)


#: Time for one request, and for all requests of a run.
REQUEST_TIMEOUT_S = 20.0
TIMEOUT_S = 90.0
_MAX_ANSWER_BYTES = 32 << 20
_PAGE_SIZE = 100
#: Largest number of pages of comments that are searched.
_MAX_PAGES = 50


class PlatformError(Exception):
    """An error that prevents the comment, with its reason, its remedy and the HTTP status, if any."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Rejects redirects, which would carry the token to another host."""

    def redirect_request(self, *arguments: Any) -> None:
        """Reject the redirect; the response is then an error."""
        return


class RestClient:
    """The API at `address`; `headers` include the token. Raises PlatformError if it must not be sent there."""

    def __init__(self, address: str, headers: Mapping[str, str]) -> None:
        parts = urllib.parse.urlsplit(address)
        is_safe = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
        if not is_safe or not parts.hostname or parts.query or parts.fragment or "@" in parts.netloc:
            raise PlatformError(f"{clean(address)!r} is not a valid API address; expected https://HOST/PATH")
        self._address = address.rstrip("/")
        self._headers = {
            "Accept": "application/json",
            "Content-Type": "application/json",
            "User-Agent": f"preflight/{__version__}",
            **headers,
        }
        self._opener = urllib.request.build_opener(_NoRedirects)
        self._end = time.monotonic() + TIMEOUT_S

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send a request and return the JSON of the response. Raises PlatformError."""
        left = self._end - time.monotonic()
        where = f"{method} {path.partition('?')[0]}"
        if left <= 0:
            raise PlatformError(f"{where}: the API took more than {TIMEOUT_S:g} s in total")
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._address + path, data, dict(self._headers), method=method)
        try:
            with self._opener.open(request, timeout=min(left, REQUEST_TIMEOUT_S)) as answer:
                content = answer.read(_MAX_ANSWER_BYTES + 1)
        except urllib.error.HTTPError as error:
            with error:
                raise PlatformError(f"{where}: the API returned {error.code}{_reason(error)}", error.code) from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise PlatformError(f"{where}: the API does not respond: {clean(str(reason))[:200]}") from None
        if len(content) > _MAX_ANSWER_BYTES:
            raise PlatformError(f"{where}: the response is larger than {_MAX_ANSWER_BYTES >> 20} MiB")
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise PlatformError(f"{where}: the response is not JSON") from None

    def pages(self, path: str) -> Iterator[Mapping[str, Any]]:
        """Yield the objects of a paginated list."""
        for number in range(1, _MAX_PAGES + 1):
            sign = "&" if "?" in path else "?"
            page = self.request("GET", f"{path}{sign}per_page={_PAGE_SIZE}&page={number}")
            if not isinstance(page, list):
                raise PlatformError(f"GET {path}: expected a list of comments")
            yield from (item for item in page if isinstance(item, dict))
            if len(page) < _PAGE_SIZE:
                return
        raise PlatformError(
            f"there are more than {_MAX_PAGES * _PAGE_SIZE} comments, so preflight did not look for its own"
        )


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        found = json.loads(error.read(10_000))
    except (ValueError, RecursionError, OSError, HTTPException):
        return ""
    message = value_at(found, "message") or value_at(found, "error")
    return f": {clean(str(message))[:200]}" if message else ""
