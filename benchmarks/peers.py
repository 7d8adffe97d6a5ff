"""Lint of the same files as another linter: shell scripts as shellcheck, Kubernetes manifests as checkov.

`python -m benchmarks peers [SHELL_DIR [KUBERNETES_DIR]]`. Each peer is found on PATH or by $SHELLCHECK and $CHECKOV,
and left out if it is missing. Whole processes are timed, without a cache.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks import scripts
from benchmarks.stopwatch import processes, table

COMMAND = str(Path(sys.executable).parent / "preflight")
_COUNT = 60


def main() -> None:
    """Print one table for each installed peer."""
    with tempfile.TemporaryDirectory() as folder:
        given = [Path(word) for word in sys.argv[1:]]
        shell = given[0] if given else Path(folder) / "shell"
        pods = given[1] if len(given) > 1 else Path(folder) / "kubernetes"
        if not given:
            shell.mkdir()
            scripts.write(shell, 200)
        if len(given) < 2:
            _manifests(pods)
        compare("shellcheck", "SHELLCHECK", shell, (".sh", ".sbatch", ".slurm"), [])
        compare("checkov", "CHECKOV", pods, (".yaml", ".yml"), ["--framework", "kubernetes", "--compact", "--quiet"])


def compare(name: str, variable: str, folder: Path, suffixes: tuple[str, ...], options: list[str]) -> None:
    """Time both over the files of `folder` with these suffixes."""
    program = os.environ.get(variable) or shutil.which(name)
    files = sorted(str(path) for path in folder.rglob("*") if path.suffix in suffixes and path.is_file())
    if program is None or not files:
        print(f"{name}: {'not installed; set $' + variable if program is None else 'no files for it'}")
        return
    named = [word for file in files for word in ("-f", file)] if name == "checkov" else files
    with tempfile.TemporaryDirectory() as only:
        for file in files:
            target = Path(only) / Path(file).relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
        commands = {
            name: (program, *options, *named),
            "preflight lint": (COMMAND, "lint", "--no-cache", only, "--root", only),
        }
        title = f"{len(files)} files that {name} reads"
        table(title, processes(commands, rounds=3), against=name, note="aim below 1")


def _manifests(root: Path) -> None:
    root.mkdir(parents=True)
    for number in range(_COUNT):
        (root / f"job{number}.yaml").write_text(_JOB.format(number=number, replicas=number % 7 + 1))


_JOB = """apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: train-{number}
spec:
  nprocPerNode: "8"
  pytorchReplicaSpecs:
    Worker:
      replicas: {replicas}
      template:
        spec:
          containers:
            - name: pytorch
              image: pytorch/pytorch:2.4.0-cuda12.4-cudnn9-runtime
              command: [torchrun, train.py]
              env:
                - {{name: NCCL_DEBUG, value: WARN}}
              resources:
                limits: {{nvidia.com/gpu: 8}}
"""


if __name__ == "__main__":
    main()
