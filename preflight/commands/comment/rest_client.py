"""Requests to the REST API of a platform: JSON, bounded in time and size; the token leaves only to its own host."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from http.client import HTTPException
from typing import Any

from preflight import __version__
from preflight._util.hostnames import is_loopback
from preflight._util.sanitize import clean

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
            PlatformError: there is no answer in time, or it is an error.
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
    """What the API says about an error, in a few words."""
    try:
        found = json.loads(error.read(10_000))
    except (ValueError, RecursionError, OSError, HTTPException):
        return ""
    said = found.get("message") or found.get("error") if isinstance(found, dict) else None
    return f": {clean(str(said))[:200]}" if said else ""
