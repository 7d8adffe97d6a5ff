"""What the user chose that a verdict depends on; it is part of every recording, so that `judge` chooses the same."""

from __future__ import annotations

from preflight.job import Span
from preflight.job.value import Scalar
from preflight.lazy.dataclasses import dataclass
from preflight.outcome import PROFILES, Severity


@dataclass(frozen=True, slots=True)
class SeverityChoice:
    """How bad findings of a rule, check or area are at this site. `name` is an id, a name or an area.

    Args:
        severity: `error`, `warning` or `info`.
    """

    name: str
    severity: str


@dataclass(frozen=True, slots=True)
class FileIgnores:
    """Rules that do not count in files that a pattern (as in `.gitignore`) matches.

    Args:
        pattern: as in `.gitignore`.
        names: ids, names or areas.
    """

    pattern: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Waiver:
    """One rule or check that this site accepts for a reason, in some files or on some nodes, until a day.

    Args:
        rule: id or name.
        paths: patterns as in `.gitignore`; without any, wherever it is found.
        hosts: names or ranges (`node[1-4]`); without any, on every node.
        expires: the last day (ISO 8601) on which it holds; empty = for good.
        at: where the configuration file says so.
        reason: why it is accepted.
        owner: who answers for it.
    """

    rule: str
    reason: str
    paths: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    owner: str = ""
    expires: str = ""
    at: Span | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """A finding of lint that was there when the baseline was written. `path` and `message` are for people.

    Args:
        fingerprint: of the finding.
        id: of its rule.
    """

    fingerprint: str
    id: str
    path: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Test:
    """What a value has to be: `kind` is a key of a site rule (`at-most`), `values` what stands behind it."""

    kind: str
    values: tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class Condition:
    """Tests of one value: `about` is `quantity`, `env` or `launch`, `name` which of them.

    Args:
        tests: all of them have to hold.
    """

    about: str
    name: str
    tests: tuple[Test, ...]


@dataclass(frozen=True, slots=True)
class SiteRule:
    """A rule that a site wrote down without code: where every one of `when` holds, `condition` has to.

    Args:
        id, name: of the rule.
        severity: of its findings.
        message: of its findings.
        remedy: what to do.
        evidence: an address where it is explained.
        file: the file it stands in.
    """

    id: str
    name: str
    severity: str
    message: str
    remedy: str
    evidence: str
    condition: Condition
    when: tuple[Condition, ...] = ()
    file: str = ""


@dataclass(frozen=True, slots=True)
class SiteCheck:
    """A check that a site wrote down without code: a command on each node, and what it has to say.

    Args:
        command: argument list; no shell reads it.
        deadline_s: seconds it may take.
        context: run it in the job context, as ranks run, instead of beside the agent.
        first_node: run it on the node of rank 0 alone.
        good, warning, unknown: exit codes; any other is a fault as severe as the check.
        output: regular expression of which standard output must hold a match; empty = any.
        agree: standard output is the same on all nodes.
        values: tests of values in the JSON document on standard output; `name` is the way there, as `disks.0.free`.
        absent: what it means that there is no such command: `unknown`, `fault` or `pass`.
        required: without an answer the verdict is incomplete.
        id, name: of the check.
        severity: of its findings.
        message: of its findings.
        remedy: what to do.
        evidence: an address where it is explained.
        file: the file it stands in.
    """

    id: str
    name: str
    severity: str
    message: str
    remedy: str
    evidence: str
    command: tuple[str, ...]
    deadline_s: float = 5.0
    context: bool = False
    first_node: bool = False
    good: tuple[int, ...] = (0,)
    warning: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()
    output: str = ""
    agree: bool = False
    values: tuple[Condition, ...] = ()
    absent: str = "unknown"
    required: bool = True
    file: str = ""


@dataclass(frozen=True, slots=True)
class Site:
    """What a site declared, in one file or several."""

    rules: tuple[SiteRule, ...] = ()
    checks: tuple[SiteCheck, ...] = ()

    @property
    def words(self) -> set[str]:
        """The ids and names in use."""
        rules = {word for rule in self.rules for word in (rule.id, rule.name)}
        return rules | {word for check in self.checks for word in (check.id, check.name)}


@dataclass(frozen=True, slots=True)
class Configuration:
    """What the user chose that a verdict depends on.

    Args:
        select, ignore, mandatory: ids, names or areas (the three letters of an id). Findings of what is mandatory
            cannot be suppressed.
        severities: the last that fits wins, an id or name before an area.
        exclude: patterns of files that were not looked for in folders; kept for whoever reads the report.
        baseline: findings that were accepted before.
        file: the configuration file that had a part in this; empty = none. Its patterns are here relative to the root.
        profile: `gate`, `default` or `pedantic`.
        fail_on: the mildest severity that makes the verdict no-go.
        allow_incomplete: whether an incomplete run ends with exit code 0.
        file_ignores: rules that do not count in some files.
        waivers: what is accepted for a reason, until a day.
        baseline_file: where the baseline was read from.
        site_rules, site_checks: what the site declared in files of its own.

    Raises ValueError for a profile or severity that does not exist.
    """

    profile: str = "default"
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    fail_on: str = "error"
    allow_incomplete: bool = False
    severities: tuple[SeverityChoice, ...] = ()
    mandatory: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    file_ignores: tuple[FileIgnores, ...] = ()
    waivers: tuple[Waiver, ...] = ()
    baseline: tuple[Accepted, ...] = ()
    baseline_file: str = ""
    site_rules: tuple[SiteRule, ...] = ()
    site_checks: tuple[SiteCheck, ...] = ()
    file: str = ""

    @property
    def site(self) -> Site:
        """What the site declared."""
        return Site(self.site_rules, self.site_checks)

    def __post_init__(self) -> None:
        severities = tuple(severity.value for severity in Severity)
        for what, said, known in (
            ("profile", self.profile, PROFILES),
            ("severity", self.fail_on, severities),
            *(("severity", choice.severity, severities) for choice in self.severities),
        ):
            if said not in known:
                raise ValueError(f"there is no {what} {said!r}; known are {', '.join(known)}")


def fits(id: str, name: str, wanted: tuple[str, ...]) -> bool:
    """Whether a rule or check is among ids, names and areas."""
    return any(one.lower() == name or one.upper() in (id, id[:3]) for one in wanted)


def severity_chosen(id: str, name: str, choices: tuple[SeverityChoice, ...]) -> Severity | None:
    """The severity chosen for a rule or check, if any: for itself before for its area, later before earlier."""
    own = [c for c in choices if c.name.lower() == name or c.name.upper() == id]
    area = [c for c in choices if c.name.upper() == id[:3]]
    found = (own or area)[-1:]
    return Severity(found[0].severity) if found else None
