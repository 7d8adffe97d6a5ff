"""`preflight init`: the written file is valid, gives its reasons, and never overwrites another."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from preflight import api
from preflight._util.toml import parse
from preflight.cli import main
from preflight.commands.init import MANY_FINDINGS, FirstConfig, Folder, ProjectScan, choose_settings, make_first_config
from preflight.config.document import Settings, load_named, validate_settings
from preflight.config.resolve import Choices
from preflight.model.configuration import Site

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


def begun(folder: Path, *, accept: bool = False, **environment: str) -> FirstConfig:
    return make_first_config(folder, environment=environment, created=TODAY, accept=accept)


def uncommented(text: str) -> str:
    """The file with every offered key set."""
    return re.sub(r'^#(?=[A-Za-z"\[])', "", text, flags=re.MULTILINE)


def run_command(*arguments: str | Path) -> int:
    return main.run(["init", *map(str, arguments)])


def decisions(made: FirstConfig) -> dict[str, str]:
    return {decision.about: decision.choice for decision in made.chosen.decisions}


TREES = {
    "empty": {},
    "good": {"run.sbatch": JOB.format("eth0")},
    "bad": {"run.sh": BAD, "examples/one/run.sh": BAD, "docs/run.sh": BAD},
    "odd": {'jobs "x"/examples/a [1]*/run.sh': BAD, "run.sbatch": JOB.format("ib0"), "tests/é\x7f\u202e/run.sh": BAD},
    "nodes": {"run.sh": "deepspeed --hostfile=hosts train.py\n", "hosts": "a slots=4\nb slots=4\n"},
}


@pytest.mark.parametrize("name", TREES)
def test_the_file_and_every_offered_key_can_be_read(name: str, tmp_path: Path) -> None:
    folder = tree(tmp_path, TREES[name])
    made = begun(folder)
    (folder / "preflight.toml").write_text(made.text)
    configured = api.configure(Choices(), [folder], root=folder).configuration
    assert (configured.profile, configured.fail_on) == (made.chosen.profile, made.chosen.fail_on)
    every = parse(uncommented(made.text))
    assert isinstance(validate_settings(every), Settings)
    # A database may only be named by a file that --config gives, which this one is not.
    assert {*every} | {"history", "history-keep"} == {field.name.replace("_", "-") for field in fields(Settings)}
    # More than types: rules exist, patterns are valid. Site rules are skipped, because their files would have to exist.
    (folder / "whole.toml").write_text(re.sub(r"^site-rules.*\n", "", uncommented(made.text), flags=re.MULTILINE))
    assert load_named(folder / "whole.toml", folder, Site()).settings.waive[0].expires is not None


def test_the_same_folder_gives_the_same_text(tmp_path: Path) -> None:
    folder = tree(tmp_path, TREES["bad"])
    assert begun(folder).text == begun(folder).text
    assert all(len(line) <= 120 for line in begun(folder).text.splitlines())


def test_a_clean_folder_is_kept_clean(tmp_path: Path) -> None:
    made = begun(tree(tmp_path, TREES["good"]))
    assert decisions(made) == {"profile": "default", "fail-on": "warning", "executor": "slurm"}
    assert "To check the nodes of one: preflight check run.sbatch --on slurm" in made.text
    assert "#   NCCL_SOCKET_IFNAME=eth0   run.sbatch:3" in made.text


def test_a_folder_with_errors_counts_these_and_offers_a_baseline(tmp_path: Path) -> None:
    made = begun(tree(tmp_path, TREES["bad"]))
    found = decisions(made)
    assert found["fail-on"] == "error" and found["baseline?"] == "none" and "exclude" not in found
    assert '#exclude = ["/docs/", "/examples/"]' in made.text
    assert '#baseline = "preflight-baseline.json"' in made.text


def test_a_project_of_examples_is_checked(tmp_path: Path) -> None:
    assert "exclude?" not in decisions(begun(tree(tmp_path, {"examples/a/run.sh": BAD})))


def test_submodules_are_skipped(tmp_path: Path) -> None:
    files = {"run.sbatch": JOB.format("eth0"), "megatron/run.sh": BAD}
    (tmp_path / ".gitmodules").write_text('[submodule "megatron"]\n\tpath = megatron\n\turl = https://example.org/m\n')
    made = begun(tree(tmp_path, files))
    assert decisions(made)["exclude"] == "megatron/" and decisions(made)["fail-on"] == "warning"
    assert '\nexclude = ["/megatron/"]\n' in made.text
    (tmp_path / "preflight.toml").write_text(made.text)
    configured = api.configure(Choices(), [tmp_path], root=tmp_path).configuration
    assert [job.name for job in api.lint([tmp_path], root=tmp_path, configuration=configured).jobs] == ["run.sbatch"]
    # An invalid file does not stop the command.
    (tmp_path / ".gitmodules").write_text("path = x\n[[[")
    assert "exclude" not in decisions(begun(tmp_path))


def test_the_environment_chooses_the_executor_before_the_files(tmp_path: Path) -> None:
    folder = tree(tmp_path, TREES["nodes"])
    assert decisions(begun(folder))["executor"] == "ssh"
    assert decisions(begun(folder, SLURM_JOB_ID="71"))["executor"] == "slurm"


def test_many_findings_start_with_the_gate_profile() -> None:
    counts = {"gate": 3, "default": MANY_FINDINGS + 1, "pedantic": MANY_FINDINGS + 9}
    survey = ProjectScan(("run.sh",), 1, (), {}, (), (), counts, counts, {}, ())
    found = choose_settings(survey, executor="", because="", accept=False)
    assert found.profile == "gate" and f"{MANY_FINDINGS + 1} findings" in found.decisions[0].because
    left = Folder("extern/x", 2, others=True)
    calm = ProjectScan(("run.sh",), 1, (), {}, (left,), (), {"gate": 0, "default": 0, "pedantic": 4}, {}, {}, ())
    assert (
        "`pedantic` would find 4 more"
        in choose_settings(calm, executor="", because="", accept=False).decisions[0].because
    )


# --- the command ---


def test_it_writes_reports_its_decisions_and_never_overwrites(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tree(tmp_path, TREES["bad"])
    assert run_command(folder) == 0
    said = capfd.readouterr().out
    assert "profile:" in said and "examples/" in said and f"Wrote {folder / 'preflight.toml'}" in said
    first = (folder / "preflight.toml").read_bytes()
    (folder / "preflight.toml").write_text("# mine\n")
    assert run_command(folder) == 2
    assert "already exists; --force replaces it" in capfd.readouterr().err
    assert (folder / "preflight.toml").read_text() == "# mine\n"
    assert run_command(folder, "--force") == 0 and (folder / "preflight.toml").read_bytes() == first


def test_a_table_in_pyproject_is_not_overridden(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert run_command(tree(tmp_path, TREES["good"])) == 0
    (tmp_path / "preflight.toml").unlink()
    for table in ("[tool.preflight]\nprofile = 'gate'\n", "[tool.preflight]\nprofil = 1\n"):
        (tmp_path / "pyproject.toml").write_text(table)
        assert run_command(tmp_path) == 2
        assert "which preflight.toml would override" in capfd.readouterr().err
    assert not (tmp_path / "preflight.toml").exists()


def test_printing_writes_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tree(tmp_path, TREES["good"]))
    before = sorted(tmp_path.rglob("*"))
    assert run_command("--print") == 0
    shown, decided = capfd.readouterr()
    assert isinstance(validate_settings(parse(shown)), Settings) and "profile:" in decided
    assert run_command("-") == 0 and capfd.readouterr().out == shown
    assert sorted(tmp_path.rglob("*")) == before
    assert run_command("--print", "--force") == 2


def test_accept_writes_a_baseline_that_silences_lint(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tree(tmp_path, TREES["bad"]))
    assert main.run(["lint", "--no-cache", "-q"]) == 1
    assert run_command("--accept") == 0
    assert main.run(["lint", "--no-cache", "-q"]) == 0
    (tmp_path / "new.sh").write_text(BAD.replace("$R", "$RANK_OF_NODE"))
    assert main.run(["lint", "--no-cache", "-q"]) == 1


def test_mistakes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for arguments, expected in (
        ([tmp_path / "absent"], "is not a folder"),
        (["--forse"], "--force"),
        ([tmp_path, tmp_path], "unexpected extra argument"),
    ):
        assert run_command(*arguments) == 2
        assert expected in capfd.readouterr().err
    assert main.run(["inti"]) == 2
    assert "Did you mean 'init'?" in capfd.readouterr().err
