"""`preflight init`: the file it writes is one that preflight reads, says why, and never takes the place of another."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from preflight import api, cli
from preflight.beginning.begin import Beginning, begin
from preflight.beginning.choices import MANY, chosen
from preflight.beginning.survey import Folder, Survey
from preflight.config_document import named
from preflight.config_file import Choices
from preflight.configuration import Site
from preflight.settings import Settings, validated
from preflight.toml_places import loads

JOB = """\
#!/bin/bash
#SBATCH --nodes=2
export NCCL_SOCKET_IFNAME={}
HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)
srun torchrun --nnodes=2 --nproc_per_node=1 --rdzv-backend=c10d --rdzv-endpoint="$HEAD:29500" --rdzv-id=7 train.py
"""
BAD = "#!/bin/bash\ntorchrun --nnodes=2 --nproc_per_node=1 --node_rank=$R --master_addr=localhost train.py\n"
TODAY = "2026-03-01T12:00:00+00:00"


def tree(folder: Path, files: dict[str, str]) -> Path:
    """These files below a folder; each job has a script beside it."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if path.suffix in (".sh", ".sbatch"):
            (path.parent / "train.py").write_text("print('training')\n")
    return folder


def begun(folder: Path, *, accept: bool = False, **environment: str) -> Beginning:
    return begin(folder, environment=environment, created=TODAY, accept=accept)


def uncommented(text: str) -> str:
    """The file with every key that it offers set."""
    return re.sub(r'^#(?=[A-Za-z"\[])', "", text, flags=re.MULTILINE)


def called(*arguments: str | Path) -> int:
    return cli.run(["init", *map(str, arguments)])


def decisions(made: Beginning) -> dict[str, str]:
    return {decision.about: decision.choice for decision in made.chosen.decisions}


TREES = {
    "empty": {},
    "good": {"run.sbatch": JOB.format("eth0")},
    "bad": {"run.sh": BAD, "examples/one/run.sh": BAD, "docs/run.sh": BAD},
    "odd": {'jobs "x"/examples/a [1]*/run.sh': BAD, "run.sbatch": JOB.format("ib0"), "tests/é\x7f\u202e/run.sh": BAD},
    "nodes": {"run.sh": "deepspeed --hostfile=hosts train.py\n", "hosts": "a slots=4\nb slots=4\n"},
}


@pytest.mark.parametrize("name", TREES)
def test_what_is_written_is_read_again_and_so_is_every_key_that_it_offers(name: str, tmp_path: Path) -> None:
    folder = tree(tmp_path, TREES[name])
    made = begun(folder)
    (folder / "preflight.toml").write_text(made.text)
    configured = api.configure(Choices(), [folder], root=folder).configuration
    assert (configured.profile, configured.fail_on) == (made.chosen.profile, made.chosen.fail_on)
    every = loads(uncommented(made.text))
    assert isinstance(validated(every), Settings)
    assert {*every} == {field.name.replace("_", "-") for field in fields(Settings)}
    # Beyond their types: rules exist, patterns are taken. Site rules are files that would have to be there.
    (folder / "whole.toml").write_text(re.sub(r"^site-rules.*\n", "", uncommented(made.text), flags=re.MULTILINE))
    assert named(folder / "whole.toml", folder, Site()).settings.waive[0].expires is not None


def test_the_same_folder_gives_the_same_text(tmp_path: Path) -> None:
    folder = tree(tmp_path, TREES["bad"])
    assert begun(folder).text == begun(folder).text
    assert all(len(line) <= 120 for line in begun(folder).text.splitlines())


def test_a_clean_folder_is_kept_clean(tmp_path: Path) -> None:
    made = begun(tree(tmp_path, TREES["good"]))
    assert decisions(made) == {"profile": "default", "fail-on": "warning", "executor": "slurm"}
    assert "To look at the nodes of one: preflight check run.sbatch --on slurm" in made.text
    assert "#   NCCL_SOCKET_IFNAME=eth0   run.sbatch:3" in made.text


def test_a_folder_with_errors_counts_these_and_offers_a_baseline(tmp_path: Path) -> None:
    made = begun(tree(tmp_path, TREES["bad"]))
    found = decisions(made)
    assert found["fail-on"] == "error" and found["baseline?"] == "none" and "exclude" not in found
    assert '#exclude = ["/docs/", "/examples/"]' in made.text
    assert '#baseline = "preflight-baseline.json"' in made.text


def test_where_all_jobs_lie_in_examples_these_are_meant(tmp_path: Path) -> None:
    assert "exclude?" not in decisions(begun(tree(tmp_path, {"examples/a/run.sh": BAD})))


def test_submodules_are_left_out_with_what_they_hold(tmp_path: Path) -> None:
    files = {"run.sbatch": JOB.format("eth0"), "megatron/run.sh": BAD}
    (tmp_path / ".gitmodules").write_text('[submodule "megatron"]\n\tpath = megatron\n\turl = https://example.org/m\n')
    made = begun(tree(tmp_path, files))
    assert decisions(made)["exclude"] == "megatron/" and decisions(made)["fail-on"] == "warning"
    assert '\nexclude = ["/megatron/"]\n' in made.text
    (tmp_path / "preflight.toml").write_text(made.text)
    configured = api.configure(Choices(), [tmp_path], root=tmp_path).configuration
    assert [job.name for job in api.lint([tmp_path], root=tmp_path, configuration=configured).jobs] == ["run.sbatch"]
    # A file that is none is no reason to stop.
    (tmp_path / ".gitmodules").write_text("path = x\n[[[")
    assert "exclude" not in decisions(begun(tmp_path))


def test_the_executor_is_that_of_the_surroundings_before_that_of_the_files(tmp_path: Path) -> None:
    folder = tree(tmp_path, TREES["nodes"])
    assert decisions(begun(folder))["executor"] == "ssh"
    assert decisions(begun(folder, SLURM_JOB_ID="71"))["executor"] == "slurm"


def test_many_findings_are_begun_with_the_strict_few() -> None:
    counts = {"gate": 3, "default": MANY + 1, "pedantic": MANY + 9}
    survey = Survey(("run.sh",), 1, (), {}, (), (), counts, counts, {}, ())
    found = chosen(survey, executor="", because="", accept=False)
    assert found.profile == "gate" and f"{MANY + 1} findings" in found.decisions[0].because
    left = Folder("extern/x", 2, others=True)
    calm = Survey(("run.sh",), 1, (), {}, (left,), (), {"gate": 0, "default": 0, "pedantic": 4}, {}, {}, ())
    assert "`pedantic` would find 4 more" in chosen(calm, executor="", because="", accept=False).decisions[0].because


# --- the command ---


def test_it_writes_says_what_it_decided_and_never_replaces(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tree(tmp_path, TREES["bad"])
    assert called(folder) == 0
    said = capfd.readouterr().out
    assert "profile:" in said and "examples/" in said and f"{folder / 'preflight.toml'} is written" in said
    first = (folder / "preflight.toml").read_bytes()
    (folder / "preflight.toml").write_text("# mine\n")
    assert called(folder) == 2
    assert "is there already; --force replaces it" in capfd.readouterr().err
    assert (folder / "preflight.toml").read_text() == "# mine\n"
    assert called(folder, "--force") == 0 and (folder / "preflight.toml").read_bytes() == first


def test_a_table_in_pyproject_is_not_hidden(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert called(tree(tmp_path, TREES["good"])) == 0
    (tmp_path / "preflight.toml").unlink()
    for table in ("[tool.preflight]\nprofile = 'gate'\n", "[tool.preflight]\nprofil = 1\n"):
        (tmp_path / "pyproject.toml").write_text(table)
        assert called(tmp_path) == 2
        assert "which preflight.toml would hide" in capfd.readouterr().err
    assert not (tmp_path / "preflight.toml").exists()


def test_printing_writes_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tree(tmp_path, TREES["good"]))
    before = sorted(tmp_path.rglob("*"))
    assert called("--print") == 0
    shown, decided = capfd.readouterr()
    assert isinstance(validated(loads(shown)), Settings) and "profile:" in decided
    assert called("-") == 0 and capfd.readouterr().out == shown
    assert sorted(tmp_path.rglob("*")) == before
    assert called("--print", "--force") == 2


def test_accepting_makes_a_baseline_with_which_lint_is_silent(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tree(tmp_path, TREES["bad"]))
    assert cli.run(["lint", "--no-cache", "-q"]) == 1
    assert called("--accept") == 0
    assert cli.run(["lint", "--no-cache", "-q"]) == 0
    (tmp_path / "new.sh").write_text(BAD.replace("$R", "$RANK_OF_NODE"))
    assert cli.run(["lint", "--no-cache", "-q"]) == 1


def test_mistakes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for arguments, says in (
        ([tmp_path / "absent"], "is no folder"),
        (["--forse"], "--force"),
        ([tmp_path, tmp_path], "unexpected extra argument"),
    ):
        assert called(*arguments) == 2
        assert says in capfd.readouterr().err
    assert cli.run(["inti"]) == 2
    assert "Did you mean 'init'?" in capfd.readouterr().err
