"""Write the manifests of `integrations/kubernetes`: the output of `preflight manifest` for an example."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "integrations" / "kubernetes"
JOB = Path("examples/kubernetes-job/good")
#: Each file, and the kind of manifest in it.
MANIFESTS = {"init-container.yaml": "patch", "job-beside.yaml": "job"}


def written(kind: str) -> str:
    """Return a manifest, preceded by a line that names its origin."""
    words = ["manifest", str(JOB / "job.yaml"), "--root", str(JOB), "--as", kind]
    command = [sys.executable, "-m", "preflight", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    return (
        f"# Written by `make docs`: the output of `preflight manifest job.yaml --as {kind}` for {JOB}.\n{done.stdout}"
    )


def main() -> int:
    for name, kind in MANIFESTS.items():
        (FOLDER / name).write_text(written(kind))
    return 0


if __name__ == "__main__":
    sys.exit(main())
