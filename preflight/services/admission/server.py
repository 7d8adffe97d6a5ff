"""Runs the webhook: TLS with a certificate that may change, and an orderly end."""

from __future__ import annotations

import contextlib
import os
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import anyio
import uvicorn

from preflight._util.usage_error import UsageError
from preflight.runner.signals import Terminated, termination_raises
from preflight.services.admission.webhook import Webhook, log_line
from preflight.services.http_protocol import ImpatientProtocol

#: Seconds between two looks at the files of the certificate.
_RELOAD_S = 2.0
#: Seconds until another try to start workers.
_RETRY_S = 2.0
#: Seconds that running requests have at the end.
_END_S = 10
#: Connections beyond this are answered with 503.
_MAX_CONNECTIONS = 256


@dataclass(frozen=True, slots=True)
class Certificate:
    """The files of a certificate with its chain, and of its key, both in PEM."""

    chain: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """The settings of TLS with this certificate.

        Raises:
            UsageError: the files cannot be used.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            self.load_into(context)
        except (OSError, ssl.SSLError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise UsageError(f"--certificate {self.chain}, --key {self.key}: they cannot be used: {reason}") from None
        return context

    def load_into(self, context: ssl.SSLContext) -> None:
        """Use the files as they are now for new connections; raises OSError or SSLError if they cannot be used."""
        # A key with a passphrase must not ask for it on a terminal.
        context.load_cert_chain(self.chain, self.key, password=lambda: b"")

    def state(self) -> tuple[tuple[int, int, int], ...]:
        """What changes when the files do; empty while one is missing."""
        try:
            found = [os.stat(path) for path in (self.chain, self.key)]  # noqa: PTH116
        except OSError:
            return ()
        # A mounted Secret changes by another link, and so to another file.
        return tuple((each.st_ino, each.st_mtime_ns, each.st_size) for each in found)


def serve(webhook: Webhook, host: str, port: int, certificate: Certificate) -> None:
    """Serve until a signal ends the process.

    Raises:
        UsageError: the certificate cannot be used, or the address cannot be listened on.
    """
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
                # Chain and key may be written one after the other: tried on a copy, again until they fit.
                certificate.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
                certificate.load_into(context)
            except (OSError, ssl.SSLError) as error:
                log_line(level="warning", event="certificate", problem=f"kept the old one: {error}")
                continue
            state = now
            webhook.metrics.certificate.set(time.time())
            log_line(level="info", event="certificate", problem="")

    async def start() -> None:
        while not webhook.is_ready:
            try:
                await webhook.workers.warm()
            except Exception as error:
                log_line(level="error", event="start", problem=f"no worker starts: {type(error).__name__}: {error}")
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
        # The server ends in order, and then raises the signal that ended it again.
        with termination_raises():
            uvicorn.Server(config).run()
    except (KeyboardInterrupt, Terminated):
        log_line(level="info", event="ended")
    except SystemExit:
        raise UsageError(f"--listen {host}:{port}: the address cannot be used") from None
    finally:
        webhook.workers.close()
