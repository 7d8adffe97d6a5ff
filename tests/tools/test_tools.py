"""The tables of launcher options: the extractor's rows for parsers, and complete committed tables."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from preflight._util import toml
from preflight.engine import report
from preflight.sources.tables import FOLDER, Row, load_table, parse_table
from preflight_checks.plans import table
from tools import report_fields, walk
from tools.compare_verdicts import ROOT, Answer, answers, differences
from tools.oracle import frameworks
from tools.oracle.cases import Change, Verdict, read, write
from tools.oracle.mutation import apply, mutants
from tools.tables.extract import rows_of
from tools.tables.targets import TARGETS, Declaration, Part, Target
from tools.tables.write import merged, table_text
from tools.wheels import VERSIONS, pins, text
from tools.wheels import Row as WheelsRow


def rows(how: Declaration, text: str, **more: object) -> dict[str, Row]:
    """The rows of a small file, by the variable they set."""
    return {row.dest: row for row in rows_of(textwrap.dedent(text), Part("x.py", how, **more))}  # type: ignore[arg-type]


def test_argparse_options_with_spellings_defaults_and_counts() -> None:
    found = rows(
        Declaration.ARGPARSE,
        """
        PORT = 29500
        def parser():
            p = ArgumentParser()
            g = p.add_argument_group("x")
            g.add_argument("-H", "--host-file", type=str, default="hosts")
            g.add_argument("--port", type=int, default=PORT)
            p.add_argument("--verbose", action="store_true")
            p.add_argument("--range", nargs=2, type=int)
            p.add_argument("--mode", choices=["a", "b"], default=os.environ.get("MODE"))
            p.add_argument("--other", dest="chosen", action=yes)
            p.add_argument("script")
            p.add_argument("rest", nargs=argparse.REMAINDER)
        """,
        flags=("yes",),
    )
    assert found["host_file"] == Row("host_file", ("-H", "--host-file"), kind="str", default="hosts")
    assert found["port"].default == 29500
    assert (found["verbose"].takes, found["verbose"].default) == ("0", False)
    assert found["range"].takes == "2"
    assert (found["mode"].choices, found["mode"].default) == (("a", "b"), None)
    assert found["chosen"].takes == "0"
    assert found["script"].spellings == ()
    assert found["rest"].takes == "..."


def test_argparse_only_in_the_named_function_and_with_both_dashes() -> None:
    text = """
    def one(p):
        p.add_argument("--num_machines")
        p.add_argument(*several)
    def two(p):
        p.add_argument("--elsewhere")
    """
    found = rows(Declaration.ARGPARSE, text, names=("one",), both_dashes=True)
    assert found == {"num_machines": Row("num_machines", ("--num_machines", "--num-machines"))}


def test_click_options_above_the_named_command() -> None:
    found = rows(
        Declaration.CLICK,
        """
        @cli.command()
        @click.option("--head", is_flag=True, default=False)
        @click.option("--num-gpus", type=int, required=False)
        @click.option("--color", type=click.Choice(["auto", "false"]), default="auto")
        @click.option("--wait/--no-wait", "waits")
        @click.argument("entrypoint", nargs=-1)
        def start(head): ...

        @click.option("--force", is_flag=True)
        def stop(force): ...
        """,
        names=("start",),
    )
    assert found["head"].takes == "0"
    assert found["num_gpus"] == Row("num_gpus", ("--num-gpus",), kind="int")
    assert found["color"].choices == ("auto", "false")
    assert found["waits"].spellings == ("--wait", "--no-wait")
    assert found["entrypoint"].takes == "*"
    assert "force" not in found


def test_fields_of_a_class_and_its_bases() -> None:
    found = rows(
        Declaration.FIELDS,
        """
        class Base:
            seed: int = 42
        @dataclass
        class Arguments(Base):
            output_dir: str = field(default="out", metadata={})
            fp16: bool = False
            pin: bool = True
            names: Optional[list[str]] = field(default=None)
            stage: int = Field(0, alias="zero_stage")
            KNOWN: ClassVar[int] = 1
            _private: int = 2
        class Other:
            foreign: int = 1
        """,
        names=("Arguments",),
        option="--{}",
        both_dashes=True,
    )
    assert found["seed"].default == 42
    assert found["output_dir"].spellings == ("--output_dir", "--output-dir")
    assert found["fp16"].takes == "?"
    assert "--no_pin" in found["pin"].spellings
    assert found["names"].takes == "+"
    assert "--zero_stage" in found["stage"].spellings
    assert not {"KNOWN", "_private", "foreign"} & set(found)


def test_constants_by_prefix() -> None:
    text = "TRAIN_BATCH_SIZE = 'train_batch_size'\nTRAIN_DEFAULT = 3\nOTHER = 'x'\n"
    assert rows(Declaration.CONSTANTS, text, names=("TRAIN_",)) == {
        "train_batch_size": Row("train_batch_size", kind="TRAIN_BATCH_SIZE")
    }


def test_rows_of_several_versions_list_their_versions() -> None:
    one = (Row("host", ("--host",)), Row("old", ("--old",)))
    two = (Row("host", ("-H", "--host"), default="x"), Row("fresh", ("--fresh",)))
    assert merged([("1.0", one), ("2.0", two)]) == (
        Row("host", ("-H", "--host"), default="x"),
        Row("old", ("--old",), until="1.0"),
        Row("fresh", ("--fresh",), since="2.0"),
    )


def test_an_option_and_its_negation_are_separate_rows() -> None:
    pair = (Row("fuse", ("--fuse",), takes="0"), Row("fuse", ("--no-fuse",), takes="0"))
    assert merged([("1.0", pair)]) == pair


def test_the_written_document_contains_the_same_rows() -> None:
    target = Target("some", "some", "some-dist", ("1.0",), "2026-01-02", (Part("a.py", Declaration.ARGPARSE),))
    written = (Row("a", ("--a",), default=True), Row("b", ("-b", "--b"), takes="0", choices=("x",)))
    table = parse_table(table_text(target, written))
    assert table.rows == written
    assert (table.versions, table.date, table.newest) == (("1.0",), "2026-01-02", "1.0")


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_the_committed_tables_match_the_targets(target: Target) -> None:
    table = load_table(target.name)
    assert (FOLDER / f"{target.name}.json").read_text() == table_text(target, table.rows), "run `make tables`"
    assert (table.program, table.distribution) == (target.program, target.distribution)
    assert (table.versions, table.date) == (target.versions, target.date), "run `make tables`"
    assert table.files == tuple(dict.fromkeys(part.path for part in target.parts)), "run `make tables`"
    assert len(table.rows) > 0
    for row in table.rows:
        assert row.dest
        assert row.takes.isdecimal() or row.takes in ("?", "*", "+", "...")
        assert {row.since, row.until} <= {"", *target.versions}


# What two checkouts say of the same jobs is compared.


RULES = frozenset(("AAA001", "AAA002"))


def answer(*findings: tuple[str, str, str], code: int = 1, rules: frozenset[str] = RULES) -> Answer:
    return Answer(code, frozenset(findings), rules)


def test_a_checkout_answers_a_job(tmp_path: Path) -> None:
    job = tmp_path / "job"
    job.mkdir()
    (job / "run.sh").write_text("torchrun --nnodes=2 --nproc_per_node=8 --rdzv_endpoint=localhost:29500 train.py\n")
    found = answers(ROOT, {"job": ["lint", str(job)]}, tmp_path / "out")
    assert found["job"].code == 1
    assert ("RDV001", "run.sh:1", "error") in found["job"].findings
    assert "RDV001" in found["job"].rules


def test_differences_are_told_apart() -> None:
    old = {
        "gone": answer(("AAA001", "run.sh:1", "error")),
        "moved": answer(("AAA001", "run.sh:1", "error")),
        "milder": answer(("AAA001", "run.sh:1", "error")),
        "same": answer(("AAA001", "run.sh:1", "error")),
        "come": answer(code=0),
        "stricter": answer(code=0),
    }
    new = {
        "gone": answer(code=0),
        "moved": answer(("AAA001", "run.sh:2", "error")),
        "milder": answer(("AAA001", "run.sh:1", "warning")),
        "same": answer(("AAA001", "run.sh:1", "error"), ("NEW001", "run.sh:1", "error")),
        "come": answer(("AAA002", "run.sh:1", "error")),
        "stricter": answer(code=4),
    }
    found = [(kind, rule, text.partition(":")[0]) for kind, rule, text in differences(old, new)]
    assert found == [
        ("lost", "AAA001", "gone"),
        ("place", "AAA001", "moved"),
        ("severity", "AAA001", "milder"),
        ("new", "AAA002", "come"),
        ("exit code", "-", "stricter"),
    ]


# The page about the report: it has every field with its current type and description.


def test_the_committed_page_is_the_generated_one() -> None:
    assert report_fields.PAGE.read_text() == report_fields.page(), "a docstring changed: run `make docs`"


def test_every_field_has_a_description() -> None:
    for one in report_fields.documented():
        assert one.about, one.title
        for name, kind, said in one.fields:
            assert kind and said, f"{one.kind.__module__}.{one.kind.__name__} does not say what {name} is"


def test_everything_in_the_schema_is_on_the_page() -> None:
    schema = report.schema()
    known = {frozenset(name for name, _, _ in one.fields) for one in report_fields.documented()}
    for title, definition in {"report": schema, **schema["$defs"]}.items():
        if "properties" in definition:
            assert frozenset(definition["properties"]) in known, title


def test_every_link_leads_to_a_heading() -> None:
    page = report_fields.page()
    headings = {heading.lower().replace(" ", "-") for heading in re.findall(r"^## (.*)$", page, re.MULTILINE)}
    assert set(re.findall(r"\]\(#([a-z-]+)\)", page)) <= headings


# How the oracle draws cases, and blames changes.


@pytest.mark.parametrize("name", ["accelerate", "deepspeed", "torchrun", "transformers"])
def test_the_same_seed_draws_the_same_cases(name: str) -> None:
    framework = frameworks.find(name)
    first, second = ([case.id for case in framework.cases(40, 7)] for _ in range(2))
    assert first == second
    assert len(set(first)) == len(first)
    assert [case.id for case in framework.cases(40, 8)] != first


@pytest.mark.parametrize("name", ["accelerate", "deepspeed", "torchrun", "transformers"])
def test_a_change_is_located_on_its_line(name: str) -> None:
    for case in frameworks.find(name).cases(60, 3):
        for change in case.changes:
            if change.line and change.kind != "removed":
                line = case.files[change.file].splitlines()[change.line - 1]
                assert change.key.rpartition(".")[2] in line or change.value is False or change.value is None


def test_each_change_can_be_tried_alone() -> None:
    framework = frameworks.find("deepspeed")
    case = next(case for case in framework.cases(60, 3) if len(case.changes) == 2)
    alone = [next(framework.with_changes(case, (change,))) for change in case.changes]
    assert [len(part.changes) for part in alone] == [1, 1]
    assert len({case.id, *(part.id for part in alone)}) == 3


def test_changes_do_not_modify_the_seed() -> None:
    seed = {"a": {"b": 1}, "c": 2}
    drawn = list(mutants(seed, {"a.d": (1,)}, number=20, random_seed=1, keep=frozenset({"c"})))
    assert drawn
    assert seed == {"a": {"b": 1}, "c": 2}
    assert all(settings["c"] == 2 for settings, _ in drawn)


def test_a_change_makes_missing_sections() -> None:
    settings: dict[str, object] = {}
    apply(settings, Change("x.y", "value", 3))
    assert settings == {"x": {"y": 3}}


def test_verdicts_survive_a_round_trip(tmp_path: Path) -> None:
    case = next(case for case in frameworks.find("deepspeed").cases(30, 1) if case.changes)
    verdict = Verdict(case, True, "no", "deepspeed 0.19.8", "2026-11-24", blamed=(0,))
    write(tmp_path / "x.jsonl", [verdict, replace(verdict, refused=False)])
    found = list(read(tmp_path / "x.jsonl"))
    assert found[0].case.id == case.id
    assert found[0].places() == verdict.places()


# The script that writes the table of wheels, without querying the index.


def test_pins_of_requirements() -> None:
    requires = [
        "filelock",
        'nvidia-cuda-runtime-cu12==12.8.90; platform_system == "Linux" and platform_machine == "x86_64"',
        "nvidia-cudnn-cu12 (==9.10.2.21) ; platform_system == 'Linux'",
        'nvidia-nccl-cu12==2.23.4; extra == "and-cuda"',
        "nvidia-cuda-nvrtc-cu12==12.8.93",
    ]
    assert pins(requires) == {"cuda": "12.8", "cudnn": "9.10.2.21", "nccl": "2.23.4"}
    assert pins(["nvidia-cuda-runtime==13.0.96", "nvidia-cudnn-cu13>=9"]) == {"cuda": "13.0"}


def test_the_written_table_can_be_read() -> None:
    document = toml.loads(text([WheelsRow("torch", "2.8.0", {"cuda": "12.8", "nccl": "2.27.3"})]))
    assert document["wheel"] == [
        {"framework": "torch", "version": "2.8", "looked_at": "2.8.0", "cuda": "12.8", "nccl": "2.27.3"}
    ]


def test_the_committed_table_follows_the_script() -> None:
    listed = {version for versions in VERSIONS.values() for version in versions}
    assert {row["looked_at"] for row in table("wheels")["wheel"]} <= listed


# The walk of a run through the packages.


def test_architecture_shows_the_traced_order_of_packages() -> None:
    # Packages and tables are loaded only once in a process.
    script = "import sys; from tools import walk; sys.stdout.write(walk.page(walk.trace()))"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == walk.PAGE.read_text("utf-8"), "run `python -m tools.walk`"


def test_a_visit_that_follows_another_of_its_package_continues_it() -> None:
    engine = walk.Visit("preflight.engine")
    for package in ("preflight.plugins", "preflight.plugins", "preflight.sources", "preflight.plugins"):
        engine.enter(package)
    assert [visit.package for visit in engine.inner] == ["preflight.plugins", "preflight.sources", "preflight.plugins"]
