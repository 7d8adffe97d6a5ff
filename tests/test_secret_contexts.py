"""No secret leaks, in any spelling and context, into any format, cache, recording, diff or event."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from preflight import api
from preflight._util.budget import running
from preflight._util.cache import Cache
from preflight._util.json_output import to_bytes
from preflight._util.redaction import scrub, scrub_traceback
from preflight.cli.main import run
from preflight.commands.fix import ChangedFile, Files, Plan
from preflight.commands.manifest import ManifestOptions, pieces
from preflight.model.findings import Status
from preflight.model.job import Job
from preflight.model.progress import Step
from preflight.model.recording import Recording
from preflight.model.recording_io import save
from preflight.plugins import registry
from preflight.plugins.authoring import Verdict, failed
from preflight.reporters.base import Style
from preflight.reporters.events import EventBuilder
from preflight.reporters.text import REPORTER as TEXT
from preflight.sources.base import SourceFile
from preflight.sources.discovery.readings import read_source
from preflight.sources.secrets import MAX_SECRETS, is_searched, shown_lines
from tests.builders import judged, make_recording, make_rule
from tests.secret_contexts.forms import Context, contexts
from tests.suite.effort import OPTION

#: The tables of spellings, each with the prefix of its canaries.
TABLES = (("open", "a"), ("sealed", "z"), ("repositories", "r"), ("written-later", "w"), ("attack", "k"))
#: Selects a sample of contexts: some of each kind in the gate, all with `--thorough`.
Sample = Callable[[list[Context], int], list[Context]]


@pytest.fixture
def sample(request: pytest.FixtureRequest) -> Sample:
    def made(found: list[Context], usual: int) -> list[Context]:
        return found if request.config.getoption(OPTION) else every(found, usual)

    return made


def every(found: list[Context], step: int) -> list[Context]:
    """Every `step`-th context of each kind, at least one, with different spellings in each kind."""
    kinds: dict[tuple[str, str], list[Context]] = {}
    for context in found:
        kinds.setdefault((context.place, context.path), []).append(context)
    chosen: list[Context] = []
    for number, of_kind in enumerate(kinds.values()):
        chosen += of_kind[number % min(step, len(of_kind)) :: step]
    return chosen


@pytest.mark.parametrize("step", [1, 7, 1000])
@pytest.mark.parametrize(("table", "prefix"), TABLES)
def test_a_sample_has_every_kind_of_place(table: str, prefix: str, step: int) -> None:
    found = list(contexts(table, prefix))
    chosen = every(found, step)
    assert {(one.place, one.path) for one in chosen} == {(one.place, one.path) for one in found}
    assert len({one.canary for one in chosen}) == len(chosen) <= len(found) / step + 10


def leaked(found: list[Context], outputs: dict[str, bytes]) -> list[str]:
    return [
        f"{name}: {context.place} {context.path}: {context.spelling}"
        for name, data in outputs.items()
        for context in found
        if context.canary.encode() in data
    ]


def leaked_each(found: list[Context], outputs: dict[str, bytes]) -> list[str]:
    """Like `leaked`, for outputs that each belong to one context, by its number."""
    return [
        f"{context.place} {context.path}: {context.spelling}"
        for context, data in zip(found, outputs.values(), strict=True)
        if context.canary.encode() in data
    ]


def in_folders(found: list[Context], root: Path) -> None:
    for number, context in enumerate(found):
        if context.place != "log":
            folder = root / f"d{number:04d}"
            folder.mkdir(parents=True)
            (folder / context.path).write_text(context.text)


def reports(found: list[Context], root: Path) -> Iterator[tuple[str, bytes]]:
    cache = Cache(root / "cache")
    in_folders(found, root / "tree")
    report = api.lint([root / "tree"], root=root / "tree", cache=cache)
    jobs = report.jobs
    assert len(jobs) > len(found) / 3, "most contexts are jobs of their own"
    quoting = judged(make_recording(*jobs), [make_rule(parrot)])
    assert len(quoting.findings) > len(jobs)
    for name, reporter in ((one.name, one) for one in registry.load(registry.REPORTERS).items):
        for verbosity in (0, 2):
            yield f"{name} {verbosity}", reporter.render(report, Style(verbosity=verbosity))
        yield f"{name} quoting", reporter.render(quoting, Style())
    yield "concise", TEXT.render(quoting, Style(concise=True))
    yield "statistics", TEXT.render(quoting, Style(statistics=True))
    yield "cache", b"".join(path.read_bytes() for path in (root / "cache").iterdir())
    yield "recording", save(Recording(jobs=jobs, created="2026-01-01T00:00:00+00:00", tool_version="1"))
    events = EventBuilder()
    yield "report events", b"".join(to_bytes(event, indent=None) for event in events.report_events(report))


@pytest.mark.parametrize(("table", "prefix"), TABLES)
def test_no_line_of_a_file_and_no_log_shows_a_secret(table: str, prefix: str) -> None:
    """All contexts: any line may be quoted, alone and within its file."""
    found = list(contexts(table, prefix))
    assert all(context.canary in context.text for context in found)
    shown = {}
    for number, context in enumerate(found):
        hide = scrub if context.place == "log" else shown_lines(SourceFile(context.path, context.text, "", 0))
        pieces = [context.text, *(() if context.place == "log" else context.text.split("\n"))]
        shown[str(number)] = "\n".join(map(hide, pieces)).encode()
    assert leaked_each(found, shown) == []


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("table", "prefix"), TABLES)
def test_no_report_contains_a_secret(table: str, prefix: str, tmp_path: Path, sample: Sample) -> None:
    # Rendering takes long.
    found = sample(list(contexts(table, prefix)), 24 if prefix not in "rwk" else 8)
    assert len(found) >= 30
    assert leaked(found, dict(reports(found, tmp_path))) == []


def parrot(job: Job) -> Iterator[Verdict]:
    """A rule that quotes everything in a job."""
    for number, claim in enumerate(job.claims):
        yield failed(
            f"{job.name} {number}", f"{claim.spelling} is {claim.value}", at=claim.span, remedy=claim.condition
        )
    for launch in job.launches:
        text = " ".join(map(str, (launch.program, *launch.arguments)))
        yield failed(f"{job.name} {launch.id}", text, at=launch.span, remedy=launch.condition or "-")
    for number, note in enumerate(job.notes):
        yield failed(f"{job.name} note {number}", note.message, at=note.span, remedy="-")


@pytest.mark.parametrize(("table", "prefix"), TABLES)
def test_no_diff_contains_a_secret(table: str, prefix: str, tmp_path: Path) -> None:
    found = [context for context in contexts(table, prefix) if context.place != "log"]
    files = Files(tmp_path)
    outputs = {}
    for number, context in enumerate(found):
        after = "".join(f"{line} #\n" for line in context.text.split("\n"))
        change = ChangedFile(context.path, context.text.encode(), after.encode())
        outputs[str(number)] = Plan(files, changes=(change,)).diff().encode()
    assert leaked(found, outputs) == []


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("table", "prefix"), TABLES)
def test_no_diagnosis_or_event_contains_a_secret(table: str, prefix: str, tmp_path: Path, sample: Sample) -> None:
    found = sample(list(contexts(table, prefix)), 24 if prefix not in "rwk" else 8)
    outputs = {}
    for number, context in enumerate(found):
        log = tmp_path / f"{number}.log"
        log.write_text(context.text + "\nRuntimeError: CUDA error: out of memory\n" + context.text)
        outputs[f"diagnosis {number}"] = to_bytes(api.diagnose([log]), indent=None)
        if context.place in ("log", "shell", "arguments"):
            note = EventBuilder().step_events(Step("gather", note=context.text))
            outputs[f"events {number}"] = b"".join(to_bytes(event, indent=None) for event in note)
    assert leaked(found, outputs) == []


@pytest.mark.parametrize(("table", "prefix"), TABLES)
def test_no_manifest_contains_a_secret(table: str, prefix: str, sample: Sample) -> None:
    found = [
        context
        for context in contexts(table, prefix)
        if context.path == "pod.yaml" and "kind: Secret" not in context.text
    ]
    found = sample(found, 16 if prefix not in "rwk" else 8)
    outputs = {}
    for number, context in enumerate(found):
        try:
            outputs[str(number)] = pieces(
                context.text, {context.path: context.text}, ManifestOptions(install=True)
            ).encode()
        except Exception as error:
            outputs[str(number)] = str(error).encode()
    assert leaked(found, outputs) == []


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("table", "prefix"), TABLES)
def test_no_command_line_prints_a_secret(
    table: str, prefix: str, tmp_path: Path, sample: Sample, capfd: pytest.CaptureFixture[str]
) -> None:
    """`init --print`, the preview of `smoke --as-launched`, `lint --diff` and `--list-files`, on the command line."""
    found = [context for context in contexts(table, prefix) if context.path in ("job.sbatch", "run.sh", "pod.yaml")]
    found = sample(found, 120 if prefix not in "rwk" else 60)
    outputs = {}
    for number, context in enumerate(found):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        (folder / context.path).write_text(context.text)
        (folder / "train.py").write_text("import torch\n")
        path, root = str(folder / context.path), ("--root", str(folder))
        for arguments in (
            ["init", "--print", str(folder)],
            ["smoke", "--as-launched", path, *root],
            ["lint", path, *root, "--diff", "--unsafe-fixes", "--no-cache"],
            ["lint", path, *root, "--list-files", "--no-cache"],
            ["lint", path, *root, "--no-cache", "--events", "-", "-o", "json"],
        ):
            assert run(arguments) in (0, 1, 2, 3, 4), arguments
        said = capfd.readouterr()
        assert said.out
        outputs[str(number)] = (said.out + said.err).encode()
    assert leaked_each(found, outputs) == []


@pytest.mark.parametrize(("table", "prefix"), TABLES)
def test_no_crash_shows_a_secret(table: str, prefix: str) -> None:
    """A bug in a reader whose message quotes the whole file, and a traceback of the command itself."""

    class Broken:
        name = "broken"

        def read(self, file: SourceFile, tree: object, **how: object) -> None:
            raise RuntimeError(file.text)

    found = [context for context in contexts(table, prefix) if context.place != "log"]
    outputs = {}
    for number, context in enumerate(found):
        file = SourceFile(context.path, context.text, "", len(context.text))
        with running():
            (note,) = read_source(Broken(), file, None).notes  # type: ignore[arg-type]
        assert "RuntimeError" in note.message
        outputs[str(number)] = (note.message + scrub_traceback(f"ValueError: {context.text}")).encode()
    assert leaked_each(found, outputs) == []


# --- what is too large to be searched ---


def canary_far_from_its_name(size: int) -> str:
    """YAML whose secret is on another line than its name, with more data than is parsed."""
    filler = "".join(f"item{number}: {'x' * 60}\n" for number in range(size // 70))
    return f"num_machines: 2\ncompute_environment: LOCAL_MACHINE\npassword:\n  value:\n    hunter2CANARY9\n{filler}"


@pytest.mark.parametrize("size", [100_000, 700_000, 3_000_000])
def test_lines_of_unsearchably_large_files_are_not_shown(size: int) -> None:
    text = canary_far_from_its_name(size)
    file = SourceFile("config.yaml", text, "", len(text))
    assert is_searched(file) == (size < 512 * 1024)
    hide = shown_lines(file)
    assert "hunter2CANARY9" not in hide("    hunter2CANARY9") and "hunter2CANARY9" not in hide(text)
    assert hide("num_machines: 2") == ("num_machines: 2" if size < 512 * 1024 else "****")


def test_a_file_with_more_secrets_than_are_kept_is_not_quoted() -> None:
    many = "".join(f"password{number}:\n  value: hunter{number:06d}x\n" for number in range(MAX_SECRETS + 1))
    assert not is_searched(SourceFile("config.yaml", many, "", 0))


def test_a_job_quotes_no_line_of_a_file_that_is_too_large_to_search(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(canary_far_from_its_name(700_000))
    (tmp_path / "run.sh").write_text("accelerate launch --config_file config.yaml --num_machines 3 train.py\n")
    (tmp_path / "train.py").write_text("import torch\n")
    report = api.lint([tmp_path / "run.sh"], root=tmp_path)
    spans = [claim.span for job in report.jobs for claim in job.claims]
    assert any(span.path == "run.sh" and span.snippet for span in spans)
    assert [span.snippet for span in spans if span.path == "config.yaml" and span.snippet] == []
    assert b"hunter2CANARY9" not in to_bytes(report.findings, indent=None)


#: Hiding the password hides the kind as well.
KIND_IS_THE_PASSWORD = """apiVersion: v1
kind: Secret
metadata:
  name: redis
stringData:
  password: RayCluster
---
apiVersion: ray.io/v1
kind: RayCluster
metadata:
  name: trainers
spec:
  headGroupSpec:
    template:
      spec:
        containers:
          - name: head
            image: rayproject/ray:2.46.0
            env:
              - name: REDIS_PASSWORD
                value: RayCluster
            resources:
              limits:
                nvidia.com/gpu: 1
"""


def test_a_manifest_whose_kind_is_hidden_is_judged_without_a_crash(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(KIND_IS_THE_PASSWORD)
    report = api.lint([tmp_path / "job.yaml"], root=tmp_path)
    assert {outcome.status for outcome in report.outcomes if outcome.id == "KUB009"} == {Status.NOT_APPLICABLE}
    assert not any("crash" in outcome.reason for outcome in report.outcomes)


ROOT = Path(__file__).parent.parent


def test_ordinary_values_are_not_hidden() -> None:
    """A finding in which an ordinary value is hidden cannot be understood."""
    report = api.lint([ROOT / "examples", ROOT / "tests" / "incidents"], root=ROOT)
    assert report.findings
    shown = to_bytes(report.findings, indent=None) + to_bytes(report.suppressed, indent=None)
    assert b"****" not in shown


@pytest.mark.parametrize("folder", ["examples", "tests/incidents", "tests/rules"])
def test_examples_and_cases_contain_no_apparent_secrets(folder: str) -> None:
    found = {}
    for path in sorted((ROOT / folder).rglob("*")):
        if path.is_file() and path.stat().st_size < 200_000 and path.suffix not in (".pyc", ".md", ".json"):
            text = path.read_text(errors="replace")
            lines = [line for line in text.split("\n") if scrub(line) != line]
            if lines:
                found[path.relative_to(ROOT).as_posix()] = lines
    assert found == {}
