"""What the webhook counts, as OpenMetrics. No label is taken from an object: their values come from fixed lists."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.openmetrics import exposition
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as CONTENT_TYPE

from preflight import __version__
from preflight.services.admission.judgement import Judgement
from preflight.sources.kubernetes.objects import GENERIC_KINDS, TRAINING_KINDS

#: In seconds, up to the longest timeout of a webhook.
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
            "Findings of judged objects, by rule.",
            ["id", "severity"],
            registry=self._registry,
        )
        self._troubles = Counter(
            "preflight_admission_troubles",
            "Requests that were not judged, by reason: deadline, overloaded, too-large, invalid, crashed.",
            ["reason"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "preflight_admission_seconds",
            "Time from a request to its answer.",
            unit="seconds",
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self.running = Gauge(
            "preflight_admission_running", "Requests that are being judged or wait.", registry=self._registry
        )
        self.certificate = Gauge(
            "preflight_admission_certificate_loaded_timestamp_seconds",
            "When the certificate in use was read, in seconds since the epoch.",
            registry=self._registry,
        )
        for reason in ("deadline", "overloaded", "too-large", "invalid", "crashed"):
            self._troubles.labels(reason)

    def count(self, kind: str, judgement: Judgement, seconds: float) -> None:
        """Count one answer."""
        self._reviews.labels(kind if kind in _KINDS else "other", judgement.result).inc()
        for rule, severity in judgement.findings:
            self._findings.labels(rule, severity).inc()
        self._seconds.observe(seconds)

    def count_trouble(self, reason: str) -> None:
        """Count a request that was not judged."""
        self._troubles.labels(reason).inc()

    def render(self) -> bytes:
        """All metrics as OpenMetrics text."""
        write: Callable[[CollectorRegistry], bytes] = exposition.generate_latest
        return write(self._registry)


__all__ = ["CONTENT_TYPE", "Metrics"]
