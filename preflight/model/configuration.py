"""The user's choices that a verdict depends on; every recording includes them for `judge`."""

from __future__ import annotations

from dataclasses import dataclass

from preflight.model.findings import PROFILES, Severity
from preflight.model.job import Span
from preflight.model.job.value import Scalar


@dataclass(frozen=True, slots=True)
class SeverityChoice:
    """The severity of a rule's, check's or area's findings at this site. `name` is an id, a name or an area.

    Args:
        severity: `error`, `warning` or `info`.
    """

    name: str
    severity: str


@dataclass(frozen=True, slots=True)
class FileIgnores:
    """Rules that are ignored in files that match a pattern.

    Args:
        pattern: as in `.gitignore`.
        names: ids, names or areas.
    """

    pattern: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Waiver:
    """One rule or check that this site accepts for a reason, in some files or on some nodes, until an expiry date.

    Args:
        rule: id or name.
        paths: patterns as in `.gitignore`; without any, in all files.
        hosts: names or ranges (`node[1-4]`); without any, on every node.
        expires: the last day (ISO 8601) on which it applies; empty if it never expires.
        at: its location in the configuration file.
        reason: why it is accepted.
        owner: who is responsible for it.
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
    """A lint finding that existed when the baseline was written. `path` and `message` are for people.

    Args:
        fingerprint: of the finding.
        id: of its rule.
    """

    fingerprint: str
    id: str
    path: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Since:
    """An earlier version of the files, against which only new findings count.

    Args:
        revision: as the user named it; `commit` is its full name.
        findings: what lint finds in the same jobs at that version; these findings do not count.
        changed: files of the judged jobs that differ from that version, relative to the root.
        unchanged_jobs: the number of jobs that the change does not touch; they are not judged.
    """

    revision: str
    commit: str
    findings: tuple[Accepted, ...] = ()
    changed: tuple[str, ...] = ()
    unchanged_jobs: int = 0


@dataclass(frozen=True, slots=True)
class Test:
    """A requirement on a value: `kind` is a key of a site rule (`at-most`), `values` are its arguments."""

    kind: str
    values: tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class Condition:
    """Tests of one value: `about` is `quantity`, `env` or `launch`, `name` is its name.

    Args:
        tests: all of them must hold.
    """

    about: str
    name: str
    tests: tuple[Test, ...]


@dataclass(frozen=True, slots=True)
class SiteRule:
    """A rule that a site defined without code: where all of `when` hold, `condition` must hold as well.

    Args:
        id, name: of the rule.
        severity: of its findings.
        message: of its findings.
        remedy: what to do.
        evidence: an address where the rule is explained.
        file: the file that defines it.
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
    """A check that a site defined without code: a command to run on each node, and its expected output.

    Args:
        command: argument list; no shell reads it.
        deadline_s: time limit in seconds.
        context: whether to run it in the job context, as ranks run, instead of beside the agent.
        first_node: whether to run it only on the node of rank 0.
        good, warning, unknown: exit codes; any other is a fault with the check's severity.
        output: regular expression that standard output must match; empty = any.
        agree: whether standard output must be the same on all nodes.
        values: tests of values in the JSON document on standard output; `name` is the path, as `disks.0.free`.
        absent: the outcome if the command does not exist: `unknown`, `fault` or `pass`.
        required: whether the verdict is incomplete without an answer.
        id, name: of the check.
        severity: of its findings.
        message: of its findings.
        remedy: what to do.
        evidence: an address where the check is explained.
        file: the file that defines it.
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
    """Rules and checks that a site declared, in one file or several."""

    rules: tuple[SiteRule, ...] = ()
    checks: tuple[SiteCheck, ...] = ()

    @property
    def words(self) -> set[str]:
        """The ids and names in use."""
        rules = {word for rule in self.rules for word in (rule.id, rule.name)}
        return rules | {word for check in self.checks for word in (check.id, check.name)}


@dataclass(frozen=True, slots=True)
class Configuration:
    """The user's choices that a verdict depends on.

    Args:
        select, ignore, mandatory: ids, names or areas (the three letters of an id). Findings of what is mandatory
            cannot be suppressed.
        severities: the last match wins; an id or name takes precedence over an area.
        exclude: patterns of files that were skipped in folders; kept for readers of the report.
        baseline: findings that were accepted before.
        file: the configuration file in use; empty = none. Its patterns are relative to the root here.
        profile: `gate`, `default` or `pedantic`.
        fail_on: the lowest severity that makes the verdict no-go.
        allow_incomplete: whether an incomplete run ends with exit code 0.
        file_ignores: rules that are ignored in some files.
        waivers: what is accepted for a reason, until an expiry date.
        baseline_file: the file the baseline was read from.
        site_rules, site_checks: declared by the site in its own files.
        set_aside: settings of configuration files in subfolders that are ignored because they would be less strict.
        since: with `lint --since`, the earlier version whose findings do not count.

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
    set_aside: tuple[str, ...] = ()
    since: Since | None = None

    @property
    def site(self) -> Site:
        """The rules and checks that the site declared."""
        return Site(self.site_rules, self.site_checks)

    def __post_init__(self) -> None:
        severities = tuple(severity.value for severity in Severity)
        for what, value, known in (
            ("profile", self.profile, PROFILES),
            ("severity", self.fail_on, severities),
            *(("severity", choice.severity, severities) for choice in self.severities),
        ):
            if value not in known:
                raise ValueError(f"{value!r} is not a valid {what}; use one of {', '.join(known)}")


def matches(id: str, name: str, wanted: tuple[str, ...]) -> bool:
    """Whether a rule or check is selected by these ids, names and areas."""
    return any(item.lower() == name or item.upper() in (id, id[:3]) for item in wanted)


def severity_chosen(id: str, name: str, choices: tuple[SeverityChoice, ...]) -> Severity | None:
    """The severity chosen for a rule or check, if any: a severity for the item itself wins over one for its area, a
    later one over an earlier one.
    """
    own = [c for c in choices if c.name.lower() == name or c.name.upper() == id]
    area = [c for c in choices if c.name.upper() == id[:3]]
    found = (own or area)[-1:]
    return Severity(found[0].severity) if found else None
