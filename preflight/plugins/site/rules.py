"""Rules that a site defines in a TOML file: conditions on the files' claims, without code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from preflight._util.schema_problems import HYPHENATED, Problem
from preflight._util.suggest import similar_names
from preflight.model.configuration import Condition, SiteRule
from preflight.model.job.quantities import QUANTITIES
from preflight.plugins.site.conditions import Requirements, problems_of, tests_of

#: The parts of a launch that can be tested.
LAUNCH = ("launcher", "program", "wrappers", "arguments")


@dataclass(frozen=True, slots=True)
class When(Requirements):
    """A value, and the requirements on it for the rule to apply."""

    __pydantic_config__: ClassVar[Any] = HYPHENATED

    quantity: Annotated[str | None, "A quantity that the files state; `preflight quantities` lists them."] = None
    env: Annotated[str | None, "An environment variable of the ranks."] = None
    launch: Annotated[
        Literal["launcher", "program", "wrappers", "arguments"] | None, "A part of the line that starts ranks."
    ] = None


@dataclass(frozen=True, slots=True)
class Rule(When):
    """A rule of a site."""

    __pydantic_config__: ClassVar[Any] = HYPHENATED

    id: Annotated[str, "Three capital letters of your own and three digits: ACM001."] = ""
    name: Annotated[str, "The fault in lower-case words: too-many-nodes."] = ""
    message: Annotated[str, "What is wrong, in a sentence."] = ""
    remedy: Annotated[str, "What to do, in a sentence."] = ""
    evidence: Annotated[str, "Address of the document that requires it."] = ""
    severity: Annotated[Literal["error", "warning", "info"], "Severity of its findings. Default: warning."] = "warning"
    when: Annotated[list[When], "The rule applies only if all of these hold."] = field(default_factory=list)


def problems(item: Rule, path: tuple[str | int, ...]) -> Iterator[Problem]:
    """The errors of the rule at `path` of a document that its types cannot express."""
    yield from _problems_of(item, path)
    for m, when in enumerate(item.when):
        yield from _problems_of(when, (*path, "when", m))


def _problems_of(item: When, path: tuple[str | int, ...]) -> Iterator[Problem]:
    about = [key for key in ("quantity", "env", "launch") if getattr(item, key) is not None]
    if len(about) != 1:
        subjects = " and ".join(about) if about else "none"
        yield Problem(path, f"expected exactly one of quantity, env and launch, not {subjects}", at_value=False)
    yield from problems_of(item, path)
    if item.quantity is not None and item.quantity not in QUANTITIES:
        near = similar_names(item.quantity, QUANTITIES)
        hint = f"did you mean {near[0]}?" if near else "`preflight quantities` lists them"
        yield Problem((*path, "quantity"), f"unknown quantity {item.quantity!r}; {hint}")


def to_configuration(item: Rule, file: str) -> SiteRule:
    """The rule in the form of a configuration."""
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
