"""Caches results that many checks compute from the same job or the same facts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from preflight.model.job import Scope
from preflight.model.recording import Facts

F = TypeVar("F", bound=Callable[..., Any])
_PLAIN = (str, int, float, bool, Scope, type(None))


def memoize(function: F) -> F:
    """Cache a pure function's result for the same arguments.

    The result lives as long as the facts among the arguments, otherwise as the first argument, which is a job. Strings,
    numbers and scopes are compared by value; everything else is compared by identity and must not be changed. The
    result must not be changed either: all callers get the same object. Keyword arguments are not part of the key.
    """

    @functools.wraps(function)
    def remembered(*args: Any) -> Any:
        owner = next((item for item in args if isinstance(item, Facts)), args[0])
        memory: dict[Any, Any] = owner.__dict__.setdefault("_memo", {})
        key = (function, *[item if isinstance(item, _PLAIN) else id(item) for item in args])
        found = memory.get(key)
        if found is None:
            # The arguments are stored with it, so that no other object can reuse the id of one of them.
            found = memory[key] = (function(*args), args)
        return found[0]

    return cast(F, remembered)


def clear_memo(owner: Any) -> None:
    """Release the cached results for a job, which may outlive the facts they were computed from, or for facts.

    A cached result refers to its owner, so otherwise only the garbage collector could release them.
    """
    owner.__dict__.pop("_memo", None)
