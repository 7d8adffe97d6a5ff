"""One generated job, planned and then run by the real launcher."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from preflight import api
from tests.agreement.comparison import Comparison, Places, compare
from tests.agreement.jobs.script import GeneratedJob

_WITNESS = Path(__file__).with_name("witness.py")


@dataclass(frozen=True)
class Trial:
    """The result of a job: whether any process started, the differences, and the job as text for a reader."""

    comparison: Comparison
    shown: str

    @property
    def agrees(self) -> bool:
        """Whether processes started, and are the planned ones."""
        return self.comparison.processes > 0 and not self.comparison.differences


def run_trial(job: GeneratedJob, places: Places) -> Trial:
    """Plan the job, run it, and compare."""
    root = Path(tempfile.mkdtemp(dir=places.root))
    try:
        return _run_trial(job, root, places)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _run_trial(job: GeneratedJob, root: Path, places: Places) -> Trial:
    folder, witnesses = root / "job", root / "seen"
    witnesses.mkdir()
    folder.mkdir()
    shutil.copy(_WITNESS, folder / "witness.py")
    for name, text in job.files.items():
        (folder / name).write_text(text)
    plan = api.plan([folder / "run.sh"], root=folder, variables=job.given)
    said = places.output(job.launcher, folder, job.given)
    shown = "\n".join(f"--- {name}\n{text}" for name, text in job.files.items())
    shown += f"\n--- given {job.given}\n--- it printed\n{said[-3000:]}"
    return Trial(compare(job, plan, witnesses), shown)
