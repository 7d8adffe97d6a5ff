"""What the user asks of a smoke run beside what the job says: its mode, its sizes, a fault to play."""

from __future__ import annotations

from collections.abc import Sequence

from preflight.errors import UsageError
from preflight.job import Claim, Job, Known
from preflight.job.span import span_of
from preflight.lazy.dataclasses import dataclass
from preflight.lazy.patterns import lazy_pattern
from preflight.near import nearest

#: Faults that can be played, and by whom: ranks of a collective, or servers and workers.
KINDS = {
    "delay": ("rank", "worker", "server"),
    "loss": ("rank", "worker"),
    "double": ("worker", "server"),
    "flip": ("rank", "worker", "server"),
    "kill": ("rank", "worker", "server"),
    "stop": ("rank", "worker", "server"),
}
_TARGET = lazy_pattern(r"(rank|worker|server)(\d{1,6})(?:@(\d{1,6}))?")
#: The file that claims of the command line stand in.
COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True)
class Drill:
    """A fault that the smoke run plays itself: what, who, and from which step on (of a rank: before which collective).

    `step` None leaves it to whoever plans the run.

    Args:
        kind: `delay`, `loss`, `double`, `flip`, `kill` or `stop`.
        role: who plays it: `rank`, `worker` or `server`; empty where the plan chooses.
        index: which of them.
    """

    kind: str
    role: str = ""
    index: int | None = None
    step: int | None = None

    @property
    def spelled(self) -> str:
        """As on the command line: `kill:worker1@3`."""
        who = f":{self.role}{self.index}" if self.index is not None else ""
        return f"{self.kind}{who}" + (f"@{self.step}" if self.step is not None else "")


@dataclass(frozen=True, slots=True)
class Wish:
    """What a smoke run is asked for; whatever is empty or None is left to the job.

    Args:
        servers, workers: of a run without a job's files: how many of each.
        mode: `sync`, `async`, `ssp` or `geo`. `staleness` is the bound of `ssp`, `geo_steps` the local steps of `geo`.
        backup: a spare worker waits to take the place of one that is lost, or that holds the others up.
        drill: the fault to play. A run that plays one is no verdict about the nodes.
    """

    servers: int = 0
    workers: int = 0
    mode: str = ""
    staleness: int | None = None
    geo_steps: int | None = None
    drill: Drill | None = None
    backup: bool = False

    @property
    def about_servers(self) -> tuple[str, ...]:
        """The options given that only parameter servers have a use for."""
        given = {
            "--mode": bool(self.mode),
            "--staleness": self.staleness is not None,
            "--geo-steps": self.geo_steps is not None,
            "--backup": self.backup,
        }
        return tuple(name for name, present in given.items() if present)


def read_drill(text: str) -> Drill:
    """`kill:worker1@3` as a drill. Raises ValueError that says what can be played, and by whom."""
    kind, colon, target = text.partition(":")
    if kind not in KINDS:
        near = nearest(kind, KINDS)
        hint = f"did you mean {near}?" if near else f"known are {', '.join(KINDS)}"
        raise ValueError(f"there is no drill {kind!r}; {hint}")
    if not colon:
        return Drill(kind)
    found = _TARGET.fullmatch(target)
    if found is None:
        raise ValueError(f"{target!r} is nobody: rank2, worker1 or server0 is expected, as in {kind}:worker1@3")
    role, index, step = found.groups()
    if role not in KINDS[kind]:
        raise ValueError(f"{kind} is played by a {' or '.join(KINDS[kind])}, not by a {role}")
    return Drill(kind, role, int(index), int(step) if step is not None else None)


def job_of(wish: Wish) -> Job:
    """A job for a run over named nodes without anybody's files: a collective, or the servers and workers wished for.

    Raises:
        UsageError: servers without workers, or the other way round.
    """
    if bool(wish.servers) != bool(wish.workers):
        raise UsageError("--servers and --workers go together")
    if not wish.servers:
        return Job("smoke")
    said = (
        ("ps_mode", True, "--servers"),
        ("ps_servers", wish.servers, f"--servers {wish.servers}"),
        ("ps_workers", wish.workers, f"--workers {wish.workers}"),
    )
    text = f"preflight smoke --servers {wish.servers} --workers {wish.workers}"
    claims = []
    for quantity, value, spelling in said:
        start = text.index(spelling)
        span = span_of(COMMAND_LINE, text, start, start + len(spelling))
        claims.append(Claim(quantity, Known(value), span, spelling, "command line"))
    return Job("smoke", claims=tuple(claims))


def has_servers(job: Job) -> bool:
    """Whether anything says that the job has parameter servers."""
    return bool(job.about("ps_mode") or job.about("ps_server_endpoints"))


def hold_to_servers(wish: Wish, jobs: Sequence[Job], has_files: bool) -> None:
    """Raises UsageError where something was asked about parameter servers of jobs that have none."""
    given = wish.about_servers
    if given and jobs and not any(has_servers(job) for job in jobs):
        what = f"{', '.join(given)}: about parameter servers, and nothing says that the job has any"
        raise UsageError(what if has_files else f"{what}; --servers N --workers M starts some")
