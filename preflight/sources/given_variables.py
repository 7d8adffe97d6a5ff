"""Assumptions about the environment from which a job is submitted.

Variables that the user sets for a run (`--set NNODES=4`) have these values. Others are unknown; a plan may assume that
they are not set, so that `${NNODES:-2}` has its default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

from preflight._util.redaction import redact, secret_pieces
from preflight._util.secret_names import is_plain, is_secret
from preflight.model.job import Known, Span
from preflight.sources.base import Variable

_VARIABLES: ContextVar[Mapping[str, str]] = ContextVar("given", default=MappingProxyType({}))
#: Variables assumed not to be set, each with its default; None if nothing is assumed.
_ASSUMED: ContextVar[dict[str, str] | None] = ContextVar("assumed", default=None)


@contextmanager
def set_variables(variables: Mapping[str, str]) -> Iterator[None]:
    """Set these variables in the environment of scripts that are read inside the block."""
    token = _VARIABLES.set(dict(variables))
    try:
        yield
    finally:
        _VARIABLES.reset(token)


def given_variables(path: str) -> dict[str, Variable]:
    """The variables that a script starts with."""
    place = Span(path, 1, 1, 1, 1)
    return {
        name: Variable(name, Known(value), place, f"--set {name}={redact(name, value)}")
        for name, value in _VARIABLES.get().items()
    }


def given_secrets() -> frozenset[str]:
    """The secrets among the variables, as `secret_pieces` of each: because a script may have used them anywhere."""
    named = (value for name, value in _VARIABLES.get().items() if is_secret(name) and not is_plain(name, value))
    return frozenset(piece for value in named for piece in secret_pieces(value))


@contextmanager
def defaults_assumed() -> Iterator[dict[str, str]]:
    """Treat variables that no script assigns as unset if the script has a default; yields the assumptions."""
    assumed: dict[str, str] = {}
    token = _ASSUMED.set(assumed)
    try:
        yield assumed
    finally:
        _ASSUMED.reset(token)


def assume_not_set(name: str, default: str) -> bool:
    """Whether a variable that the caller may set is treated as unset; records the assumption."""
    assumed = _ASSUMED.get()
    if assumed is None:
        return False
    assumed.setdefault(name, default)
    return True
