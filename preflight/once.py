"""Working out once what many checks ask of the same job or the same facts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from preflight.job import Scope
from preflight.recording import Facts

F = TypeVar("F", bound=Callable[..., Any])
_PLAIN = (str, int, float, bool, Scope, type(None))


def once(function: F) -> F:
    """Have a pure function work out its result once for the same arguments.

    The result lives as long as the facts among the arguments, or else as the first one, which is a job. Texts, numbers
    and scopes are the same when they are equal; everything else only when it is the very same object, which nobody may
    change. Neither may the result be changed: all callers get the same one. Keyword arguments are not remembered by.
    """

    @functools.wraps(function)
    def remembered(*args: Any) -> Any:
        owner = next((item for item in args if isinstance(item, Facts)), args[0])
        memory: dict[Any, Any] = owner.__dict__.setdefault("_once", {})
        key = (function, *[item if isinstance(item, _PLAIN) else id(item) for item in args])
        found = memory.get(key)
        if found is None:
            # The arguments are kept with it, so that no other object takes the number of one of them.
            found = memory[key] = (function(*args), args)
        return found[0]

    return cast(F, remembered)


def forget(owner: Any) -> None:
    """Let go of what was worked out for a job, which may outlive the facts it was worked out from, or for facts.

    What is remembered holds its owner, so that without this only the garbage collector would ever let go of either.
    """
    owner.__dict__.pop("_once", None)
