"""A runner for composite actions with the features that ours uses: expressions, conditions, outputs, one bash per
step."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

_EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}")
_NAME = re.compile(r"'[^']*'|\b(?:inputs|steps|github|runner)(?:\.[\w-]+)+|\bcancelled\(\)|&&|\|\||!(?!=)")
DEADLINE_S = 150


@dataclass
class Ran:
    """The result of a step."""

    id: str
    code: int = 0
    output: str = ""
    #: The inputs of a step that uses another action, which is not run here.
    given: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Runner:
    """Runs the steps of one action in a folder, as the runner of GitHub Actions does."""

    action: Path
    workspace: Path
    temporary: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    ran: list[Ran] = field(default_factory=list)
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.document: dict[str, Any] = yaml.safe_load(self.action.read_text())

    @property
    def summary(self) -> str:
        """The job summary written by the steps."""
        path = self.temporary / "summary"
        return path.read_text() if path.exists() else ""

    def run(self, *, skip: tuple[str, ...] = (), **inputs: str) -> int:
        """Run every step whose condition holds; return the exit code of the first failed one, else 0."""
        unknown = set(inputs) - {name.replace("-", "_") for name in self.document["inputs"]}
        assert not unknown, f"no such input: {unknown}"
        given = {name: str(described.get("default", "")) for name, described in self.document["inputs"].items()}
        given |= {name.replace("_", "-"): value for name, value in inputs.items()}
        failed = 0
        for step in self.document["runs"]["steps"]:
            condition = step.get("if", "")
            if step["id"] in skip or (failed and "cancelled()" not in condition):
                continue
            if condition and not self._holds(condition, given):
                continue
            if "uses" in step:
                self.ran.append(Ran(step["id"], given={k: self._text(v, given) for k, v in step["with"].items()}))
                continue
            done = self._bash(step, given)
            failed = failed or done.code
        return failed

    def step(self, name: str) -> Ran | None:
        """The result of the step with this id; None if it did not run."""
        return next((one for one in self.ran if one.id == name), None)

    def output(self, name: str, **inputs: str) -> str:
        """An output of the action."""
        return self._text(self.document["outputs"][name]["value"], inputs)

    def _bash(self, step: dict[str, Any], given: Mapping[str, str]) -> Ran:
        assert step["shell"] == "bash", "a composite action names the shell of each step"
        script = self.temporary / f"{step['id']}.sh"
        script.write_text(step["run"])
        written = self.temporary / f"{step['id']}.outputs"
        written.touch()
        environment = {
            **os.environ,
            **self.environment,
            "GITHUB_ACTION_PATH": str(self.action.parent),
            "GITHUB_WORKSPACE": str(self.workspace),
            "GITHUB_OUTPUT": str(written),
            "GITHUB_STEP_SUMMARY": str(self.temporary / "summary"),
            "RUNNER_TEMP": str(self.temporary),
            **{name: self._text(value, given) for name, value in step.get("env", {}).items()},
        }
        # As GitHub starts `shell: bash`.
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
            cwd=self.workspace,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        lines = written.read_text().splitlines()
        self.outputs[step["id"]] = dict(line.split("=", 1) for line in lines)
        self.ran.append(Ran(step["id"], done.returncode, done.stdout))
        return self.ran[-1]

    def _text(self, value: str, given: Mapping[str, str]) -> str:
        return _EXPRESSION.sub(lambda found: str(self._value(found[1], given)), str(value))

    def _holds(self, condition: str, given: Mapping[str, str]) -> bool:
        found = _EXPRESSION.fullmatch(condition)
        assert found, "a condition that begins with ! has to stand in ${{ }}"
        return bool(self._value(found[1], given))

    def _value(self, expression: str, given: Mapping[str, str]) -> Any:
        def python(found: re.Match[str]) -> str:
            word = found[0]
            if word.startswith("'"):
                return word
            if word in ("&&", "||", "!"):
                return {"&&": " and ", "||": " or ", "!": " not "}[word]
            return "False" if word == "cancelled()" else repr(self._named(word.split("."), given))

        return eval(_NAME.sub(python, expression.strip()).strip(), {"__builtins__": {}})

    def _named(self, parts: list[str], given: Mapping[str, str]) -> str:
        if parts[0] == "inputs":
            return given[parts[1]]
        assert parts[0] == "steps" and parts[2] == "outputs", parts
        return self.outputs.get(parts[1], {}).get(parts[3], "")
