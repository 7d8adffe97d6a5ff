"""Hostile files wherever a command line, a configuration or a folder can lead: each costs seconds, never more memory
than lint may take, and ends in an answer or in an error that names the file."""

from __future__ import annotations

import gzip
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.suite.measured import measured

pytestmark = pytest.mark.thorough

_LAUNCH = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\nsrun torchrun --nnodes=2 train.py\n"
#: Processor time; waits end by the clock.
_SECONDS = 25
_WAITING_SECONDS = 600
_MAX_BYTES = 512 << 20
#: A case prepares a folder and returns the arguments, the expected exit codes and the expected output.
Case = Callable[[Path], tuple[list[str], tuple[int, ...], str]]

CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def _job(folder: Path) -> str:
    (folder / "run.sh").write_text(_LAUNCH)
    return "run.sh"


def _sparse(path: Path, size: int = 20 << 30) -> str:
    with path.open("wb") as stream:
        stream.truncate(size)
    return path.name


def _fifo(path: Path) -> str:
    os.mkfifo(path)
    return path.name


def _socket(path: Path) -> str:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    return path.name


def _configured(folder: Path, text: str) -> list[str]:
    (folder / "preflight.toml").write_text(text)
    return ["lint", _job(folder)]


@case
def dotted_key_of_many_parts(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    return _configured(folder, "[tool.preflight]\n" + "a." * 100_000 + "a = 1\n"), (2,), "preflight.toml"


@case
def dotted_key_of_many_parts_in_pyproject(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    (folder / "pyproject.toml").write_text("[tool.preflight]\n" + "a." * 20_000 + "a = 1\n")
    return ["lint", _job(folder)], (2,), "pyproject.toml"


@case
def long_unknown_name(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    return _configured(folder, f'select = ["{"a" * 250_000}"]\n'), (2,), "unknown rule or check"


@case
def thousands_of_unknown_names(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    names = ", ".join(f'"unknown-{number:05}"' for number in range(12_000))
    return _configured(folder, f"select = [{names}]\n"), (2,), "preflight.toml"


@case
def thousands_of_unknown_keys(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    return _configured(folder, "".join(f"key-{number} = 1\n" for number in range(15_000))), (2,), "preflight.toml"


@case
def deeply_nested_arrays(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    return _configured(folder, f"select = {'[' * 900}{']' * 900}\n"), (2,), "preflight.toml"


@case
def thousands_of_ignore_comments(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    remark = "# preflight: ignore[RDV001] of no use\n"
    (folder / "run.sh").write_text(_LAUNCH + remark * 60_000)
    return ["lint", "run.sh"], (0, 1, 3), ""


@case
def thousands_of_ignore_comments_in_one_command(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    (folder / "run.sh").write_text(_LAUNCH + "# preflight: ignore[RDV001] x\n" * 3_000 + "echo a \\\n" * 3_000 + "b\n")
    return ["lint", "run.sh"], (0, 1, 3), ""


@case
def thousands_of_waivers(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    waiver = '[[waive]]\nrule = "RDV001"\nreason = "x"\npaths = ["*.{0}"]\n'
    return _configured(folder, "".join(waiver.format(n) for n in range(4_000))), (0, 1, 2, 3), ""


@case
def a_baseline_that_is_a_fifo(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    return _configured(folder, f'baseline = "{_fifo(folder / "base.json")}"\n'), (2,), "is a FIFO"


@case
def a_baseline_of_twenty_gibibytes(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    return _configured(folder, f'baseline = "{_sparse(folder / "base.json")}"\n'), (2,), "base.json"


@case
def a_baseline_of_a_million_entries(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    row = '{"id": "RDV001", "path": "a", "fingerprint": "%d", "message": ""}'
    rows = ",".join(row % number for number in range(1_000_000))
    (folder / "base.json").write_text('{"schema_version": 1, "findings": [' + rows + "]}")
    return ["lint", "--baseline", "base.json", _job(folder)], (2,), "base.json"


@case
def a_hostfile_of_many_lines(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    (folder / "hostfile").write_text("".join(f"node-{number} slots=8\n" for number in range(200_000)))
    (folder / "run.sh").write_text("deepspeed --hostfile hostfile train.py\n")
    return ["lint", "run.sh"], (0, 1, 3), "hostfile"


@case
def a_named_hostfile_of_many_lines(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    (folder / "hosts").write_text("".join(f"node-{number} slots=8\n" for number in range(200_000)))
    return ["check", _job(folder), "--hostfile", "hosts", "--on", "ssh"], (2,), "hosts"


@case
def a_named_hostfile_that_is_a_fifo(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    return ["check", _job(folder), "--hostfile", _fifo(folder / "hosts"), "--on", "ssh"], (2,), "is a FIFO"


@case
def a_range_of_a_billion_hosts(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    return ["check", _job(folder), "--hosts", "node[1-1000000000]", "--on", "ssh"], (2,), "node[1-1000000000]"


@case
def a_nodelist_of_a_billion_hosts(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    (folder / "run.sh").write_text(_LAUNCH.replace("#SBATCH --nodes=2", "#SBATCH --nodelist=node[1-1000000000]"))
    return ["lint", "run.sh"], (0, 1, 3), ""


@case
def a_waiver_of_many_hosts(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    hosts = ", ".join(f'"n{number}-[1-100000]"' for number in range(500))
    return _configured(folder, f'[[waive]]\nrule = "RDV001"\nreason = "x"\nhosts = [{hosts}]\n'), (2,), "hosts"


@case
def a_gitignore_of_thousands_of_patterns(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    (folder / ".gitignore").write_text("".join(f"*a{n}*b*c\n" for n in range(5_000)))
    for number in range(200):
        (folder / f"{'a' * 200}{number}.sh").write_text(_LAUNCH)
    return ["lint", "--quiet", "."], (0, 1, 3), ""


@case
def a_gitignore_of_stars(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    (folder / ".gitignore").write_text(("*a" * 90 + "b\n") * 300 + "**/" * 60 + "x\n")
    _job(folder)
    (folder / ("a" * 240 + ".sh")).write_text(_LAUNCH)
    return ["lint", "."], (0, 1, 3), ""


@case
def a_gzip_bomb_to_diagnose(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    (folder / "rank0.log.gz").write_bytes(gzip.compress(bytes(32 << 20), 6) * 100)
    return ["diagnose", "rank0.log.gz"], (3, 4), "rank0.log.gz"


@case
def a_fifo_to_diagnose(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    return ["diagnose", _fifo(folder / "rank0.log")], (3, 4), "rank0.log"


@case
def a_sparse_log_to_diagnose(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    (folder / "logs").mkdir()
    _sparse(folder / "logs" / "rank0.log", 200 << 30)
    (folder / "logs" / "rank1.log").write_text("RuntimeError: CUDA out of memory\n")
    return ["diagnose", "logs"], (1, 3, 6), "rank0.log"


@case
def a_device_to_diagnose(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    return ["diagnose", "/dev/zero"], (2,), "/dev/zero"


@case
def a_line_of_a_hundred_megabytes(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    (folder / "rank0.log").write_bytes(b"loss 0.1 " * (11 << 20) + b"\nValueError: no\n")
    return ["diagnose", "rank0.log"], (1, 3, 4, 6), ""


@case
def a_configuration_that_is_a_fifo(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    return ["lint", "--config", _fifo(folder / "c.toml"), _job(folder)], (2,), "is a FIFO"


@case
def a_recording_that_is_a_fifo(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    return ["judge", _fifo(folder / "r.json")], (2,), "is a FIFO"


@case
def a_huge_recording(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    return ["judge", _sparse(folder / "r.json")], (2,), "r.json"


@case
def reports_that_are_fifos(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    return ["diff", _fifo(folder / "a.json"), _fifo(folder / "b.json")], (2,), "is a FIFO"


@case
def site_rules_that_are_a_fifo(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    return ["lint", "--site-rules", _fifo(folder / "s.toml"), _job(folder)], (2,), "is a FIFO"


@case
def a_plugin_that_is_a_fifo(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    return ["lint", "--plugin", _fifo(folder / "own.py"), _job(folder)], (2,), "is a FIFO"


@case
def symptoms_that_are_a_fifo(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    (folder / "a.log").write_text("x\n")
    return ["diagnose", "--symptoms", _fifo(folder / "s.toml"), "a.log"], (2,), "is a FIFO"


@case
def no_ranks_at_mpirun(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    (folder / "run.sh").write_text("mpirun -np 4 -H , python train.py\n")
    return ["lint", "run.sh"], (0, 1), ""


@case
def no_slots_at_mpirun(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    (folder / "run.sh").write_text("mpirun -H a:0,b:0 -np 0 python train.py\n")
    return ["lint", "run.sh"], (0, 1), ""


@case
def a_socket_to_judge(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    return ["judge", _socket(folder / "r.json")], (2,), "socket"


@case
def a_device_as_configuration(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    return ["lint", "--config", "/dev/zero", _job(folder)], (2,), "/dev/zero"


@case
def a_huge_configuration(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    return ["lint", "--config", _sparse(folder / "c.toml"), _job(folder)], (2,), "c.toml"


@case
def a_link_to_a_device_as_baseline(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    (folder / "b.json").symlink_to("/dev/zero")
    return ["lint", "--baseline", "b.json", _job(folder)], (2,), "b.json"


@case
def a_baseline_of_nested_arrays(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    (folder / "b.json").write_text("[" * 100_000)
    return ["lint", "--baseline", "b.json", _job(folder)], (2,), "b.json"


@case
def a_gzip_bomb_to_judge(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    (folder / "r.json.gz").write_bytes(gzip.compress(b" " * (32 << 20), 6) * 100)
    return ["judge", "r.json.gz"], (2,), "r.json.gz"


@case
def a_gzip_bomb_to_diff(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    (folder / "r.json.gz").write_bytes(gzip.compress(b" " * (32 << 20), 6) * 100)
    return ["diff", "r.json.gz", "r.json.gz"], (2,), "r.json.gz"


@case
def a_gzip_of_gzips_in_a_folder(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    (folder / "logs").mkdir()
    piece = gzip.compress(b"loss 1\n" * (1 << 20), 9)
    (folder / "logs" / "rank0.log.gz").write_bytes(piece * 2_000)
    return ["diagnose", "logs"], (3, 4), "rank0.log.gz"


@case
def fifos_in_a_folder_to_diagnose(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    (folder / "logs").mkdir()
    for number in range(20):
        _fifo(folder / "logs" / f"rank{number}.log")
    (folder / "logs" / "launcher.log").write_text("Traceback (most recent call last):\nValueError: no\n")
    return ["diagnose", "logs"], (1, 3, 6), "rank0.log"


@case
def a_log_of_newlines(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    (folder / "rank0.log").write_bytes(b"\n" * (60 << 20))
    return ["diagnose", "rank0.log"], (3, 4), ""


@case
def a_log_of_random_bytes(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    (folder / "rank0.log").write_bytes(os.urandom(20 << 20))
    return ["diagnose", "rank0.log"], (3, 4), ""


@case
def a_slurm_range_of_many_dimensions(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    return ["check", _job(folder), "--hosts", "n[1-999]" * 6, "--on", "ssh"], (2,), "hosts"


@case
def many_ranges_of_hosts(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    hosts = ",".join(f"n{number}-[1-90000]" for number in range(300))
    return ["check", _job(folder), "--hosts", hosts, "--on", "ssh"], (2,), "hosts"


@case
def host_ranges_in_a_launcher(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    (folder / "run.sh").write_text("mpirun -H node[1-999999999]:8 -np 8 python train.py\nsrun -w n[1-99999999] a\n")
    return ["lint", "run.sh"], (0, 1, 3), ""


@case
def an_ignore_comment_of_many_names(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    names = ", ".join(f"RDV{number:03}" for number in range(50_000))
    (folder / "run.sh").write_text(f"# preflight: ignore[{names}] x\n" + _LAUNCH)
    return ["lint", "run.sh"], (0, 1, 3), ""


@case
def marks_within_one_line(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    (folder / "run.sh").write_text(_LAUNCH + "echo '" + "# preflight: ignore[A] " * 20_000 + "'\n")
    return ["lint", "run.sh"], (0, 1, 3), ""


@case
def a_dotted_table_of_many_parts(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    return _configured(folder, "[" + "a." * 100_000 + "a]\n"), (2,), "preflight.toml"


@case
def many_tables_of_long_names(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    return _configured(folder, "".join(f"[{'a.' * 100}b{number}]\nx = 1\n" for number in range(1_000))), (2,), ""


@case
def inline_tables_within_each_other(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    return _configured(folder, "severity = " + "{a = " * 400 + "1" + "}" * 400 + "\n"), (2,), "preflight.toml"


@case
def patterns_for_many_files(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    rows = "".join(f'"*a{n}*b*c*" = ["RDV001"]\n' for n in range(6_000))
    return _configured(folder, "[per-file-ignores]\n" + rows), (0, 1, 2, 3), ""


@case
def a_severity_of_a_long_name(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    return _configured(folder, f'[severity]\n{"b" * 200_000} = "info"\n'), (2,), "unknown rule or check"


@case
def a_long_name_on_the_command_line(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    return ["lint", "--select", "b" * 100_000, _job(folder)], (2,), "unknown rule or check"


@case
def a_hidden_gitignore_fifo(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    _fifo(folder / ".gitignore")
    _job(folder)
    return ["lint", "."], (0, 1, 3), ""


@case
def an_index_of_nonsense(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    (folder / ".git").mkdir()
    (folder / ".git" / "index").write_bytes(b"DIRC\x00\x00\x00\x02\xff\xff\xff\xff" + b"\0" * 5_000)
    (folder / ".gitignore").write_text("*\n")
    _job(folder)
    return ["lint", "."], (0, 1, 3, 4), "index"


@case
def an_index_that_is_a_fifo(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    (folder / ".git").mkdir()
    _fifo(folder / ".git" / "index")
    _job(folder)
    return ["lint", "."], (0, 1, 3), ""


@case
def a_manifest_that_is_a_fifo(folder: Path) -> tuple[list[str], tuple[int, ...], str]:
    return ["manifest", _fifo(folder / "job.yaml")], (2,), "job.yaml"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", sorted(CASES))
def test_a_hostile_input_is_bounded(name: str, tmp_path: Path) -> None:
    arguments, codes, needle = CASES[name](tmp_path)
    done = measured(
        [sys.executable, "-m", "preflight", *arguments],
        cwd=tmp_path,
        timeout_s=_WAITING_SECONDS,
        env={**os.environ, "COLUMNS": "400", "NO_COLOR": "1", "PREFLIGHT_CACHE_DIR": str(tmp_path / ".cache")},
    )
    assert done.code in codes, str(done)
    assert needle in " ".join(done.output.split()), str(done)
    assert done.cpu_s < _SECONDS, str(done)
    assert done.peak_bytes < _MAX_BYTES, str(done)
