"""The script that lints the scripts spooled at submission."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[2]
SPOOL = ROOT / "integrations" / "slurm" / "spool"
JOB = """\
#!/bin/bash
#SBATCH --nodes=2
srun torchrun --nnodes=NODES --nproc_per_node=1 --rdzv_backend=c10d --rdzv_endpoint=n1:29500 train.py
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A spool folder, and preflight on the path."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "preflight").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m preflight "$@"\n')
    (tmp_path / "bin" / "preflight").chmod(0o755)
    (tmp_path / "spool").mkdir()
    return tmp_path


def run(folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the script once."""
    paths = os.pathsep.join(str(path) for path in (ROOT, ROOT / "checks", ROOT / "rules"))
    environment = {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "PYTHONPATH": paths, **more}
    words = [str(SPOOL), str(folder / "spool"), str(folder / "log")]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_faults_are_logged_and_the_spool_is_emptied(folder: Path) -> None:
    (folder / "spool" / "1-1.sbatch").write_text(JOB.replace("NODES", "8"))
    (folder / "spool" / "1-2.sbatch").write_text(JOB.replace("NODES", "2"))
    (folder / "spool" / "1-3.sbatch").write_text("#!/bin/bash\nhostname\n")
    (folder / "spool" / "1-4.sbatch.part").write_text("#!/bin/ba")
    assert run(folder).returncode == 0
    log = (folder / "log").read_text()
    assert "1-1.sbatch: exit code 1" in log and "WLD001" in log
    assert "1-2.sbatch" not in log and "1-3.sbatch" not in log
    assert [path.name for path in (folder / "spool").iterdir()] == ["1-4.sbatch.part"]


def test_preflight_failure_is_logged(folder: Path) -> None:
    (folder / "spool" / "1-1.sbatch").write_text(JOB)
    assert run(folder, PREFLIGHT_LINT="false").returncode == 0
    assert "1-1.sbatch: exit code 1" in (folder / "log").read_text()


def test_missing_folder_is_reported(folder: Path) -> None:
    (folder / "spool").rmdir()
    done = run(folder)
    assert done.returncode == 2 and "an existing folder" in done.stderr
