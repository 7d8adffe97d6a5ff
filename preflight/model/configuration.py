"""The configuration of a run as it is recorded, and the options that only affect how the recording is made."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from preflight._util.spans import span_of
from preflight._util.usage_error import UsageError, nearest
from preflight.model.findings import PROFILES, Severity
from preflight.model.job import Claim, Job, Known, Span
from preflight.model.job.value import Scalar

#: The stages of `check` in order; a check sees the facts of its own stage and all earlier stages.
STAGES = ("node", "link", "smoke")

#: The command that only trains. Its earlier requests to nodes are not judged, because they only prepare the training.
SMOKE = "smoke"

#: The command that examines nodes without a job.
NODES = "nodes"

#: Faults that can be injected, each with the roles of the processes that can have the fault: ranks of a collective, or
#: servers and workers.
FAULT_ROLES = {
    "delay": ("rank", "worker", "server"),
    "loss": ("rank", "worker"),
    "double": ("worker", "server"),
    "flip": ("rank", "worker", "server"),
    "kill": ("rank", "worker", "server"),
    "stop": ("rank", "worker", "server"),
}
_TARGET = re.compile(r"(rank|worker|server)(\d{1,6})(?:@(\d{1,6}))?")
#: The path in claims that come from the command line.
COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """A fault that the smoke run injects into itself.

    Args:
        kind: `delay`, `loss`, `double`, `flip`, `kill` or `stop`.
        role: the role of the process that has the fault: `rank`, `worker` or `server`; empty lets the plan choose.
        index: the index of that process; null lets the plan choose.
        step: the first step that is affected or, for a rank, the collective before which the fault happens; null lets
            the plan choose.
    """

    kind: str
    role: str = ""
    index: int | None = None
    step: int | None = None

    @property
    def option_text(self) -> str:
        """Return the fault as on the command line: `kill:worker1@3`."""
        role_text = f":{self.role}{self.index}" if self.index is not None else ""
        return f"{self.kind}{role_text}" + (f"@{self.step}" if self.step is not None else "")


@dataclass(frozen=True, slots=True)
class SmokeOptions:
    """The user's options for a smoke run; empty or None means that the job's files decide.

    Args:
        servers, workers: the numbers of servers and workers, for a run without job files.
        mode: `sync`, `async`, `ssp` or `geo`.
        staleness: the bound of `ssp`, in steps.
        geo_steps: the number of local steps of `geo`.
        injected_fault: the fault to inject. A run with an injected fault gives no verdict about the nodes.
        backup: whether a backup worker replaces a worker that is lost or delays the others.
        server_device: where servers keep their parameters: `cpu` or `cuda`.
        backend: the backend of ranks: `nccl` or `gloo`.
        profile_model: whether the run of servers trains parameters of the job's sizes instead of a small model.
    """

    servers: int = 0
    workers: int = 0
    mode: str = ""
    staleness: int | None = None
    geo_steps: int | None = None
    injected_fault: InjectedFault | None = None
    backup: bool = False
    server_device: str = ""
    backend: str = ""
    profile_model: bool = False

    @classmethod
    def field_names(cls) -> tuple[str, ...]:
        """Return the fields that a command-line option of the same name may set."""
        return tuple(item.name for item in fields(cls))

    @property
    def server_options(self) -> tuple[str, ...]:
        """Return the given options that only parameter servers use."""
        is_given = {
            "--mode": bool(self.mode),
            "--staleness": self.staleness is not None,
            "--geo-steps": self.geo_steps is not None,
            "--backup": self.backup,
            "--server-device": bool(self.server_device),
            "--profile-model": self.profile_model,
        }
        return tuple(name for name, is_set in is_given.items() if is_set)


def parse_injected_fault(text: str) -> InjectedFault:
    """Parse `kill:worker1@3`. Raises ValueError with the known faults and the processes that can have them."""
    kind, colon, target = text.partition(":")
    if kind not in FAULT_ROLES:
        nearest_kind = nearest(kind, FAULT_ROLES)
        hint = f"did you mean {nearest_kind}?" if nearest_kind else f"known faults: {', '.join(FAULT_ROLES)}"
        raise ValueError(f"unknown fault {kind!r}; {hint}")
    if not colon:
        return InjectedFault(kind)
    match = _TARGET.fullmatch(target)
    if match is None:
        raise ValueError(f"{target!r} is not a process; expected rank2, worker1 or server0, as in {kind}:worker1@3")
    role, index, step = match.groups()
    if role not in FAULT_ROLES[kind]:
        raise ValueError(f"{kind} can be injected into a {' or '.join(FAULT_ROLES[kind])}, not into a {role}")
    return InjectedFault(kind, role, int(index), int(step) if step is not None else None)


def job_of(options: SmokeOptions) -> Job:
    """Return the job of a run without files: ranks, or the requested servers and workers. Raises UsageError."""
    if bool(options.servers) != bool(options.workers):
        raise UsageError("--servers and --workers must be used together")
    if not options.servers:
        return Job("smoke")
    quantities = (
        ("ps_mode", True, "--servers"),
        ("ps_servers", options.servers, f"--servers {options.servers}"),
        ("ps_workers", options.workers, f"--workers {options.workers}"),
    )
    line = f"preflight smoke --servers {options.servers} --workers {options.workers}"
    return Job("smoke", claims=tuple(claims_of_command(line, quantities)))


def claims_of_command(line: str, quantities: Iterable[tuple[str, Scalar, str]]) -> Iterator[Claim]:
    """Yield the claims of a command line; `quantities` are the name, value and spelling of each, in line order."""
    start = 0
    for quantity, value, spelling in quantities:
        start = line.index(spelling, start)
        span = span_of(COMMAND_LINE, line, start, start + len(spelling))
        yield Claim(quantity, Known(value), span, spelling, "command line")


def check_server_options(options: SmokeOptions, jobs: Sequence[Job], *, has_files: bool) -> None:
    """Raise UsageError if options of parameter servers are given for jobs without parameter servers."""
    options_given = options.server_options
    if options_given and jobs and not any(job.about("ps_mode") or job.about("ps_server_endpoints") for job in jobs):
        message = f"{', '.join(options_given)} is for parameter servers, but no file of the job mentions any"
        raise UsageError(message if has_files else f"{message}; --servers N --workers M starts servers and workers")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to reach nodes, how far to go, and how long to wait.

    Args:
        hosts: the nodes in rank order, as `node[1-4]` or `a,b,c`; empty if another source lists them.
        hostfile: a file that lists the nodes.
        executor: the transport to the nodes; if it is empty, the environment determines it (an allocation, a cluster;
            otherwise ssh).
        executor_options: `NAME=VALUE` for the executor.
        trust_job: whether to use the hosts, interpreter and environment that the job's files name.
        python: the interpreter of the ranks on the nodes.
        directory: the working directory of the ranks on the nodes.
        prelude: whether to run the job's setup lines on the nodes.
        allow: the actions that probes may take, as `Request.consent` names them.
        until: the last stage.
        keep_going: whether to run the smoke stage even after errors that are certain to make it fail.
        steps: the number of training steps of the smoke run; None means the check's default.
        gather_deadline, open_deadline, node_deadline, link_deadline, smoke_deadline: the time limit of each stage in
            seconds; for `link`, the time limit of each round.
        smoke: the options for the smoke run.
    """

    hosts: str = ""
    hostfile: Path | None = None
    executor: str = ""
    executor_options: tuple[str, ...] = ()
    trust_job: bool = False
    python: str = ""
    directory: str = ""
    prelude: bool = False
    allow: tuple[str, ...] = ()
    until: str = "smoke"
    keep_going: bool = False
    steps: int | None = None
    gather_deadline: float = 30.0
    open_deadline: float = 8.0
    node_deadline: float = 10.0
    link_deadline: float = 10.0
    smoke_deadline: float = 60.0
    smoke: SmokeOptions = field(default_factory=SmokeOptions)

    def longest_s(self) -> float:
        """Return the maximum number of seconds of a run after the nodes are found, for up to six rounds of links."""
        return self.open_deadline + self.node_deadline + 6 * self.link_deadline + self.smoke_deadline

    def stages(self, command: str) -> tuple[str, ...]:
        """Return the stages of a run of this command, in order."""
        return ("node", SMOKE) if command == SMOKE else STAGES[: STAGES.index(self.until) + 1]

    @classmethod
    def field_names(cls) -> tuple[str, ...]:
        """Return the fields that a command-line option of the same name may set."""
        return tuple(item.name for item in fields(cls) if item.name != "smoke")


@dataclass(frozen=True, slots=True)
class SeverityChoice:
    """The severity that the user chose for the findings of a rule, a check or an area.

    Args:
        name: an id, a name or an area.
        severity: `error`, `warning` or `info`.
    """

    name: str
    severity: str


@dataclass(frozen=True, slots=True)
class FileIgnores:
    """Rules that are ignored in files that match a pattern.

    Args:
        pattern: a pattern as in `.gitignore`.
        names: the ids, names or areas of the rules.
    """

    pattern: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Waiver:
    """One rule or check whose findings this site accepts for a reason, in some files or on some nodes, until an expiry
    date.

    Args:
        rule: the id or name of the rule or check.
        paths: patterns of files as in `.gitignore`; if there are none, the waiver applies to all files.
        hosts: names or ranges of nodes (`node[1-4]`); if there are none, the waiver applies to every node.
        expires: the last day (ISO 8601) on which the waiver applies; empty if it never expires.
        at: the location of the waiver in the configuration file.
        reason: the reason for the waiver.
        owner: the person or team that is responsible for the waiver.
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
    """A lint finding that existed when the baseline was written.

    Args:
        fingerprint: the fingerprint of the finding.
        id: the id of its rule.
        path: the file of the finding, for people.
        message: the message of the finding, for people.
    """

    fingerprint: str
    id: str
    path: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Since:
    """The earlier version of the files that findings are compared with: only new findings count.

    Args:
        revision: the revision as the user wrote it.
        commit: the full name of the revision.
        findings: the findings of lint in the same jobs at that version; these findings do not count.
        changed: the files of the judged jobs that differ from that version, relative to the root.
        unchanged_jobs: the number of jobs that are not judged, because none of their files changed.
    """

    revision: str
    commit: str
    findings: tuple[Accepted, ...] = ()
    changed: tuple[str, ...] = ()
    unchanged_jobs: int = 0


@dataclass(frozen=True, slots=True)
class Test:
    """A requirement on a value.

    Args:
        kind: a key of a site rule: `at-most`.
        values: the arguments of that key.
    """

    kind: str
    values: tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class Condition:
    """Tests of one value.

    Args:
        about: the kind of the value: `quantity`, `env` or `launch`.
        name: the name of the value.
        tests: the tests that the value must all pass.
    """

    about: str
    name: str
    tests: tuple[Test, ...]


@dataclass(frozen=True, slots=True)
class SiteRule:
    """A rule that a site defined without code: if all of `when` hold, `condition` must hold as well.

    Args:
        id, name: the id and the name of the rule.
        severity: the severity of its findings.
        message: the message of its findings.
        remedy: the action that fixes its findings.
        evidence: the address of a page that explains the rule.
        condition: the condition that must hold.
        when: the conditions under which the rule applies.
        file: the file that defines the rule.
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
        command: the argument list of the command, which no shell reads.
        deadline_s: the time limit in seconds.
        context: whether the command runs in the job context, as ranks run, instead of in the environment of the agent.
        first_node: whether the command runs only on the node of rank 0.
        good, warning, unknown: the exit codes with this result; any other exit code is a fault with the check's
            severity.
        output: a regular expression that standard output must match; empty if any output is accepted.
        agree: whether standard output must be the same on all nodes.
        values: tests of values in the JSON document on standard output; `name` is the path, as `disks.0.free`.
        absent: the outcome if the command does not exist: `unknown`, `fault` or `pass`.
        required: whether the verdict is incomplete without an answer.
        id, name: the id and the name of the check.
        severity: the severity of its findings.
        message: the message of its findings.
        remedy: the action that fixes its findings.
        evidence: the address of a page that explains the check.
        file: the file that defines the check.
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
    """The rules and checks that a site declared, in one file or several files."""

    rules: tuple[SiteRule, ...] = ()
    checks: tuple[SiteCheck, ...] = ()

    @property
    def words(self) -> set[str]:
        """Return all ids and names of these rules and checks."""
        rule_words = {word for rule in self.rules for word in (rule.id, rule.name)}
        return rule_words | {word for check in self.checks for word in (check.id, check.name)}


@dataclass(frozen=True, slots=True)
class Configuration:
    """The user's choices that a verdict depends on.

    Args:
        select, ignore, mandatory: ids, names or areas (the three letters of an id). Findings of a mandatory rule or
            check cannot be suppressed.
        severities: the chosen severities. The last choice that matches counts; an id or name takes precedence over an
            area.
        exclude: patterns of files that were skipped in folders, for readers of the report.
        baseline: the findings that were accepted before.
        file: the configuration file in use; empty if there is none. Its patterns are stored relative to the root.
        profile: `gate`, `default` or `pedantic`.
        fail_on: the lowest severity that makes the verdict no-go.
        allow_incomplete: whether an incomplete run ends with exit code 0.
        file_ignores: the rules that are ignored in some files.
        waivers: the rules and checks whose findings are accepted for a reason, until an expiry date.
        baseline_file: the file that the baseline was read from.
        site_rules, site_checks: the rules and checks that the site declared in its own files.
        set_aside: messages about settings of configuration files in subfolders that are ignored because they would be
            less strict.
        since: the earlier version whose findings do not count (`lint --since`); null if there is none.

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
        """Return the rules and checks that the site declared."""
        return Site(self.site_rules, self.site_checks)

    def __post_init__(self) -> None:
        severities = tuple(severity.value for severity in Severity)
        for noun, value, allowed_values in (
            ("profile", self.profile, PROFILES),
            ("severity", self.fail_on, severities),
            *(("severity", choice.severity, severities) for choice in self.severities),
        ):
            if value not in allowed_values:
                raise ValueError(f"{value!r} is not a valid {noun}; use one of {', '.join(allowed_values)}")


def matches(id: str, name: str, selectors: tuple[str, ...]) -> bool:
    """Return whether a rule or check is selected by these ids, names and areas."""
    return any(selector.lower() == name or selector.upper() in (id, id[:3]) for selector in selectors)


def severity_chosen(id: str, name: str, choices: tuple[SeverityChoice, ...]) -> Severity | None:
    """Return the severity that the user chose, by id or name, else by area; the last such choice, or None."""
    item_choices = [c for c in choices if c.name.lower() == name or c.name.upper() == id]
    area_choices = [c for c in choices if c.name.upper() == id[:3]]
    last_choice = (item_choices or area_choices)[-1:]
    return Severity(last_choice[0].severity) if last_choice else None
