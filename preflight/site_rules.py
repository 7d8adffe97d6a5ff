"""Rules that a site writes down in a TOML file: conditions over what the files say, and no code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, Literal

from preflight.configuration import Condition, SiteRule
from preflight.job.quantities import QUANTITIES
from preflight.lazy.dataclasses import dataclass
from preflight.settings import SPELLED, Problem
from preflight.site_tests import Tested, problems_of, tests_of

#: What of a launch can be asked for.
LAUNCH = ("launcher", "program", "wrappers", "arguments")


@dataclass(frozen=True, slots=True)
class When(Tested):
    """A value, and what it has to be for the rule to speak."""

    __pydantic_config__: ClassVar[Any] = SPELLED

    quantity: Annotated[str | None, "A quantity that the files state; `preflight quantities` lists them."] = None
    env: Annotated[str | None, "An environment variable of the ranks."] = None
    launch: Annotated[
        Literal["launcher", "program", "wrappers", "arguments"] | None, "A part of the line that starts ranks."
    ] = None


@dataclass(frozen=True, slots=True)
class Rule(When):
    """A rule of a site."""

    __pydantic_config__: ClassVar[Any] = SPELLED

    id: Annotated[str, "Three capital letters of your own and three digits: ACM001."] = ""
    name: Annotated[str, "The fault in lower-case words: too-many-nodes."] = ""
    message: Annotated[str, "What is wrong, in a sentence."] = ""
    remedy: Annotated[str, "What to do, in a sentence."] = ""
    evidence: Annotated[str, "Where that is laid down: an address."] = ""
    severity: Annotated[Literal["error", "warning", "info"], "How bad it is; without it, warning."] = "warning"
    when: Annotated[list[When], "The rule speaks only where all of these hold."] = field(default_factory=list)


def problems(item: Rule, path: tuple[str | int, ...]) -> Iterator[Problem]:
    """What is wrong with the rule at `path` of a document, beyond what its types tell."""
    yield from _problems_of(item, path)
    for m, when in enumerate(item.when):
        yield from _problems_of(when, (*path, "when", m))


def _problems_of(item: When, path: tuple[str | int, ...]) -> Iterator[Problem]:
    about = [key for key in ("quantity", "env", "launch") if getattr(item, key) is not None]
    if len(about) != 1:
        said = " and ".join(about) if about else "none"
        yield Problem(path, f"one of quantity, env and launch says what it is about; here it is {said}", at_value=False)
    yield from problems_of(item, path)
    if item.quantity is not None and item.quantity not in QUANTITIES:
        near = get_close_matches(item.quantity, QUANTITIES, n=1)
        hint = f"did you mean {near[0]}?" if near else "`preflight quantities` lists them"
        yield Problem((*path, "quantity"), f"there is no quantity {item.quantity!r}; {hint}")


def made(item: Rule, file: str) -> SiteRule:
    """The rule as a configuration keeps it."""
    return SiteRule(
        item.id,
        item.name,
        item.severity,
        item.message.strip(),
        item.remedy.strip(),
        item.evidence.strip(),
        _condition(item),
        tuple(_condition(when) for when in item.when),
        file,
    )


def _condition(item: When) -> Condition:
    about = next(key for key in ("quantity", "env", "launch") if getattr(item, key) is not None)
    return Condition(about, str(getattr(item, about)), tests_of(item))
