"""What is refused, and what happens to an object that cannot be judged."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass, field

from preflight._util.suggest import similar_names
from preflight._util.usage_error import UsageError
from preflight.model.configuration import Configuration
from preflight.model.findings import Severity

#: The mildest finding that refuses an object; with `never` all findings are only warnings.
LEVELS = ("error", "warning", "never")
#: What happens to an object that cannot be judged.
ANSWERS = ("allow", "refuse")
#: An object in etcd has at most 1.5 MiB, and an update brings it twice.
MAX_BODY_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Policy:
    """How submitted objects are judged.

    Args:
        configuration: which rules run, how severe their findings are, and what is waived. Patterns of files match
            `NAMESPACE/KIND-NAME.yaml`.
        refuse_at: one of LEVELS, for namespaces that `namespaces` does not name.
        namespaces: patterns of namespaces with their own level; the first that matches counts.
        on_failure: one of ANSWERS, for an object that cannot be judged: no time, too many requests, a crash.
        on_too_large: one of ANSWERS, for a request above `max_body_bytes`.
        max_body_bytes: the largest request that is read.
        max_concurrent: requests that are judged at the same time, each in a process of its own.
        max_waiting: requests that wait for their turn; further ones are not judged.
        deadline_s: seconds for one request. The API server's own limit counts if it is shorter.
    """

    configuration: Configuration = field(default_factory=Configuration)
    refuse_at: str = "error"
    namespaces: tuple[tuple[str, str], ...] = ()
    on_failure: str = "allow"
    on_too_large: str = "allow"
    max_body_bytes: int = MAX_BODY_BYTES
    max_concurrent: int = 2
    max_waiting: int = 32
    deadline_s: float = 8.0

    def level(self, namespace: str) -> str:
        """The mildest severity that refuses an object of this namespace, or `never`."""
        for pattern, level in self.namespaces:
            if fnmatch.fnmatchcase(namespace, pattern):
                return level
        return self.refuse_at

    def refuses(self, severity: Severity, namespace: str) -> bool:
        """Whether a finding of this severity refuses an object of this namespace."""
        level = self.level(namespace)
        return (severity is Severity.ERROR and level != "never") or (
            severity is Severity.WARNING and level == "warning"
        )


def levels_of(values: Sequence[str], default: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Read `--refuse-at error` and `--refuse-at 'team-*=never'`.

    Raises:
        UsageError: a level is unknown, or there are two for every namespace.
    """
    general: list[str] = []
    namespaces: list[tuple[str, str]] = []
    for value in values:
        namespace, sign, level = value.rpartition("=")
        if level not in LEVELS or (sign and not namespace):
            near = similar_names(level.lower(), LEVELS)
            hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(LEVELS)}, or NAMESPACE=LEVEL"
            raise UsageError(f"--refuse-at {value}: {level!r} is not a level; {hint}")
        if sign:
            namespaces.append((namespace, level))
        else:
            general.append(level)
    if len(general) > 1:
        raise UsageError(f"--refuse-at {' and '.join(general)}: pass one level for all namespaces, and NAMESPACE=LEVEL")
    return (general[0] if general else default), tuple(namespaces)
