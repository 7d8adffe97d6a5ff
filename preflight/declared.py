"""Judging by a site's declared rules: each becomes a rule like any other.

What the files leave open stays unknown: a value that only run time can tell, and a claim that holds in one branch
only, are never a fault. A fault needs every alternative to break the rule.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

from preflight.comparing import answer, plain, spoken
from preflight.configuration import Condition, SiteRule
from preflight.job import (
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
from preflight.judgement import Rule, Verdict, failed, not_applicable, passed, rule, unknown
from preflight.outcome import Severity

_LONGEST_SHOWN = 80


def rules_of(site_rules: Iterable[SiteRule]) -> tuple[Rule, ...]:
    """The rules that the site declared, as they take part in a run."""
    return tuple(_made(item) for item in site_rules)


def _made(item: SiteRule) -> Rule:
    def judge(job: Job) -> Iterator[Verdict]:
        return _judged(item, job)

    judge.__doc__ = _doc(item)
    decorate = rule(
        item.id, item.name, severity=Severity(item.severity), profile="gate", stage="stable", evidence=(item.evidence,)
    )
    return decorate(judge)


def _doc(item: SiteRule) -> str:
    """What `preflight explain` says of it, under the headings of every rule."""
    where = "; ".join(_spoken(condition) for condition in item.when)
    checks = _spoken(item.condition) + (f", where {where}" if where else "")
    paragraphs = (
        item.message,
        f"What it checks:\n    {checks}.",
        f"Why it matters:\n    This site laid it down in {item.file or 'its rules'}.",
        "Example:\n    None is given.",
        f"Fix:\n    {item.remedy}",
        "Known limits:\n    What the files leave open is unknown.",
        f"Evidence:\n    {item.evidence}",
    )
    return "\n\n".join(paragraphs)


def _spoken(condition: Condition) -> str:
    """`nodes: at most 16`."""
    return f"{condition.name}: {spoken(condition.tests)}"


def _judged(item: SiteRule, job: Job) -> Iterator[Verdict]:
    subjects: list[tuple[str, Scope, Launch | None]] = [(launch.id, launch.scope, launch) for launch in job.launches]
    met = False
    for subject, scope, launch in subjects or [(job.name, WHOLE_JOB, None)]:
        holds = [_holds(condition, job, scope, launch) for condition in item.when]
        if any(answer is False for answer in holds):
            continue
        verdict = _verdict(item, job, subject, scope, launch)
        if verdict is None:
            continue
        met = True
        if None in holds and verdict.status.value == "fail":
            yield unknown(subject, "whether the rule speaks of it depends on what the files leave open")
        else:
            yield verdict
    if not met:
        yield not_applicable(job.name, f"nothing says {item.condition.name}, or the rule speaks of other jobs")


class _Seen:
    """What the files say of one value: the claims about it, or the part of the launch, and what it comes to."""

    def __init__(self, condition: Condition, job: Job, scope: Scope, launch: Launch | None) -> None:
        self.claims: tuple[Claim, ...] = ()
        self.at: Claim | Span | None = None
        self.said = False
        self.value: Value = Unresolved(f"nothing says {condition.name}")
        if condition.about == "launch":
            if launch is not None:
                self._of_launch(condition.name, launch)
            return
        quantity = condition.name if condition.about == "quantity" else f"env.{condition.name}"
        self.claims = job.setting(quantity, scope) or job.requiring(quantity, scope)
        self.said = bool(self.claims)
        if self.claims:
            self.at = self.claims[0]
            self.value = join(claim.value for claim in self.claims)
            branch = next((c.condition for c in self.claims if not _surely_holds(c, launch)), "")
            if branch and not isinstance(self.value, Unresolved):
                self.value = Unresolved(f"the branch `{' '.join(branch.split())[:80]}`")

    def _of_launch(self, name: str, launch: Launch) -> None:
        self.at = launch.span
        if name == "arguments":
            self.said = bool(launch.arguments)
            words = tuple(word for word in launch.arguments if word is not None)
            # What could not be told among them may be anything.
            self.value = Known(words) if len(words) == len(launch.arguments) else Unresolved("the program's arguments")
            return
        value: Plain = (
            launch.wrappers if name == "wrappers" else launch.program if name == "program" else launch.launcher
        )
        self.said = bool(value)
        self.value = Known(value) if value or name == "wrappers" else Unresolved(f"the {name} is not known")


def _surely_holds(claim: Claim, launch: Launch | None) -> bool:
    condition = claim.condition
    if not condition or (launch is not None and condition == launch.condition):
        return True
    # `if __name__ == "__main__":` is how a script starts, not a branch.
    return "__name__" in condition and " and " not in condition


def _holds(condition: Condition, job: Job, scope: Scope, launch: Launch | None) -> bool | None:
    """Whether a condition surely holds or surely does not; None where the files leave it open."""
    seen = _Seen(condition, job, scope, launch)
    kinds = {test.kind for test in condition.tests}
    if kinds & {"required", "forbidden"}:
        return seen.said == ("required" in kinds)
    if not seen.said:
        return False
    answers = [answer(condition.tests, value) for value in alternatives(seen.value)]
    if not answers or None in answers or len(set(answers)) > 1:
        return None
    return answers[0]


def _verdict(item: SiteRule, job: Job, subject: str, scope: Scope, launch: Launch | None) -> Verdict | None:
    condition = item.condition
    seen = _Seen(condition, job, scope, launch)
    kinds = {test.kind for test in condition.tests}
    fault = functools.partial(failed, subject, remedy=item.remedy)
    if "required" in kinds:
        if seen.said:
            return passed(subject)
        place = launch.span if launch is not None else next((_top(file.path) for file in job.files), None)
        said = f"{condition.name} is said nowhere in these files. {item.message}"
        return fault(said, at=place) if place is not None else None
    if not seen.said or seen.at is None:
        return None
    if "forbidden" in kinds:
        return fault(f"{_shown(seen)} is not to be set here. {item.message}", at=seen.at, also=seen.claims[1:])
    if isinstance(seen.value, Unresolved):
        return unknown(subject, f"{condition.name} is left open: {seen.value.why}", at=seen.at)
    answers = [answer(condition.tests, value) for value in alternatives(seen.value)]
    if all(answer is False for answer in answers):
        expected = spoken(condition.tests)
        said = f"{_shown(seen)}; expected of {condition.name}: {expected}. {item.message}"
        return fault(said, at=seen.at, also=seen.claims[1:])
    if any(answer is None for answer in answers):
        return unknown(subject, f"{_shown(seen)} cannot be compared with what the rule asks for", at=seen.at)
    return passed(subject)


def _shown(seen: _Seen) -> str:
    """What the user wrote, with what it comes to behind it where that does not show."""
    values = " or ".join(plain(value) for value in alternatives(seen.value))
    if not seen.claims:
        return f"`{_short(values)}`"
    spelling = _short(" ".join(seen.claims[0].spelling.split()))
    return f"`{spelling}`" + (f" ({_short(values)})" if values and values not in spelling else "")


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"


def _top(path: str) -> Span:
    return Span(path, 1, 1, 1, 1)
