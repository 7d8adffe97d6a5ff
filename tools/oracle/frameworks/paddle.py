"""PaddlePaddle: the launcher's arguments, `DistributedStrategy` with `fleet.init`, and the role maker's variables."""

from __future__ import annotations

from typing import Any

from tools.oracle.cases import Case
from tools.oracle.frameworks.base import Framework, seeds, space

_HEAD = """\
import paddle
from paddle.distributed import fleet

strategy = fleet.DistributedStrategy()
"""
_TAIL = """\
fleet.init(is_collective=True, strategy=strategy)
optimizer = paddle.optimizer.AdamW(parameters=model.parameters())
"""
_COLLECTIVE = """\
import paddle
from paddle.distributed import fleet

fleet.init(is_collective=True)
"""
_SERVERS = """\
import paddle
from paddle.distributed import fleet

paddle.enable_static()
fleet.init(fleet.PaddleCloudRoleMaker(is_collective=False))
"""
_LAUNCH = "python -m paddle.distributed.launch"


def _literal(section: dict[str, Any], above: str, indent: str, rows: list[str], lines: dict[str, int]) -> None:
    for key, value in section.items():
        path = f"{above}.{key}"
        lines[path] = len(rows) + 1
        if isinstance(value, dict) and value:
            rows.append(f'{indent}"{key}": {{')
            _literal(value, path, indent + "    ", rows, lines)
            rows.append(f"{indent}}},")
        else:
            rows.append(f'{indent}"{key}": {value!r},')


def _strategy(settings: dict[str, Any]) -> tuple[str, dict[str, int]]:
    """Return a script that fills a strategy, and the line of each key."""
    rows, lines = _HEAD.splitlines(), dict[str, int]()
    for key, value in settings.items():
        lines[key] = len(rows) + 1
        if isinstance(value, dict) and value:
            rows.append(f"strategy.{key} = {{")
            _literal(value, key, "    ", rows, lines)
            rows.append("}")
        else:
            rows.append(f"strategy.{key} = {value!r}")
    return "\n".join(rows) + "\n" + _TAIL, lines


def _run(rows: list[str], variables: dict[str, Any], line: str, options: dict[str, Any]) -> tuple[str, dict[str, int]]:
    """Return a shell script that exports variables and starts a line with options, and the line of each key."""
    lines: dict[str, int] = {}
    rows = list(rows)
    for name, value in variables.items():
        lines[f"env.{name}"] = len(rows) + 1
        rows.append(f'export {name}="{_text(value)}"')
    words = [line]
    for key, value in options.items():
        if value is None:
            continue
        lines[key] = len(rows) + 1 + len(words)
        words.append(f'--{key} "{_text(value)}"')
    return "\n".join([*rows, " \\\n  ".join([*words, "train.py"])]) + "\n", lines


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def framework(name: str, version: str) -> Framework:
    top = ["#!/bin/bash", f"pip install paddlepaddle-gpu=={version}"]

    def render(form: str, settings: dict[str, Any]) -> Case:
        variables = settings.get("env") if isinstance(settings.get("env"), dict) else {}
        own = {key: value for key, value in settings.items() if key not in ("env", "ranks")}
        lines: dict[str, dict[str, int]] = {}
        if form == "strategy":
            program, lines["train.py"] = _strategy(own)
            run, found = _run(top, {}, _LAUNCH, {"nproc_per_node": settings.get("ranks")})
            lines["run.sh"] = {"ranks": found["nproc_per_node"]} if found else {}
        elif form == "roles":
            program = _SERVERS
            run, lines["run.sh"] = _run(top, variables or {}, "python", {})
        else:
            program = _COLLECTIVE if form == "collective" else _SERVERS
            run, lines["run.sh"] = _run(top, variables or {}, _LAUNCH, own)
        return Case(name, form, {"train.py": program, "run.sh": run}, lines=lines)

    return Framework(
        name=name,
        distribution="paddlepaddle",
        version=version,
        requirements=(),
        validator="paddle_validator.py",
        seeds=seeds("paddle"),
        space=space("paddle"),
        render=render,
        needs_torch=False,
        environment=f".venv/paddle/{version}",
        keep=frozenset(("ranks", "env")),
        # More ranks, servers or ports would take the memory and the ports of the machine that is asked.
        numbers=(0, -1, 1, 3, 7, 64),
        sections=frozenset(("env",)),
    )


FRAMEWORK = framework("paddle", "3.3.1")
