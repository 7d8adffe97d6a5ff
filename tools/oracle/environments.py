"""An environment for each framework, under `build/oracle/`, with the pinned versions and the torch of the tests."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.oracle.cases import Case
from tools.oracle.frameworks.base import Framework

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "oracle"
_VALIDATORS = Path(__file__).parent / "validators"
#: Seconds for one call of pip, and for a validator on all its cases.
_INSTALL_TIMEOUT_S, _VALIDATOR_TIMEOUT_S = 1800, 7200


def python_of(framework: Framework) -> Path:
    """Return the interpreter of the framework's environment, which is created if it does not exist.

    Raises subprocess.CalledProcessError if pip fails, and subprocess.TimeoutExpired if it takes too long.
    """
    if framework.environment:
        return ROOT / framework.environment / "bin" / "python"
    folder = FOLDER / framework.name
    python = folder / "bin" / "python"
    stamp = folder / ".installed"
    wanted = "\n".join((*framework.requirements, *framework.alone))
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=_INSTALL_TIMEOUT_S)
    if framework.needs_torch:
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.origin is None:
            raise RuntimeError("torch is not installed here; `make test` installs it")
        purelib = next((folder / "lib").glob("python*/site-packages"))
        # Last in the path: what the framework brings comes first.
        (purelib / "zz_torch.pth").write_text(f"{Path(spec.origin).parents[1]}\n")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if framework.requirements:
        subprocess.run([*pip, *framework.requirements], check=True, timeout=_INSTALL_TIMEOUT_S)
    if framework.alone:
        subprocess.run([*pip, "--no-deps", *framework.alone], check=True, timeout=_INSTALL_TIMEOUT_S)
    stamp.write_text(wanted)
    return python


def asked(framework: Framework, cases: Sequence[Case]) -> dict[str, tuple[str, str]]:
    """Return the framework's message for each case id: on a node with GPUs, and here. Empty means accepted."""
    python = python_of(framework)
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "cases.jsonl", Path(folder) / "said.jsonl"
        rows = (
            {"id": case.id, "form": case.form, "files": case.files, "command": list(case.command)} for case in cases
        )
        source.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        FOLDER.mkdir(parents=True, exist_ok=True)
        log = FOLDER / f"{framework.name}.log"
        with log.open("w") as out:
            program = [str(python), str(_VALIDATORS / framework.validator), str(source), str(target)]
            done = subprocess.run(
                ["nice", "-n", "19", *program], stdout=out, stderr=out, check=False, timeout=_VALIDATOR_TIMEOUT_S
            )
        if done.returncode != 0:
            raise RuntimeError(f"the validator of {framework.name} exited with {done.returncode}; see {log}")
        found = (json.loads(line) for line in target.read_text(encoding="utf-8").splitlines())
        return {row["id"]: (row["message"], row["here"]) for row in found}
