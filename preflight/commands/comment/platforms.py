"""Comments of a pull request on GitHub, and of a merge request on GitLab, over their REST APIs."""

from __future__ import annotations

import json
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any, Protocol

from preflight import __version__
from preflight._util import regular_file
from preflight._util.hostnames import is_loopback
from preflight._util.sanitize import clean
from preflight.commands.comment.change_report import GITHUB_CHARACTERS, GITLAB_CHARACTERS, Comment, is_ours

_MAX_EVENT_BYTES = 32 << 20
_COMMIT = re.compile(r"(?:[0-9a-f]{40}|[0-9a-f]{64})\Z")
_REPOSITORY = re.compile(r"[A-Za-z0-9_.-]{1,100}/[A-Za-z0-9_.-]{1,100}\Z")
_NUMBER = re.compile(r"[0-9]{1,15}\Z")


class Platform(Protocol):
    """One pull or merge request.

    `base` is the commit that it is compared with, `head` its last commit; empty if unknown. `max_characters` is the
    size of a comment.
    """

    base: str
    head: str
    max_characters: int

    def find(self, key: str) -> tuple[int, str] | None:
        """The number and the text of our comment; None if there is none."""
        ...

    def create(self, body: str) -> None:
        """Add a comment."""
        ...

    def update(self, number: int, body: str) -> None:
        """Replace the text of our comment."""
        ...


class GitHub:
    """The pull request of a workflow run, from the variables of the runner.

    Raises:
        PlatformError: this is not the run of a pull request, or there is no token.
    """

    max_characters = GITHUB_CHARACTERS

    def __init__(self, environment: Mapping[str, str]) -> None:
        token = environment.get("GITHUB_TOKEN", "")
        if not token:
            raise PlatformError("GITHUB_TOKEN is not set; pass the token of the job: ${{ github.token }}")
        repository = environment.get("GITHUB_REPOSITORY", "")
        if not _REPOSITORY.match(repository):
            raise PlatformError(f"GITHUB_REPOSITORY is {clean(repository)!r}; expected OWNER/NAME")
        pull = _event(environment.get("GITHUB_EVENT_PATH", "")).get("pull_request")
        number = pull.get("number") if isinstance(pull, dict) else None
        if not isinstance(pull, dict) or not isinstance(number, int):
            raise PlatformError("this run is not about a pull request; run it `on: pull_request`")
        self.base = _commit(pull, "base")
        self.head = _commit(pull, "head")
        self._comments = f"/repos/{repository}/issues"
        self._number = number
        headers = {"Authorization": f"Bearer {token}", "X-GitHub-Api-Version": "2022-11-28"}
        self._client = RestClient(environment.get("GITHUB_API_URL", "https://api.github.com"), headers)

    def find(self, key: str) -> tuple[int, str] | None:
        """The number and the text of our comment. Only a comment of this token's own account is ours: anybody may copy
        the hidden line.
        """
        found = [
            item for item in self._client.pages(f"{self._comments}/{self._number}/comments") if _is_with(item, key)
        ]
        login = self._login() if found else ""
        for item in found:
            author = item.get("user")
            if isinstance(author, dict) and (author.get("login") == login if login else author.get("type") == "Bot"):
                return item["id"], item["body"]
        return None

    def _login(self) -> str:
        """The account of the token; empty for the token of an app, such as that of a job, which has none."""
        try:
            user = self._client.request("GET", "/user")
        except PlatformError as error:
            if error.status in (401, 403, 404):
                return ""
            raise
        return str(user.get("login", "")) if isinstance(user, dict) else ""

    def create(self, body: str) -> None:
        """Add a comment."""
        self._client.request("POST", f"{self._comments}/{self._number}/comments", {"body": body})

    def update(self, number: int, body: str) -> None:
        """Replace the text of our comment."""
        self._client.request("PATCH", f"{self._comments}/comments/{number}", {"body": body})


class GitLab:
    """The merge request of a pipeline, from the variables of the runner.

    Raises:
        PlatformError: this is not the pipeline of a merge request, or there is no token.
    """

    max_characters = GITLAB_CHARACTERS

    def __init__(self, environment: Mapping[str, str]) -> None:
        token = environment.get("PREFLIGHT_COMMENT_TOKEN", "")
        if not token:
            raise PlatformError(
                "PREFLIGHT_COMMENT_TOKEN is not set; it holds a project access token with the scope api, because "
                "GitLab does not let the token of a job write comments"
            )
        project = environment.get("CI_MERGE_REQUEST_PROJECT_ID", "")
        number = environment.get("CI_MERGE_REQUEST_IID", "")
        if not _NUMBER.match(project) or not _NUMBER.match(number):
            raise PlatformError("this pipeline is not about a merge request; run it for merge_request_event")
        base = environment.get("CI_MERGE_REQUEST_DIFF_BASE_SHA", "")
        self.base = base if _COMMIT.match(base) else ""
        self.head = ""
        self._notes = f"/projects/{project}/merge_requests/{number}/notes"
        address = environment.get("CI_API_V4_URL", "https://gitlab.com/api/v4")
        self._client = RestClient(address, {"PRIVATE-TOKEN": token})

    def find(self, key: str) -> tuple[int, str] | None:
        """The number and the text of our note, which the account of this token wrote."""
        found = [
            item for item in self._client.pages(f"{self._notes}?sort=asc&order_by=created_at") if _is_with(item, key)
        ]
        if not found:
            return None
        user = self._client.request("GET", "/user")
        own = user.get("id") if isinstance(user, dict) else None
        for item in found:
            author = item.get("author")
            if own is not None and isinstance(author, dict) and author.get("id") == own:
                return item["id"], item["body"]
        return None

    def create(self, body: str) -> None:
        """Add a note."""
        self._client.request("POST", self._notes, {"body": body})

    def update(self, number: int, body: str) -> None:
        """Replace the text of our note."""
        self._client.request("PUT", f"{self._notes}/{number}", {"body": body})


def publish(platform: Platform, key: str, write: Callable[[str], Comment]) -> str:
    """Write the comment, or replace the one that is there; return what was done.

    `write` makes the comment, given the present one. Where there is none and nothing to say, none is made.

    Raises:
        PlatformError: the platform refuses.
    """
    try:
        present = platform.find(key)
        made = write(present[1] if present is not None else "")
        if present is None:
            if not made.says_something:
                return "nothing to say, so there is no comment"
            platform.create(made.body)
            return "comment written"
        if present[1].strip() == made.body.strip():
            return "the comment is up to date"
        platform.update(present[0], made.body)
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


def _event(path: str) -> Mapping[str, Any]:
    try:
        found = json.loads(regular_file.read(Path(path), _MAX_EVENT_BYTES)) if path else {}
    except OSError as error:
        raise PlatformError(f"the event in GITHUB_EVENT_PATH cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise PlatformError(f"the event in GITHUB_EVENT_PATH is not JSON: {error}") from None
    return found if isinstance(found, dict) else {}


def _commit(pull: Mapping[str, Any], side: str) -> str:
    found = pull.get(side)
    name = found.get("sha") if isinstance(found, dict) else None
    return name if isinstance(name, str) and _COMMIT.match(name) else ""


def platform_of(name: str, environment: Mapping[str, str] = os.environ) -> Platform:
    """The pull request on `github`, or the merge request on `gitlab`, that this job runs for.

    Raises:
        PlatformError: there is none.
    """
    return GitHub(environment) if name == "github" else GitLab(environment)


#: Time for one request, and for all requests of a run.
REQUEST_TIMEOUT_S = 20.0
TIMEOUT_S = 90.0
_MAX_ANSWER_BYTES = 32 << 20
_PAGE_SIZE = 100
#: A pull request with more comments than this is not searched to its end.
_MAX_PAGES = 50


class PlatformError(Exception):
    """The comment cannot be written; the message gives the reason and what to do.

    `status` is the code of the answer, if there was one.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the token to another host."""

    def redirect_request(self, *arguments: Any) -> None:
        """Refuse it; the answer is then an error."""
        return


class RestClient:
    """The API at `address`.

    Args:
        headers: sent with each request, with the token.

    Raises:
        PlatformError: the address is not one to which a token may be sent.
    """

    def __init__(self, address: str, headers: Mapping[str, str]) -> None:
        parts = urllib.parse.urlsplit(address)
        is_safe = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
        if not is_safe or not parts.hostname or parts.query or parts.fragment or "@" in parts.netloc:
            raise PlatformError(f"{clean(address)!r} is not the address of an API; expected https://HOST/PATH")
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
        """Send a request; return the JSON of the answer.

        Raises:
            PlatformError: the platform answers with an error, or not in time.
        """
        left = self._end - time.monotonic()
        where = f"{method} {path.partition('?')[0]}"
        if left <= 0:
            raise PlatformError(f"{where}: the API took more than {TIMEOUT_S:g} s in all")
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._address + path, data, dict(self._headers), method=method)
        try:
            with self._opener.open(request, timeout=min(left, REQUEST_TIMEOUT_S)) as answer:
                content = answer.read(_MAX_ANSWER_BYTES + 1)
        except urllib.error.HTTPError as error:
            with error:
                raise PlatformError(f"{where}: the API answered {error.code}{_reason(error)}", error.code) from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise PlatformError(f"{where}: the API does not answer: {clean(str(reason))[:200]}") from None
        if len(content) > _MAX_ANSWER_BYTES:
            raise PlatformError(f"{where}: the answer has more than {_MAX_ANSWER_BYTES >> 20} MiB")
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise PlatformError(f"{where}: the answer is not JSON") from None

    def pages(self, path: str) -> Iterator[Mapping[str, Any]]:
        """The objects of a list that comes in pages."""
        for number in range(1, _MAX_PAGES + 1):
            sign = "&" if "?" in path else "?"
            page = self.request("GET", f"{path}{sign}per_page={_PAGE_SIZE}&page={number}")
            if not isinstance(page, list):
                raise PlatformError(f"GET {path}: expected a list of comments")
            yield from (item for item in page if isinstance(item, dict))
            if len(page) < _PAGE_SIZE:
                return
        raise PlatformError(f"there are more than {_MAX_PAGES * _PAGE_SIZE} comments, so ours was not looked for")


def _reason(error: urllib.error.HTTPError) -> str:
    """The message of the API about an error, in a few words."""
    try:
        found = json.loads(error.read(10_000))
    except (ValueError, RecursionError, OSError, HTTPException):
        return ""
    said = found.get("message") or found.get("error") if isinstance(found, dict) else None
    return f": {clean(str(said))[:200]}" if said else ""
