"""A stub of the REST APIs of GitHub and GitLab, as far as comments need them. It is not either of them: it keeps the
comments of one pull request in memory, in pages, and rejects what they reject.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

TOKEN = "stub-token"


@dataclass
class Stub:
    """The comments, newest last, and the requests so far.

    Args:
        is_bot: whether the token belongs to an app, which has no account (GitHub).
        read_only: whether writing is forbidden, as for the pull request of a fork.
    """

    address: str = ""
    is_bot: bool = True
    read_only: bool = False
    comments: list[dict[str, Any]] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def add(self, body: str, *, login: str = "mallory", kind: str = "User", number: int = 0) -> None:
        """Add a comment of somebody."""
        author = {"login": login, "type": kind, "id": number}
        self.comments.append({"id": 1000 + len(self.comments), "body": body, "user": author, "author": author})

    @property
    def ours(self) -> list[str]:
        """The comments that were written with the token."""
        return [item["body"] for item in self.comments if item["user"]["login"] == "preflight"]

    def answer(self, method: str, url: str, token: str, body: Any) -> tuple[int, Any]:
        """The code and the content of an answer."""
        parts = urlsplit(url)
        self.requests.append(f"{method} {parts.path}")
        if token != TOKEN:
            return 401, {"message": "Bad credentials"}
        if parts.path == "/user":
            return (403, {"message": "not accessible"}) if self.is_bot else (200, {"login": "preflight", "id": 7})
        if method == "GET":
            query = {name: int(values[0]) for name, values in parse_qs(parts.query).items() if values[0].isdigit()}
            start = (query["page"] - 1) * query["per_page"]
            return 200, self.comments[start : start + query["per_page"]]
        if self.read_only:
            return 403, {"message": "Resource not accessible by integration"}
        limit = 65_536 if "/issues/" in parts.path else 1_000_000
        if not isinstance(body, dict) or len(body.get("body", "")) > limit:
            return 422, {"message": "body is too long"}
        if method == "POST":
            self.add(body["body"], login="preflight", kind="Bot" if self.is_bot else "User", number=7)
            return 201, self.comments[-1]
        number = int(parts.path.rpartition("/")[2])
        (item,) = [item for item in self.comments if item["id"] == number]
        item["body"] = body["body"]
        return 200, item


@contextmanager
def rest_stub() -> Iterator[Stub]:
    """Serve the stub on a free port of the loopback interface."""
    stub = Stub()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            token = self.headers.get("PRIVATE-TOKEN") or (self.headers.get("Authorization") or "").removeprefix(
                "Bearer "
            )
            paths = (
                r"/user|/repos/owner/name/issues/(5/comments|comments/\d+)|/projects/3/merge_requests/5/notes(/\d+)?"
            )
            known = re.fullmatch(paths, urlsplit(self.path).path)
            code, content = (
                stub.answer(self.command, self.path, token, body) if known else (404, {"message": "Not Found"})
            )
            data = json.dumps(content).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = do_PUT = _answer

        def log_message(self, *arguments: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    stub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
