"""The tables of launcher options: the extractor's rows for parsers, and complete committed tables."""

from __future__ import annotations

import textwrap

import pytest

from preflight.sources.tables import FOLDER, Row, load_table, parse_table
from tools.tables.extract import rows_of
from tools.tables.targets import TARGETS, Declaration, Part, Target
from tools.tables.write import merged, table_text


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
