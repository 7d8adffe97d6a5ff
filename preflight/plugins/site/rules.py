"""Rules that a site defines in a TOML file, and their judgement of a job. No code.

Values that the files do not determine stay unknown: a value known only at run time, and a claim that holds in only one
branch, are never a fault. A fault needs every alternative to break the rule.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from preflight._util.usage_error import similar_names
from preflight._util.validation import HYPHENATED, Problem
from preflight.model.configuration import Condition, SiteRule
from preflight.model.findings import Severity
from preflight.model.job import (
    WHOLE_JOB,
    Claim,
    Job,
    Known,
    Launch,
    Plain,
    Scope,
    Span,
    Unresolved,
    Value,
    alternatives,
    join,
)
from preflight.model.job.value import QUANTITIES
from preflight.plugins.authoring import Rule as PluginRule
from preflight.plugins.authoring import Verdict, failed, not_applicable, passed, rule, unknown
from preflight.plugins.claim_text import definitely_holds
from preflight.plugins.site.conditions import Requirements, format_tests, passes_all, plain, problems_of, tests_of

#: The parts of a launch that can be tested.
LAUNCH = ("launcher", "program", "wrappers", "arguments")


@dataclass(frozen=True, slots=True)
class When(Requirements):
    """A value, and the requirements on it for the rule to apply."""

    __pydantic_config__: ClassVar[Any] = HYPHENATED

    quantity: Annotated[str | None, "A quantity that the files can give; `preflight quantities` lists them."] = None
    env: Annotated[str | None, "An environment variable of the ranks."] = None
    launch: Annotated[
        Literal["launcher", "program", "wrappers", "arguments"] | None, "A part of the command line that starts ranks."
    ] = None


@dataclass(frozen=True, slots=True)
class Rule(When):
    """A rule of a site."""

    __pydantic_config__: ClassVar[Any] = HYPHENATED

    id: Annotated[str, "Three capital letters of your choice and three digits: ACM001."] = ""
    name: Annotated[str, "The fault, in lower-case words: too-many-nodes."] = ""
    message: Annotated[str, "What is wrong, in a sentence."] = ""
    remedy: Annotated[str, "What to do, in a sentence."] = ""
    evidence: Annotated[str, "URL of the document that states the requirement."] = ""
    severity: Annotated[Literal["error", "warning", "info"], "Severity of its findings. Default: warning."] = "warning"
    when: Annotated[list[When], "The rule applies only if all of these hold."] = field(default_factory=list)


def problems(item: Rule, path: tuple[str | int, ...]) -> Iterator[Problem]:
    """Yield the errors of the rule at `path` of a document that its types cannot express."""
    yield from _problems_of(item, path)
    for index, when in enumerate(item.when):
        yield from _problems_of(when, (*path, "when", index))


def _problems_of(item: When, path: tuple[str | int, ...]) -> Iterator[Problem]:
    value_kinds = [key for key in ("quantity", "env", "launch") if getattr(item, key) is not None]
    if len(value_kinds) != 1:
        kinds_text = " and ".join(value_kinds) if value_kinds else "none"
        yield Problem(path, f"expected exactly one of quantity, env and launch, not {kinds_text}", at_value=False)
    yield from problems_of(item, path)
    if item.quantity is not None and item.quantity not in QUANTITIES:
        similar = similar_names(item.quantity, QUANTITIES)
        hint = f"did you mean {similar[0]}?" if similar else "`preflight quantities` lists them"
        yield Problem((*path, "quantity"), f"unknown quantity {item.quantity!r}; {hint}")


def to_configuration(item: Rule, file: str) -> SiteRule:
    """Return the rule in the form of a configuration."""
    return SiteRule(
        item.id,
        item.name,
        item.severity,
        item.message.strip(),
        item.remedy.strip(),
        item.evidence.strip(),
        _to_condition(item),
        tuple(_to_condition(when) for when in item.when),
        file,
    )


def _to_condition(item: When) -> Condition:
    about = next(key for key in ("quantity", "env", "launch") if getattr(item, key) is not None)
    return Condition(about, str(getattr(item, about)), tests_of(item))


_MAX_SHOWN_LENGTH = 80


def rules_of(site_rules: Iterable[SiteRule]) -> tuple[PluginRule, ...]:
    """Return the rules that the site declared, in the form that a run uses."""
    return tuple(_build_rule(item) for item in site_rules)


def _build_rule(item: SiteRule) -> PluginRule:
    def judge(job: Job) -> Iterator[Verdict]:
        return _judge(item, job)

    judge.__doc__ = _docstring(item)
    return rule(
        item.id, item.name, severity=Severity(item.severity), profile="gate", stage="stable", evidence=(item.evidence,)
    )(judge)


def _docstring(item: SiteRule) -> str:
    """Return the text of `preflight explain`, under the headings of every rule."""
    conditions_text = "; ".join(_format_condition(condition) for condition in item.when)
    requirement_text = _format_condition(item.condition) + (f", where {conditions_text}" if conditions_text else "")
    paragraphs = (
        item.message,
        f"What it checks:\n    {requirement_text}.",
        f"Why it matters:\n    This site requires it in {item.file or 'its rules'}.",
        "Example:\n    None.",
        f"Fix:\n    {item.remedy}",
        "Known limits:\n    Values that the files do not determine are unknown.",
    )
    return "\n\n".join(paragraphs)


def _format_condition(condition: Condition) -> str:
    """Return a condition as text: `nodes: at most 16`."""
    return f"{condition.name}: {format_tests(condition.tests)}"


def _judge(item: SiteRule, job: Job) -> Iterator[Verdict]:
    subjects: list[tuple[str, Scope, Launch | None]] = [(launch.id, launch.scope, launch) for launch in job.launches]
    has_verdict = False
    for subject, scope, launch in subjects or [(job.name, WHOLE_JOB, None)]:
        condition_results = [_is_met(condition, job, scope, launch) for condition in item.when]
        if any(passed is False for passed in condition_results):
            continue
        verdict = _verdict(item, job, subject, scope, launch)
        if verdict is None:
            continue
        has_verdict = True
        if None in condition_results and verdict.status.value == "fail":
            yield unknown(subject, "whether the rule applies depends on values that the files do not determine")
        else:
            yield verdict
    if not has_verdict:
        yield not_applicable(
            job.name, f"the files do not give {item.condition.name}, or the rule applies to other jobs"
        )


class _FileValue:
    """One value of the files: its claims or its part of the launch, its location, and the combined value."""

    def __init__(self, condition: Condition, job: Job, scope: Scope, launch: Launch | None) -> None:
        self.claims: tuple[Claim, ...] = ()
        self.at: Claim | Span | None = None
        self.stated = False
        self.value: Value = Unresolved(f"the files do not give {condition.name}")
        if condition.about == "launch":
            if launch is not None:
                self._launch_value(condition.name, launch)
            return
        quantity = condition.name if condition.about == "quantity" else f"env.{condition.name}"
        self.claims = job.setting(quantity, scope) or job.requirement_claims(quantity, scope)
        self.stated = bool(self.claims)
        if self.claims:
            self.at = self.claims[0]
            self.value = join(claim.value for claim in self.claims)
            branch = next((c.condition for c in self.claims if not definitely_holds(c, launch)), "")
            if branch and not isinstance(self.value, Unresolved):
                self.value = Unresolved(f"the branch `{' '.join(branch.split())[:80]}`")

    def _launch_value(self, name: str, launch: Launch) -> None:
        self.at = launch.span
        if name == "arguments":
            self.stated = bool(launch.arguments)
            words = tuple(word for word in launch.arguments if word is not None)
            # An unknown argument may have any value.
            self.value = Known(words) if len(words) == len(launch.arguments) else Unresolved("the program's arguments")
            return
        value: Plain = (
            launch.wrappers if name == "wrappers" else launch.program if name == "program" else launch.launcher
        )
        self.stated = bool(value)
        self.value = Known(value) if value or name == "wrappers" else Unresolved(f"the {name} is unknown")


def _is_met(condition: Condition, job: Job, scope: Scope, launch: Launch | None) -> bool | None:
    """Return whether a condition certainly holds or certainly does not; None if the files do not determine it."""
    file_value = _FileValue(condition, job, scope, launch)
    kinds = {test.kind for test in condition.tests}
    if kinds & {"required", "forbidden"}:
        return file_value.stated == ("required" in kinds)
    if not file_value.stated:
        return False
    results = [passes_all(condition.tests, value) for value in alternatives(file_value.value)]
    if not results or None in results or len(set(results)) > 1:
        return None
    return results[0]


def _verdict(item: SiteRule, job: Job, subject: str, scope: Scope, launch: Launch | None) -> Verdict | None:
    condition = item.condition
    file_value = _FileValue(condition, job, scope, launch)
    kinds = {test.kind for test in condition.tests}
    fail_with = functools.partial(failed, subject, remedy=item.remedy)
    if "required" in kinds:
        if file_value.stated:
            return passed(subject)
        location = (
            launch.span if launch is not None else next((Span(file.path, 1, 1, 1, 1) for file in job.files), None)
        )
        message = f"these files do not give {condition.name}. {item.message}"
        return fail_with(message, at=location) if location is not None else None
    if not file_value.stated or file_value.at is None:
        return None
    if "forbidden" in kinds:
        return fail_with(
            f"{_format_value(file_value)} must not be set here. {item.message}",
            at=file_value.at,
            also=file_value.claims[1:],
        )
    if isinstance(file_value.value, Unresolved):
        return unknown(subject, f"{condition.name} is not determined: {file_value.value.why}", at=file_value.at)
    results = [passes_all(condition.tests, value) for value in alternatives(file_value.value)]
    if all(passed is False for passed in results):
        expected = format_tests(condition.tests)
        message = f"{_format_value(file_value)}; expected {condition.name}: {expected}. {item.message}"
        return fail_with(message, at=file_value.at, also=file_value.claims[1:])
    if any(passed is None for passed in results):
        return unknown(
            subject, f"{_format_value(file_value)} cannot be compared with the rule's value", at=file_value.at
        )
    return passed(subject)


def _format_value(file_value: _FileValue) -> str:
    """Return the user's text, followed by the value if the text does not contain it."""
    values = " or ".join(plain(value) for value in alternatives(file_value.value))
    if not file_value.claims:
        return f"`{_shorten(values)}`"
    spelling = _shorten(" ".join(file_value.claims[0].spelling.split()))
    return f"`{spelling}`" + (f" ({_shorten(values)})" if values and values not in spelling else "")


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN_LENGTH else text[: _MAX_SHOWN_LENGTH - 1] + "…"
