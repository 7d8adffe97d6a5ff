"""None"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from preflight import api
from preflight._util.usage_error import UsageError
from preflight.model.findings import VerdictKind
from preflight.model.job import Job, Known, NoteKind, Scope, Strength, Unresolved
from preflight.plugins import registry
from preflight.sources.base import Reading, Source, SourceFile, Tree
from preflight.sources.configs.framework_files import FRAMEWORKS, DeepSpeedSource, FrameworkSource
from preflight.sources.configs.hugging_face import AccelerateSource
from preflight.sources.configs.line_files import HostfileSource
from preflight.sources.configs.training_settings import TrainingSettingsSource
from preflight.sources.discovery import walk as module
from preflight.sources.discovery.assemble import assemble, name_by_content
from preflight.sources.discovery.readings import TreeSnapshot
from preflight.sources.discovery.walk import walk
from preflight.sources.python.python_source import PythonSource
from preflight.sources.shell.shell_source import ShellSource

SOURCES: tuple[Source, ...] = (ShellSource(), DeepSpeedSource(), HostfileSource(), PythonSource())
TRAIN = "import torch.distributed as dist\ndist.init_process_group('nccl')\n"
DS = '{"train_batch_size": 16, "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}}\n'


def build(root: Path, files: dict[str, str], *paths: str) -> tuple[Job, ...]:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return assemble(root, [root / path for path in paths or (".",)], sources=SOURCES)


def names(job: Job) -> list[str]:
    return [file.path for file in job.files]


def test_references_are_followed_into_one_job(tmp_path: Path) -> None:
    files = {
        "job.sbatch": "#!/bin/bash\n#SBATCH -N 2\nsource env.sh\nsrun bash run.sh\n",
        "env.sh": "export NCCL_DEBUG=INFO\n",
        "run.sh": "torchrun --nnodes=2 --nproc_per_node=4 train.py --deepspeed_config ds.json\n",
        "train.py": TRAIN,
        "ds.json": DS,
        "README.md": "torchrun --nnodes=9 x.py\n",
    }
    (job,) = build(tmp_path, files)
    assert job.name == "job.sbatch"
    assert sorted(names(job)) == ["ds.json", "env.sh", "job.sbatch", "run.sh", "train.py"]
    (launch,) = job.launches
    assert (launch.id, launch.wrappers) == ("run.sh:1", ("srun",))
    # Claims of a launch's files have the scope of that launch.
    assert job.about("train_batch_size")[0].scope == Scope(launch="run.sh:1")
    assert job.value("env.NCCL_DEBUG", launch.scope) == Known("INFO")
    assert not job.probable


def test_world_size_is_derived_and_names_its_reasons(tmp_path: Path) -> None:
    (job,) = build(tmp_path, {"run.sh": "torchrun --nnodes=2 --nproc_per_node=4 t.py --tensor-model-parallel-size 2\n"})
    scope = job.launches[0].scope
    assert job.value("world_size", scope) == Known(8)
    assert job.value("data_parallel_size", scope) == Known(4)
    (world,) = job.setting("world_size", scope)
    assert [c.quantity for c in world.because] == ["nodes", "processes_per_node"]


def test_tasks_are_ranks_where_srun_starts_them(tmp_path: Path) -> None:
    header = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=8\n"
    (job,) = build(tmp_path, {"j.sbatch": header + "srun python train.py\n"})
    assert job.value("world_size", job.launches[0].scope) == Known(16)
    assert job.value("processes_per_node", job.launches[0].scope) == Known(8)
    (job,) = build(tmp_path, {"j.sbatch": header + "srun -n 4 python train.py\n"})
    assert job.value("world_size", job.launches[0].scope) == Known(4)
    (job,) = build(tmp_path, {"j.sbatch": header + "mpirun -np 4 python train.py\n"})
    assert job.value("world_size", job.launches[0].scope) == Known(4)


def test_a_flag_overrides_the_hostfile(tmp_path: Path) -> None:
    files = {
        "hostfile": "n1 slots=8\nn2 slots=8\n",
        "run.sh": "deepspeed --hostfile hostfile --num_gpus 4 t.py\n",
    }
    (job,) = build(tmp_path, files)
    assert job.value("world_size", job.launches[0].scope) == Known(8)
    files["run.sh"] = "deepspeed --hostfile hostfile t.py\n"
    (job,) = build(tmp_path, files)
    assert job.value("world_size", job.launches[0].scope) == Known(16)


def test_two_launches_read_their_configuration_each_in_its_scope(tmp_path: Path) -> None:
    script = "deepspeed a.py --deepspeed_config a.json\ndeepspeed b.py --deepspeed_config b.json\n"
    (job,) = build(tmp_path, {"run.sh": script, "a.json": DS, "b.json": DS.replace("16", "32")})
    assert [job.value("train_batch_size", launch.scope) for launch in job.launches] == [Known(16), Known(32)]


def test_entry_scripts_of_a_folder_are_separate_jobs(tmp_path: Path) -> None:
    files = {
        "a.sh": "torchrun --nnodes=2 train.py\n",
        "b.sh": "torchrun --nnodes=4 train.py\n",
        "train.py": TRAIN,
        "install.sh": "pip install torch\n",
        "lone/ds_config.json": DS,
        "node_modules/x/run.sh": "torchrun --nnodes=2 x.py\n",
        ".git/hooks/run.sh": "torchrun --nnodes=2 x.py\n",
    }
    jobs = build(tmp_path, files)
    assert [job.name for job in jobs] == ["a.sh", "b.sh", "lone/ds_config.json"]
    # A file may belong to several jobs.
    assert names(jobs[0]) == ["a.sh", "train.py"] and names(jobs[1]) == ["b.sh", "train.py"]


NODE = "torchrun --nnodes=2 --node_rank={} --master_addr=n1 --master_port={} train.py\n"


def test_unit_tests_of_a_folder_start_no_job(tmp_path: Path) -> None:
    tests = f"import unittest\n{TRAIN}\n\ndef test_it():\n    pass\n"
    files = {"train.py": TRAIN, "tests/test_train.py": tests, "test_speed.py": TRAIN}
    assert [job.name for job in build(tmp_path, files)] == ["test_speed.py", "train.py"]
    assert [job.name for job in build(tmp_path, files, "tests/test_train.py")] == ["tests/test_train.py"]


def test_in_test_folders_only_launches_count(tmp_path: Path) -> None:
    wrong = '{"train_batch_size": "wrong on purpose", "zero_optimization": {}}'
    files = {"tests/run.sh": "torchrun train.py\n", "tests/train.py": TRAIN, "tests/configs/ds_config.json": wrong}
    assert [job.name for job in build(tmp_path, files)] == ["tests/run.sh"]
    assert [job.name for job in build(tmp_path, files, "tests")] == ["tests/configs/ds_config.json", "tests/run.sh"]


def test_scripts_for_each_node_form_a_probable_job(tmp_path: Path) -> None:
    (job,) = build(tmp_path, {"node0.sh": NODE.format(0, 1), "node1.sh": NODE.format(1, 2)})
    assert job.probable
    assert job.name == "node0.sh + node1.sh"
    assert [job.value("master_port", launch.scope) for launch in job.launches] == [Known(1), Known(2)]


def test_scripts_for_each_role_form_a_probable_job(tmp_path: Path) -> None:
    start = "export PADDLE_PSERVERS_IP_PORT_LIST=10.0.0.1:1 PADDLE_TRAINERS_NUM=1\n"
    server = start + "TRAINING_ROLE=PSERVER POD_IP=10.0.0.1 PADDLE_PORT=1 python a.py\n"
    worker = start + "TRAINING_ROLE=TRAINER PADDLE_TRAINER_ID=0 python b.py\n"
    (job,) = build(tmp_path, {"server.sh": server, "start_worker.sh": worker})
    assert job.probable and len(job.launches) == 2


def test_scripts_named_together_are_one_certain_job(tmp_path: Path) -> None:
    (job,) = build(tmp_path, {"node0.sh": NODE.format(0, 1), "node1.sh": NODE.format(1, 1)}, "node0.sh", "node1.sh")
    assert not job.probable and len(job.launches) == 2


def test_scripts_numbered_like_nodes_are_one_job_even_with_a_repeated_rank(tmp_path: Path) -> None:
    (job,) = build(tmp_path, {"node0.sh": NODE.format(0, 1), "node1.sh": NODE.format(0, 1)})
    assert job.probable and [job.value("node_rank", launch.scope) for launch in job.launches] == [Known(0), Known(0)]
    for several in (("node0.sh", "node1.sh", "node2.sh"), ("fast1.sh", "fast2.sh")):
        jobs = build(tmp_path / f"of{len(several)}", dict.fromkeys(several, NODE.format(0, 1)))
        assert len(jobs) == len(several), "three scripts for two nodes, or names that speak of no nodes"


def test_a_lone_configuration_joins_the_lone_launch_that_needs_one(tmp_path: Path) -> None:
    start = "deepspeed --num_gpus 4 train.py\n"
    (job,) = build(tmp_path / "a", {"run.sh": start, "ds.json": DS})
    assert job.probable and sorted(names(job)) == ["ds.json", "run.sh"]
    for other in ({"run2.sh": start}, {"ds2.json": DS}, {"run.sh": "torchrun train.py\n"}):
        jobs = build(tmp_path / str(sorted(other)), {"run.sh": start, "ds.json": DS} | other)
        assert not any(job.probable for job in jobs), other


@pytest.mark.parametrize("other", ["torchrun train.py\n", NODE.format(1, 9).replace("train", "x")])
def test_other_scripts_of_a_folder_are_not_siblings(tmp_path: Path, other: str) -> None:
    jobs = build(tmp_path, {"node0.sh": NODE.format(0, 1), "node1.sh": other})
    assert len(jobs) == 2 and not any(job.probable for job in jobs)


def test_several_batch_scripts_are_several_submissions(tmp_path: Path) -> None:
    files = {f"{n}.sbatch": f"#!/bin/bash\n#SBATCH -N {n}\nsrun torchrun --nnodes={n} t.py\n" for n in (1, 2)}
    jobs = build(tmp_path, files, "1.sbatch", "2.sbatch")
    assert [job.value("nodes") for job in jobs] == [Known(1), Known(2)]


def test_a_submitted_script_is_a_separate_job(tmp_path: Path) -> None:
    files = {
        "submit.sh": "sbatch job.sbatch\n",
        "job.sbatch": "#!/bin/bash\n#SBATCH -N 2\nsrun torchrun --nnodes=2 t.py\n",
    }
    assert "job.sbatch" in [job.name for job in build(tmp_path, files, "submit.sh")]
    assert [job.name for job in build(tmp_path, files) if job.launches] == ["job.sbatch"]


def test_a_wrapped_command_belongs_to_the_submitting_script(tmp_path: Path) -> None:
    files = {
        "submit.sh": "sbatch -N 2 --wrap 'torchrun --nnodes=2 t.py'\n",
        "t.py": "import torch.distributed as dist\ndist.init_process_group('nccl')\n",
    }
    (job,) = build(tmp_path, files)
    assert names(job) == ["submit.sh", "t.py"]


def test_a_missing_configuration_is_noted_where_it_is_named(tmp_path: Path) -> None:
    (job,) = build(
        tmp_path,
        {"run.sh": "set -e\ndeepspeed --hostfile hf t.py --deepspeed_config ds.json --data-path /d/x\n"},
    )
    missing = {note.message.split("`")[1]: note for note in job.notes if note.kind is NoteKind.MISSING}
    assert set(missing) == {"hf", "t.py", "ds.json"}
    assert missing["ds.json"].span.line == 2
    assert not any(note.required for note in job.notes)


def test_a_file_that_the_script_writes_itself_is_read_there(tmp_path: Path) -> None:
    script = "cat > ds.json <<EOF\n" + DS + "EOF\ndeepspeed t.py --deepspeed_config ds.json\n"
    (job,) = build(tmp_path, {"run.sh": script})
    (batch,) = job.about("train_batch_size")
    assert (batch.value, batch.span.path, batch.span.line) == (Known(16), "run.sh", 2)


def test_unreadable_input_that_was_named_is_required(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_bytes(b"torchrun\x00")
    (job,) = build(tmp_path, {}, "run.sh")
    assert [(note.kind, note.required) for note in job.notes] == [(NoteKind.UNREADABLE, True)]
    (tmp_path / "loop.sh").symlink_to("loop.sh")
    (job,) = build(tmp_path, {}, "loop.sh")
    assert job.notes[0].required


@pytest.mark.parametrize("named", ["", "run.sh"])
def test_a_started_script_that_cannot_be_parsed_is_required(tmp_path: Path, named: str) -> None:
    files = {"run.sh": "torchrun --nproc_per_node=4 train.py\n", "train.py": "init_process_group('nccl'\nx = 1\n"}
    (job,) = build(tmp_path, files, *filter(None, [named]))
    assert [(note.kind, note.span.path, note.required) for note in job.notes] == [
        (NoteKind.MALFORMED, "train.py", True)
    ]


class _Crashing:
    name = "crashing"

    def recognises(self, file: SourceFile) -> bool:
        if file.path == "b.sh":
            raise ValueError("cannot look")
        return True

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = Scope(), role: str = "") -> Reading:  # noqa: B008
        raise RuntimeError("oh no")


def test_a_crashing_reader_gives_a_note(tmp_path: Path) -> None:
    for name in ("a.sh", "b.sh"):
        (tmp_path / name).write_text("torchrun --nnodes=2 t.py\n")
    (job,) = assemble(tmp_path, [tmp_path / "a.sh"], sources=(_Crashing(), *SOURCES))
    assert [(n.kind, n.required, "oh no" in n.message) for n in job.notes] == [(NoteKind.CRASHED, True, True)]
    (job,) = assemble(tmp_path, [tmp_path / "b.sh"], sources=(_Crashing(), *SOURCES))
    assert len(job.launches) == 1


def test_scripts_that_run_each_other_terminate(tmp_path: Path) -> None:
    (job,) = build(tmp_path, {"a.sh": "bash b.sh\ntorchrun a.py\n", "b.sh": "bash a.sh\ntorchrun b.py\n"}, "a.sh")
    assert job.launches


def test_the_same_files_give_the_same_jobs(tmp_path: Path) -> None:
    files = {f"{c}.sh": f"torchrun --nnodes=2 {c}.py\n" for c in "cab"} | {f"{c}.py": TRAIN for c in "cab"}
    assert build(tmp_path, files) == build(tmp_path, files)


def test_all_quantities_are_in_the_vocabulary(tmp_path: Path) -> None:
    from preflight.model.job.value import QUANTITIES, is_known

    root = Path(__file__).parents[3] / "examples"
    claims = [claim for job in assemble(root, [root], sources=SOURCES) for claim in job.claims]
    assert claims
    for claim in claims:
        assert is_known(claim.quantity), claim.quantity
        if not claim.quantity.startswith("setting."):
            # A setting is claimed as it is written, whatever its kind.
            kind = QUANTITIES[claim.quantity].kind if claim.quantity in QUANTITIES else str
            assert all(type(item) is kind for item in claim.alternatives), claim
        assert isinstance(claim.strength, Strength) and claim.span.line >= 1
        assert claim.alternatives or isinstance(claim.value, Unresolved)


def test_a_launch_over_ssh_is_one_launch_however_it_is_quoted(tmp_path: Path) -> None:
    lines = "ssh node1 torchrun --nnodes=2 t.py &\nssh node2 'cd /w && torchrun --nnodes=2 t.py'\n"
    (job,) = build(tmp_path, {"run.sh": lines}, "run.sh")
    assert [launch.id for launch in job.launches] == ["run.sh:1", "run.sh:2"]


def test_an_accelerate_configuration_alone_states_processes_per_machine(tmp_path: Path) -> None:
    (tmp_path / "acc.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nnum_machines: 2\nnum_processes: 16\n"
    )
    (job,) = assemble(tmp_path, [tmp_path / "acc.yaml"], sources=(AccelerateSource(),))
    (claim,) = job.about("processes_per_node")
    assert (claim.value, claim.source) == (Known(8), "derived")
    assert [c.quantity for c in claim.because] == ["world_size", "nodes"]


def test_configurations_of_experiments_are_jobs_where_a_launch_names_them(tmp_path: Path) -> None:
    sources = (*SOURCES, FrameworkSource(FRAMEWORKS["paddleseg"]), TrainingSettingsSource())
    files = {
        "a.yml": "batch_size: 2\niters: 10\nmodel: {type: A}\n",
        "b.yml": "batch_size: 4\niters: 10\nmodel: {type: B}\n",
        "other.yaml": "batch_size: 4\nlr: 0.1\n",
        "run.sh": "torchrun --nproc_per_node=2 train.py --config a.yml\n",
        "train.py": TRAIN,
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    snapshot = TreeSnapshot(tmp_path)
    (job,) = assemble(tmp_path, [tmp_path], sources=sources, snapshot=snapshot)
    assert sorted(names(job)) == ["a.yml", "run.sh", "train.py"]
    # What is skipped is counted with the reason.
    assert [(one.path, one.files, one.reason) for one in snapshot.left_out] == [
        (".", 2, "settings that no launch names")
    ]
    for name in ("b.yml", "other.yaml"):
        (single,) = assemble(tmp_path, [tmp_path / name], sources=sources)
        assert {claim.value for claim in single.claims if "batch_size" in claim.quantity} == {Known(4)}


# Standard input without a name: its kind by its content, and none where the content does not show it.


_DEEPSPEED = '{"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}'
_TORCHTITAN = '[model]\nname = "llama3"\n[training]\nlocal_batch_size = 2\n[parallelism]\ntensor_parallel_degree = 2\n'


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ("apiVersion: batch/v1\nkind: Job\nmetadata: {name: a}\n", "stdin"),
        ('{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}}', "stdin.json"),
        ("#!/bin/bash\n#SBATCH -N 2\nsrun python train.py\n", "stdin"),
        ("torchrun --nnodes=2 --nproc_per_node=8 train.py\n", "stdin.sh"),
        (_DEEPSPEED, "stdin.json"),
        (_TORCHTITAN, "stdin.toml"),
        ("compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nnum_machines: 2\n", "stdin.yaml"),
        ("import torch.distributed as dist\ndist.init_process_group('nccl')\n", "stdin.py"),
        ("# syntax=1\nFROM pytorch/pytorch:2.1\nRUN pip install deepspeed\n", "stdin.dockerfile"),
    ],
    ids=range(9),
)
def test_the_kind_is_recognised(content: str, name: str) -> None:
    assert name_by_content(content.encode(), registry.sources()) == name


@pytest.mark.parametrize(
    "content", [b"", b"hello world\n", b"\0\1", b"{" * 50_000, b"[" * 50_000, b"x = " + b"9" * 9000]
)
def test_a_content_that_shows_nothing_has_no_kind(content: bytes) -> None:
    assert name_by_content(content, registry.sources()) == "stdin"


# A file of settings that a launch names counts against GO unless something is read from it.


def job(folder: Path, arguments: str) -> Path:
    (folder / "run.sh").write_text(f"#!/bin/bash\ntorchrun --nproc_per_node=8 train.py {arguments}\n")
    (folder / "train.py").write_text('import torch.distributed as dist\n\ndist.init_process_group("nccl")\n')
    (folder / "own.yaml").write_text("alpha: {beta: 2}\n")
    return folder


@pytest.mark.parametrize("arguments", ["--cfg own.yaml", "--config=own.yaml", "-c own.yaml"])
def test_settings_that_no_source_reads_are_named(arguments: str, tmp_path: Path) -> None:
    report = api.lint(job(tmp_path, arguments))
    assert (report.verdict, report.exit_code) == (VerdictKind.INCOMPLETE, 3)
    (unread,) = report.understood.files_unread
    assert "`own.yaml` contains the settings of this launch, and no source reads a file of this type" in unread.reason


@pytest.mark.parametrize("arguments", ["", "--data own.yaml", "--cfg absent.yaml", "--cfg $CONFIG"])
def test_other_arguments_change_nothing(arguments: str, tmp_path: Path) -> None:
    assert api.lint(job(tmp_path, arguments)).verdict is VerdictKind.GO


def test_a_script_that_reads_its_settings_itself_is_understood(tmp_path: Path) -> None:
    folder = job(tmp_path, "--cfg own.yaml")
    script = folder / "train.py"
    script.write_text(f"import yaml\n{script.read_text()}settings = yaml.safe_load(open('own.yaml'))\n")
    report = api.lint(folder)
    assert report.verdict is VerdictKind.GO
    assert any("only the script defines their meaning" in item.reason for item in report.coverage.unknown_outcomes)


def make(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")


def test_only_files_that_may_belong_to_a_job_are_found_in_order(tmp_path: Path) -> None:
    make(tmp_path, "b.sh", "a/run", "a/z.py", "ds.json", "img.png", ".hidden.sh", ".git/x.sh", "venv/x.py")
    assert walk(tmp_path, ".").files == ("b.sh", "ds.json", "a/run", "a/z.py")
    assert walk(tmp_path, "a").files == ("a/run", "a/z.py")


def test_ignored_files_are_skipped(tmp_path: Path) -> None:
    make(
        tmp_path,
        "out/x.sh",
        "a/out/y.sh",
        "a/keep.sh",
        "a/gen1.sh",
        "top.sh",
        "a/top.sh",
        "b/c/d/e.sh",
        "b/e.sh",
    )
    (tmp_path / ".gitignore").write_text("# made\n\nout/\ngen?.sh\n/top.sh\nb/**/e.sh\n!b/e.sh\n" + "*a" * 50 + "\n")
    assert walk(tmp_path, ".").files == ("a/keep.sh", "a/top.sh", "b/e.sh")
    assert walk(tmp_path, "a").files == ("a/keep.sh", "a/top.sh")
    # A folder named by the user is read even if it is ignored.
    assert walk(tmp_path, "out").files == ("out/x.sh",)


def test_the_innermost_matching_ignore_file_decides(tmp_path: Path) -> None:
    make(tmp_path, "a/x.sh", "a/b/x.sh", "a/b/y.sh", "y.sh", "a/b/c/y.sh")
    (tmp_path / ".gitignore").write_text("x.sh\ny.sh\n\\\n[\n")
    (tmp_path / "a" / "b" / ".gitignore").write_text("!x.sh\n!/y.sh\n")
    assert walk(tmp_path, ".").files == ("a/b/x.sh", "a/b/y.sh")


def test_excluded_files_are_skipped(tmp_path: Path) -> None:
    make(tmp_path, "a/x.sh", "b/x.sh", "b/a/x.sh", "c.sh")
    (tmp_path / ".gitignore").write_text("!*.sh\n")
    assert walk(tmp_path, ".", exclude=["/a", "c.*"]).files == ("b/x.sh", "b/a/x.sh")
    with pytest.raises(UsageError, match="is not a pattern"):
        walk(tmp_path, ".", exclude=["!"])


def test_the_first_bytes_decide_if_the_name_does_not(tmp_path: Path) -> None:
    make(tmp_path, "Dockerfile.train", "hostfile.4", ".env", ".envrc", "job.lsf", "train.list")
    (tmp_path / "start.node0").write_text("#!/usr/bin/env bash\necho\n")
    (tmp_path / "big.run").write_text("#BSUB -n 4\necho\n")
    (tmp_path / "notes.2024").write_text("what was said\n")
    (tmp_path / "run.sh.j2").write_text("#!/bin/bash\n{{ x }}\n")
    os.mkfifo(tmp_path / "pipe.run")
    found = walk(tmp_path, ".").files
    assert found == (".env", "Dockerfile.train", "big.run", "hostfile.4", "job.lsf", "start.node0", "train.list")


def test_third_party_folders_are_skipped_unless_named(tmp_path: Path) -> None:
    make(tmp_path, "third_party/x.sh", "pkg/testdata/y.yaml", "tools/pyvenv.cfg", "tools/bin/run", "here.sh")
    assert walk(tmp_path, ".").files == ("here.sh",)
    assert walk(tmp_path, "pkg/testdata").files == ("pkg/testdata/y.yaml",)


def test_links_to_folders_are_not_entered(tmp_path: Path) -> None:
    make(tmp_path, "a/run.sh")
    (tmp_path / "a" / "again").symlink_to(tmp_path, target_is_directory=True)
    os.mkfifo(tmp_path / "a" / ".gitignore")
    assert walk(tmp_path, ".").files == ("a/run.sh",)


def test_circular_links_are_reported_when_read(tmp_path: Path) -> None:
    make(tmp_path, "run.sh")
    (tmp_path / "train.sh").symlink_to("train.sh")
    (tmp_path / "a.py").symlink_to("b.py")
    (tmp_path / "b.py").symlink_to("a.py")
    assert walk(tmp_path, ".").files == ("a.py", "b.py", "run.sh", "train.sh")


def test_too_many_files_are_noted(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    make(tmp_path, *(f"{n}.sh" for n in range(5)))
    monkeypatch.setattr(module, "MAX_FILES", 3)
    walked = walk(tmp_path, ".")
    assert len(walked.files) == 3 and "3 files" in walked.notes[0].message


def test_a_job_is_read_again_with_the_defaults_of_its_scripts(tmp_path: Path) -> None:
    lines = "NNODES=${NNODES:-4}\ntorchrun --nnodes=$NNODES --node-rank=${NODE_RANK:-0} --nproc-per-node=8 train.py\n"
    (job,) = build(tmp_path, {"run.sh": lines, "train.py": TRAIN})
    (launch,) = job.launches
    assert isinstance(job.value("nodes", launch.scope), Unresolved)
    assert job.by_default is not None
    assert job.by_default.value("nodes", launch.scope) == Known(4)
    # Each node has its own rank, so the default of that is none.
    assert job.by_default.assumed == (("NNODES", "4"),)
    assert isinstance(job.by_default.value("node_rank", launch.scope), Unresolved)


def test_a_job_without_defaults_is_read_once(tmp_path: Path) -> None:
    (job,) = build(tmp_path, {"run.sh": "torchrun --nnodes=$1 --nproc-per-node=8 train.py\n", "train.py": TRAIN})
    assert job.by_default is None


def test_what_a_script_asks_for_is_not_set_where_it_is_read_again(tmp_path: Path) -> None:
    lines = (
        'if [ -z "$NNODES" ]; then NNODES=4; fi\n[[ -n $PROCESSES ]] || PROCESSES=8\n'
        '[ -n "$ON_SITE" ] && SEED=1\n'
        "torchrun --nnodes=$NNODES --node-rank=$NODE_RANK --nproc-per-node=$PROCESSES train.py\n"
    )
    (job,) = build(tmp_path, {"run.sh": lines, "train.py": TRAIN})
    assert job.by_default is not None
    (launch,) = job.by_default.launches
    assert job.by_default.value("nodes", launch.scope) == Known(4)
    assert job.by_default.value("processes_per_node", launch.scope) == Known(8)
    # What the script does not assign itself may be anything.
    assert job.by_default.assumed == (("NNODES", ""), ("PROCESSES", ""))


def test_a_program_that_asks_for_a_variable_gets_its_default_where_it_is_read_again(tmp_path: Path) -> None:
    program = (
        'import os\nimport torch\nn = int(os.environ.get("PARTS", 6))\n'
        "torch.utils.data.DistributedSampler(data, num_replicas=n)\n"
    )
    (job,) = build(tmp_path, {"run.sh": "torchrun --nproc-per-node=4 train.py\n", "train.py": TRAIN + program})
    (launch,) = job.launches
    assert job.by_default is not None
    assert job.by_default.assumed == (("PARTS", "6"),)
    assert job.by_default.value("setting.torch_sampler.num_replicas", launch.scope) == Known(6)
