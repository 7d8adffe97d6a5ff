"""The webhook: requests of the API server over TLS, health, metrics with labels from fixed lists, and shutdown."""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import ssl
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

import anyio
import uvicorn
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.openmetrics import exposition
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as CONTENT_TYPE
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from preflight import __version__
from preflight._util.redaction import scrub
from preflight._util.usage_error import UsageError
from preflight.runner.supervisor import Terminated, termination_raises
from preflight.services.access import ImpatientProtocol
from preflight.services.admission.judgement import (
    InvalidReview,
    Judgement,
    Overloaded,
    Review,
    Workers,
    answer,
    not_judged,
    uid_in,
)
from preflight.sources.kubernetes.objects import GENERIC_KINDS, TRAINING_KINDS

#: Bounds in seconds, up to the longest timeout of a webhook.
_BUCKETS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_KINDS = TRAINING_KINDS | GENERIC_KINDS


class Metrics:
    """The counters of one process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        build = Gauge("preflight_build", "Version of preflight. Always 1.", ["version"], registry=self._registry)
        build.labels(__version__).set(1)
        self._reviews = Counter(
            "preflight_admission_reviews",
            "Answered requests by result: passed, warned, refused, undecided, not-judged, not-a-job, skipped.",
            ["kind", "result"],
            registry=self._registry,
        )
        self._findings = Counter(
            "preflight_admission_findings",
            "Findings in checked objects, by rule.",
            ["id", "severity"],
            registry=self._registry,
        )
        self._troubles = Counter(
            "preflight_admission_troubles",
            "Requests that were not checked, by reason: deadline, overloaded, too-large, invalid, crashed.",
            ["reason"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "preflight_admission_seconds",
            "Time from a request to its response.",
            unit="seconds",
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self.running = Gauge(
            "preflight_admission_running", "Requests that are being checked or are waiting.", registry=self._registry
        )
        self.certificate = Gauge(
            "preflight_admission_certificate_loaded_timestamp_seconds",
            "When the certificate in use was read, in seconds since the epoch.",
            registry=self._registry,
        )
        for reason in ("deadline", "overloaded", "too-large", "invalid", "crashed"):
            self._troubles.labels(reason)

    def count(self, kind: str, judgement: Judgement, seconds: float) -> None:
        self._reviews.labels(kind if kind in _KINDS else "other", judgement.result).inc()
        for rule, severity in judgement.findings:
            self._findings.labels(rule, severity).inc()
        self._seconds.observe(seconds)

    def count_trouble(self, reason: str) -> None:
        """Count a request that was not judged."""
        self._troubles.labels(reason).inc()

    def render(self) -> bytes:
        """Return all metrics as OpenMetrics text."""
        write: Callable[[CollectorRegistry], bytes] = exposition.generate_latest
        return write(self._registry)


__all__ = ["CONTENT_TYPE", "Metrics"]


#: Usable share of the API server's own limit; the rest is for the transfer of the response.
_SHARE = 0.8
_MIN_DEADLINE_S = 0.2
#: Largest number of characters of a name in a log line.
_MAX_LOGGED = 253


def log_line(**fields: object) -> None:
    """Write one line of JSON to standard error: a newline or escape sequence in a name stays inside its text."""
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    sys.stderr.write(json.dumps({"time": now, **fields}, ensure_ascii=True) + "\n")
    sys.stderr.flush()


@dataclass
class Webhook:
    """Answers requests.

    Args:
        log: receives one entry for each decision.
        path_token: the last part of the path of reviews, `/admit/TOKEN`, so that only the API server is answered;
            empty for `/admit`, which answers everybody. It is never logged.
    """

    workers: Workers
    metrics: Metrics = field(default_factory=Metrics)
    log: Callable[..., None] = log_line
    is_ready: bool = False
    path_token: str = field(default="", repr=False)

    def application(self) -> Starlette:
        """Return the application for an ASGI server."""
        return Starlette(
            routes=[
                Route("/admit/{token}" if self.path_token else "/admit", self._admit, methods=["POST"]),
                Route("/healthz", self._health, methods=["GET"]),
                Route("/readyz", self._ready, methods=["GET"]),
                Route("/metrics", self._metrics, methods=["GET"]),
            ]
        )

    async def _health(self, request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _ready(self, request: Request) -> Response:
        return PlainTextResponse("ok\n") if self.is_ready else PlainTextResponse("starting\n", status_code=503)

    async def _metrics(self, request: Request) -> Response:
        return Response(self.metrics.render(), media_type=CONTENT_TYPE)

    async def _admit(self, request: Request) -> Response:
        given = request.path_params.get("token", "")
        if not hmac.compare_digest(given.encode("utf-8", "surrogatepass"), self.path_token.encode()):
            return PlainTextResponse("Not Found", status_code=404)
        try:
            body, is_whole = await self._body(request)
        except ClientDisconnect:
            return PlainTextResponse("the request ended early\n", status_code=400)
        content = await self.answer(body, is_whole=is_whole, timeout=request.query_params.get("timeout", ""))
        if content is None:
            return PlainTextResponse("expected an AdmissionReview of admission.k8s.io/v1\n", status_code=400)
        return Response(content, media_type="application/json")

    async def _body(self, request: Request) -> tuple[bytes, bool]:
        """Return the body, or only its beginning if it is too large."""
        limit = self.workers.policy.max_body_bytes
        found = bytearray()
        with anyio.move_on_after(self.workers.policy.deadline_s):
            async for chunk in request.stream():
                found += chunk
                if len(found) > limit:
                    return bytes(found[:limit]), False
            return bytes(found), True
        raise ClientDisconnect

    async def answer(self, body: bytes, *, is_whole: bool = True, timeout: str = "") -> bytes | None:
        """Return the response to a body (`is_whole`: not cut) as JSON within `timeout` (`10s`); None if impossible."""
        started = time.monotonic()
        policy = self.workers.policy
        reason, trouble = "", ""
        review = Review("", "", "", "", "", {})
        judgement: Judgement | None = None
        self.metrics.running.inc()
        try:
            if not is_whole:
                trouble = "too-large"
                reason = f"the request has more than {policy.max_body_bytes} bytes"
            else:
                with anyio.fail_after(_deadline_s(policy.deadline_s, timeout)):
                    step = await self.workers.judge_body(body)
                review = step.review
                assert isinstance(step.result, Judgement)
                judgement = step.result
        except InvalidReview as error:
            trouble, reason = "invalid", str(error)
        except Overloaded:
            trouble, reason = "overloaded", "too many objects were submitted at the same time"
        except TimeoutError:
            trouble, reason = "deadline", "there was not enough time"
        except Exception as error:
            # Whatever the error is, the policy must decide the response.
            trouble, reason = "crashed", "its process ended without a result, which is a bug in preflight"
            self.log(level="error", event="crashed", error=scrub(f"{type(error).__name__}: {error}")[:2000])
        finally:
            self.metrics.running.dec()
        uid = review.uid or uid_in(body)
        if judgement is None:
            self.metrics.count_trouble(trouble)
            choice = policy.on_too_large if trouble == "too-large" else policy.on_failure
            judgement = not_judged(policy, reason, answer=choice)
        seconds = time.monotonic() - started
        self.metrics.count(review.kind, judgement, seconds)
        self._log_decision(uid, review, judgement, trouble, seconds)
        return answer(uid, judgement) if uid else None

    def _log_decision(self, uid: str, review: Review, judgement: Judgement, trouble: str, seconds: float) -> None:
        if judgement.result in ("skipped", "not-a-job"):
            return
        self.log(
            level="info" if not trouble else "warning",
            event="decision",
            uid=uid,
            operation=review.operation[:_MAX_LOGGED],
            kind=review.kind[:_MAX_LOGGED],
            namespace=review.namespace[:_MAX_LOGGED],
            name=review.name[:_MAX_LOGGED],
            allowed=judgement.allowed,
            result=judgement.result,
            rules=sorted({rule for rule, _ in judgement.findings}),
            trouble=trouble,
            milliseconds=round(seconds * 1000),
        )


def _deadline_s(own_s: float, timeout: str) -> float:
    """Return the shorter of our own limit and the usable share of the API server's limit."""
    number = timeout[:-1] if timeout.endswith("s") else ""
    if not number.isdecimal() or len(number) > 3:
        return own_s
    return max(_MIN_DEADLINE_S, min(own_s, int(number) * _SHARE))


#: Seconds between two checks of the certificate files.
_RELOAD_S = 2.0
#: Seconds until the next attempt to start workers.
_RETRY_S = 2.0
#: Grace period in seconds for running requests at shutdown.
_END_S = 10
#: Connections beyond this are answered with 503.
_MAX_CONNECTIONS = 256


@dataclass(frozen=True, slots=True)
class Certificate:
    """The files of a certificate with its chain, and of its key, both in PEM."""

    chain: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """Return the TLS settings with this certificate. Raises UsageError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            self.load_into(context)
        except (OSError, ssl.SSLError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise UsageError(f"--certificate {self.chain}, --key {self.key}: they cannot be used: {reason}") from None
        return context

    def load_into(self, context: ssl.SSLContext) -> None:
        """Use the present files for new connections; raises OSError or SSLError if they cannot be used."""
        # A key with a passphrase must not prompt for it on a terminal.
        context.load_cert_chain(self.chain, self.key, password=lambda: b"")

    def state(self) -> tuple[tuple[int, int, int], ...]:
        """Return a value that changes when the files change; empty while a file is missing."""
        try:
            found = [os.stat(path) for path in (self.chain, self.key)]  # noqa: PTH116
        except OSError:
            return ()
        # A mounted Secret changes by a new link, which leads to another file.
        return tuple((each.st_ino, each.st_mtime_ns, each.st_size) for each in found)


def serve(webhook: Webhook, host: str, port: int, certificate: Certificate) -> None:
    """Serve until a signal ends the process. Raises UsageError."""
    context = certificate.context()
    state = certificate.state()
    webhook.metrics.certificate.set(time.time())

    async def watch() -> None:
        nonlocal state
        while True:
            await anyio.sleep(_RELOAD_S)
            now = certificate.state()
            if not now or now == state:
                continue
            try:
                # Chain and key may be written one after the other: try them on a copy, until they fit.
                certificate.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
                certificate.load_into(context)
            except (OSError, ssl.SSLError) as error:
                log_line(level="warning", event="certificate", problem=f"the old certificate is still used: {error}")
                continue
            state = now
            webhook.metrics.certificate.set(time.time())
            log_line(level="info", event="certificate", problem="")

    async def start() -> None:
        while not webhook.is_ready:
            try:
                await webhook.workers.warm()
            except Exception as error:
                log_line(
                    level="error", event="start", problem=f"no worker could be started: {type(error).__name__}: {error}"
                )
                await anyio.sleep(_RETRY_S)
                continue
            webhook.is_ready = True
            log_line(level="info", event="ready", host=host, port=port)

    application = webhook.application()

    @contextlib.asynccontextmanager
    async def lifespan(app: object) -> AsyncIterator[None]:
        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            group.start_soon(start)
            yield
            group.cancel_scope.cancel()

    application.router.lifespan_context = lifespan
    config = uvicorn.Config(
        application,
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_graceful_shutdown=_END_S,
        lifespan="on",
        http=ImpatientProtocol,
        ws="none",
    )
    config.load()
    config.ssl = context
    try:
        # The server shuts down in order, and then raises the signal again.

        with termination_raises():
            uvicorn.Server(config).run()
    except (KeyboardInterrupt, Terminated):
        log_line(level="info", event="ended")
    except SystemExit:
        raise UsageError(f"--listen {host}:{port}: the address cannot be used") from None
    finally:
        webhook.workers.close()
