"""The page as a web application, and its server: addresses, logins, deadlines and headers.

Every request has a deadline, every query ends with it, and only a few queries run at the same time. Nothing is stored,
no script is sent, and the policy of each answer forbids scripts and other hosts.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qs, quote

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from preflight import __version__
from preflight._util.sanitize import fold_nodes
from preflight._util.usage_error import UsageError
from preflight.commands.history.database import HistoryUnavailable, ReadOnlyHistory
from preflight.reporters.html.page import environment, static_text, stylesheet
from preflight.reporters.text.groups import count
from preflight.services.access import COOKIE, MAX_LENGTH, SESSION_S, VARIABLE, Access, is_loopback, is_own_name
from preflight.services.fleet_page.fleet_view import (
    chosen_run,
    fleet_view,
    links_view,
    moment,
    newest_only_notice,
    node_view,
    paginate,
    peers_in,
)
from preflight.services.fleet_page.history_queries import (
    Filters,
    WrongFilter,
    filters_of,
    read_account,
    read_faults,
    read_links,
    read_past,
    read_series,
    state_of_database,
)

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
    from uvicorn import Config

    from preflight.commands.history.account import Account

LOG = logging.getLogger("preflight.serve")

T = TypeVar("T")
#: Largest number of pages built at the same time; others wait within their deadline.
_AT_ONCE = 4
#: Delay of the answer to a wrong token, and the largest number of requests that may wait for it.
_WRONG_TOKEN_S, _WRONG_AT_ONCE = 1.0, 8
_MAX_FORM = 4 * MAX_LENGTH
_PAGE_STORIES = 50

POLICY = "; ".join(
    (
        "default-src 'none'",
        "style-src 'self'",
        "img-src data:",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Addresses contain the names of nodes.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class NotInHistory(Exception):
    """The history does not contain the requested item; the message names it."""


@dataclass
class FleetPage:
    """The handlers. `strangers`: requests for another host name are answered, which needs a token."""

    database: ReadOnlyHistory
    access: Access
    deadline_s: float = 10.0
    strangers: bool = False
    _turn: anyio.CapacityLimiter | None = None
    _wrong: int = 0
    _stories: dict[int, tuple[tuple[int, ...], Account]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def application(self) -> ASGIApp:
        """Return the application for an ASGI server."""
        routes = [
            Route("/", self._page(self._fleet)),
            Route("/node/{name:path}", self._page(self._node)),
            Route("/links", self._page(self._links)),
            Route("/stories", self._page(self._stories_page)),
            Route("/login", self._login_form, methods=["GET"]),
            Route("/login", self._login, methods=["POST"]),
            Route("/logout", self._logout, methods=["POST"]),
            Route("/health", self._health),
            Route("/static/{name}", self._static),
        ]
        handlers: Any = {HTTPException: self._http_error, Exception: self._crash}
        return _Guard(Starlette(routes=routes, exception_handlers=handlers), self)

    # --- pages ---

    def _page(self, make: Callable[[Connection, Filters, Request], bytes]) -> Callable[[Request], Awaitable[Response]]:
        """Return a handler that reads the database in a thread and answers with a page."""

        async def handle(request: Request) -> Response:
            if not self._allowed(request):
                target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
                return RedirectResponse(f"/login?next={quote(target, safe='')}", 303)
            try:
                filters = filters_of(request.query_params.multi_items())
                return _html(await self._in_thread(lambda: self._read(make, filters, request)))
            except WrongFilter as error:
                return self._message(request, 400, "Wrong address", "This page cannot be shown.", [f"{error}."])
            except NotInHistory as error:
                return self._message(request, 404, "Not found", "This item is not in the history.", [f"{error}."])
            except HistoryUnavailable as error:
                LOG.warning("%s", error)
                return self._unavailable(request, error)

        return handle

    async def _in_thread(self, work: Callable[[], T]) -> T:
        if self._turn is None:
            self._turn = anyio.CapacityLimiter(_AT_ONCE)
        # The thread ends by itself soon after the deadline, because the database ends its query.
        return await anyio.to_thread.run_sync(work, limiter=self._turn, abandon_on_cancel=True)

    def _read(self, make: Callable[[Connection, Filters, Request], bytes], filters: Filters, request: Request) -> bytes:
        with self.database.reading(self.deadline_s) as connection:
            if connection is None or state_of_database(connection)[0] == 0:
                return self._render(
                    request,
                    "message.html",
                    word="No runs yet",
                    sentence="The history is empty.",
                    lines=[
                        "No run has been stored yet. To store a run: `preflight nodes --hosts ... --history "
                        f"{self.database.label}`."
                    ],
                    tone="incomplete",
                )
            return make(connection, filters, request)

    def _fleet(self, connection: Connection, filters: Filters, request: Request) -> bytes:
        past, left_out = read_past(connection, filters.days)
        place = chosen_run(past, filters)
        if place is None:
            raise NotInHistory(f"run {filters.run} is not among the runs of the last {count(filters.days, 'day')}")
        faults = read_faults(connection, past.runs[place].id, filters.names)
        view = fleet_view(past, place, filters, faults, left_out)
        return self._render(request, "fleet.html", filters=filters, here="/", view=view, tone=view.kind)

    def _node(self, connection: Connection, filters: Filters, request: Request) -> bytes:
        name = request.path_params["name"]
        past, left_out = read_past(connection, filters.days)
        if name not in past.states:
            raise NotInHistory(f"no run of the last {count(filters.days, 'day')} examined the node {name[:255]!r}")
        peers = peers_in(past, name)
        series = read_series(connection, past, name, peers)
        view = node_view(past, name, series, peers, filters.page, left_out)
        links = Filters(hosts=name, days=filters.days)
        return self._render(
            request, "node.html", filters=filters, here="", view=view, tone=view.kind, links_query=links.query()
        )

    def _links(self, connection: Connection, filters: Filters, request: Request) -> bytes:
        past, left_out = read_past(connection, filters.days)
        quantity, choices, links = read_links(connection, past, filters.quantity, filters.names)
        if filters.quantity and quantity is None:
            raise NotInHistory(f"no link was measured by {filters.quantity[:100]!r}")
        view = links_view(past, quantity, links, filters.page) if quantity is not None and links else None
        notes = [newest_only_notice(len(past.runs), left_out)] if left_out else []
        return self._render(
            request,
            "links.html",
            filters=filters,
            here="/links",
            view=view,
            messages=notes,
            chosen=quantity.name if quantity is not None else "",
            quantities=[(item.name, item.title) for item in choices],
        )

    def _stories_page(self, connection: Connection, filters: Filters, request: Request) -> bytes:
        account = self._account(connection, filters.days)
        names = filters.names
        stories = [item for item in account.stories if names is None or names.intersection(item.nodes)]
        pages, page_stories = paginate(stories, filters.page, _PAGE_STORIES)
        shown = [
            {
                "kind": item.kind,
                "nodes": len(item.nodes),
                "names": fold_nodes(item.nodes),
                "message": f"{item.message[:1].upper()}{item.message[1:]}.",
                "since": f"{'Last failure' if item.kind == 'fails-again' else 'Since'} {item.since[:10]}"
                + (f"; {item.forecast}" if item.forecast else ""),
            }
            for item in page_stories
        ]
        return self._render(
            request, "stories.html", filters=filters, here="/stories", stories=shown, account=account, pages=pages
        )

    def _account(self, connection: Connection, days: int) -> Account:
        """Return the stories of the period, which are built once per state of the database."""
        state = state_of_database(connection)
        with self._lock:
            known = self._stories.get(days)
        if known is not None and known[0] == state:
            return known[1]
        account = read_account(connection, days, self.database.label)
        with self._lock:
            if len(self._stories) >= 8:
                self._stories.clear()
            self._stories[days] = (state, account)
        return account

    # --- access ---

    def _allowed(self, request: Request) -> bool:
        return self.access.allows(
            cookie=request.cookies.get(COOKIE, ""), authorization=request.headers.get("authorization", "")
        )

    def is_answered(self, request: Request) -> bool:
        """Return whether the request's host name is answered: without a token, only names of this machine are."""
        return self.strangers or is_own_name(request.headers.get("host", ""))

    async def refuse_guess(self, request: Request) -> Response | None:
        """Delay a request whose header contains a wrong token. Returns an error response if too many wait already."""
        is_guess = self.access.is_guess(
            cookie=request.cookies.get(COOKIE, ""), authorization=request.headers.get("authorization", "")
        )
        return await self._delay_guess(request) if is_guess else None

    async def _delay_guess(self, request: Request) -> Response | None:
        """Log a wrong token and wait. Returns an error response at once if too many wait already."""
        if self._wrong >= _WRONG_AT_ONCE:
            return self._message(request, 429, "Too many logins", "Try again in a few seconds.", [])
        self._wrong += 1
        try:
            await anyio.sleep(_WRONG_TOKEN_S)
        finally:
            self._wrong -= 1
        LOG.warning("a login with a wrong token from %s", request.client.host if request.client else "?")
        return None

    async def _login_form(self, request: Request) -> Response:
        if self._allowed(request):
            return RedirectResponse("/", 303)
        return self._form(request, _local_target(request.query_params.get("next", "/")))

    async def _login(self, request: Request) -> Response:
        try:
            body = await _body(request)
            form = parse_qs(body.decode("utf-8", "replace"), max_num_fields=4)
        except ValueError:
            return self._message(request, 400, "Wrong form", "This form does not belong to this page.", [])
        target = _local_target(form.get("next", ["/"])[0])
        if not self.access.is_token(form.get("token", [""])[0].strip()):
            return await self._delay_guess(request) or self._form(request, target, wrong=True)
        answer = RedirectResponse(target, 303)
        answer.set_cookie(
            COOKIE,
            self.access.new_session(),
            max_age=SESSION_S,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return answer

    async def _logout(self, request: Request) -> Response:
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(COOKIE)
        return answer

    def _form(self, request: Request, target: str, *, wrong: bool = False) -> Response:
        body = self._render(request, "login.html", next=target, wrong=wrong)
        return _html(body, 403 if wrong else 200)

    # --- the rest ---

    async def _health(self, request: Request) -> Response:
        """Return whether the database can be read. The response reveals no content, so it needs no login."""

        def look() -> None:
            with self.database.reading(self.deadline_s):
                pass

        try:
            await self._in_thread(look)
        except HistoryUnavailable as error:
            return PlainTextResponse(f"{error.kind}\n", 503)
        return PlainTextResponse("ok\n")

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in ("report.css", "fleet.css"):
            raise HTTPException(404)
        content = stylesheet() if name == "report.css" else static_text(name, __package__)
        return Response(content, media_type="text/css", headers={"cache-control": "max-age=3600"})

    async def _http_error(self, request: Request, error: HTTPException) -> Response:
        if error.status_code == 404:
            return self._message(request, 404, "Not found", "There is no such page.", ["The fleet is at `/`."])
        return self._message(request, error.status_code, str(error.status_code), f"{error.detail}.", [])

    async def _crash(self, request: Request, error: Exception) -> Response:
        LOG.error("a bug in preflight: %s", request.url.path, exc_info=error)
        return self._message(
            request, 500, "A bug in preflight", "This page could not be built.", ["See the server's log for details."]
        )

    def _unavailable(self, request: Request, error: HistoryUnavailable) -> Response:
        sentences = {
            "missing": "The history is missing.",
            "older": "The history is older than this preflight.",
            "newer": "The history is newer than this preflight.",
            "unreadable": "The history cannot be read at the moment.",
        }
        answer = self._message(request, 503, "No history", sentences[error.kind], [f"{error}."])
        answer.headers["retry-after"] = "30"
        return answer

    def too_late(self, scope: Scope) -> Response:
        """Return the response to a request that reached its deadline."""
        answer = self._message(
            Request(scope),
            503,
            "Too slow",
            f"This page took longer than {self.deadline_s:g} s.",
            ["Choose a shorter period, or try again when the database is less busy."],
        )
        answer.headers["retry-after"] = "30"
        return answer

    def stranger(self, scope: Scope) -> Response:
        """Return the response to a request for a host other than this machine."""
        return self._message(
            Request(scope),
            421,
            "Wrong host",
            "This server accepts only the names of this machine.",
            ["Without a token, use `http://127.0.0.1` or `http://localhost` with its port."],
        )

    def _message(self, request: Request, status: int, word: str, sentence: str, lines: list[str]) -> Response:
        body = self._render(request, "message.html", word=word, sentence=sentence, lines=lines, tone="incomplete")
        return _html(body, status)

    def _render(self, request: Request, template: str, **values: Any) -> bytes:
        filters: Filters | None = values.get("filters")
        allowed = self._allowed(request) and self.is_answered(request)
        common = {
            "filters": filters,
            "here": "",
            "tone": "none",
            # Visitors without access do not see the address of the history.
            "label": self.database.label if allowed else "",
            "signed_in": self.access.required and allowed,
            "version": __version__,
            # The filters that links to other pages keep.
            "carried": Filters(days=filters.days).query() if filters is not None else "",
            "moment": moment,
            "node_address": lambda name: f"/node/{quote(name, safe='')}",
        }
        text = environment(str(__package__)).get_template(template).render(**{**common, **values})
        return text.encode("utf-8", "replace")


class _Guard:
    """Puts a deadline on each request and our headers on each response; without a token it rejects other hosts."""

    def __init__(self, inner: ASGIApp, page: FleetPage) -> None:
        self._inner = inner
        self._page = page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an HTTP request; everything else is passed to the inner application."""
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        began = False

        async def guarded(message: Message) -> None:
            nonlocal began
            if message["type"] == "http.response.start":
                began = True
                given = {name for name, _ in message["headers"]}
                more = [
                    (name.encode(), value.encode())
                    for name, value in (*HEADERS.items(), ("cache-control", "no-store"))
                    if name.encode() not in given
                ]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        if not self._page.is_answered(Request(scope)):
            await self._page.stranger(scope)(scope, receive, guarded)
            return
        # Checked here, because every page reveals whether a token is right.
        refusal = await self._page.refuse_guess(Request(scope))
        if refusal is not None:
            await refusal(scope, receive, guarded)
            return
        with anyio.move_on_after(self._page.deadline_s) as limit:
            await self._inner(scope, receive, guarded)
        if limit.cancelled_caught and not began:
            LOG.warning("too slow: %s", scope["path"])
            await self._page.too_late(scope)(scope, receive, guarded)


async def _body(request: Request) -> bytes:
    """Return the body of a form. Raises ValueError if it is too long."""
    found = b""
    async for piece in request.stream():
        found += piece
        if len(found) > _MAX_FORM:
            raise ValueError("the form is too long")
    return found


def _local_target(target: str) -> str:
    """Return an address of this server for any target: a login must not lead elsewhere."""
    is_path = target.startswith("/") and not target.startswith("//") and "\\" not in target and target.isprintable()
    return target if is_path and len(target) < 4_000 else "/"


def _html(body: bytes, status: int = 200) -> Response:
    return Response(body, status, media_type="text/html")


_INSTALL = 'pip install "preflight-train[history,serve]"'
#: More connections than this are refused at once.
_MAX_CONNECTIONS = 128
_IDLE_S, _STOP_S = 15, 5


@dataclass(frozen=True, slots=True)
class Listening:
    """The address that the server listens on."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """Return its address for a browser."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}/"


def listening(text: str) -> Listening:
    """Parse `HOST:PORT`, `[IPV6]:PORT`, or `PORT` of the loopback address. Raises UsageError."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host else "127.0.0.1"
    if not (port.isascii() and port.isdecimal() and int(port) <= 65535):
        raise UsageError(f"--listen {text}: expected HOST:PORT, as in 127.0.0.1:8440")
    return Listening(host, int(port))


def serve(
    address: str, where: Listening, token: str, *, deadline_s: float, started: Callable[[Listening], None]
) -> None:
    """Serve the page until SIGINT or SIGTERM. Raises UsageError, also for a public address without a token."""
    if not token and not is_loopback(where.host):
        raise UsageError(
            f"--listen {where.host}:{where.port}: others could read the history; set a token with --token-file or "
            f"{VARIABLE}, or listen on 127.0.0.1"
        )
    try:
        import uvicorn

    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("uvicorn", "starlette", "h11"):
            raise
        raise UsageError(f"preflight serve needs packages that are not installed; run: {_INSTALL}") from None
    from preflight.commands.history.database import open_read_only

    database = open_read_only(address)
    try:
        # An unreadable history is reported now, not on the first page.
        with database.reading(deadline_s):
            pass
        page = FleetPage(database, Access(token), deadline_s=deadline_s, strangers=bool(token))
        with _bound(where) as listener:
            started(Listening(where.host, listener.getsockname()[1]))
            uvicorn.Server(uvicorn_config(page.application())).run(sockets=[listener])
    finally:
        database.close()


def uvicorn_config(application: ASGIApp) -> Config:
    """Return uvicorn's settings for our applications: no access log, few connections, no WebSocket."""
    import uvicorn

    from preflight.services.access import ImpatientProtocol

    return uvicorn.Config(
        application,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        http=ImpatientProtocol,
        ws="none",
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_keep_alive=_IDLE_S,
        timeout_graceful_shutdown=_STOP_S,
    )


def _bound(where: Listening) -> socket.socket:
    try:
        found = socket.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, place = found[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
            listener.listen(_MAX_CONNECTIONS)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise UsageError(f"--listen {where.host}:{where.port}: {error.strerror or error}") from None
    return listener
