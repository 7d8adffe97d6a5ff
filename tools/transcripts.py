"""Follow pages literally: write the files that they show, run their commands, and insert the output.

Three kinds of fenced blocks count; anything else is text.

- With a title, `toml title="preflight.toml"`: the block is written to that file.
- `console`: lines that begin with `$ ` are run, and the text below each is its output. - `sh`: every line is run and
has to succeed; its output is not shown.

All commands of a page run in one bash, in a separate folder with copies of the files that the page may use. So `cd` and
variables persist. `python -m tools.transcripts` inserts the current output into the pages.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Pages whose blocks are followed.
PAGES = (
    *(
        f"docs/start/{name}.md"
        for name in (
            *(
                "paddle-ps",
                "torchrun-slurm",
                "sbatch-hydra",
                "deepspeed-hostfile",
                "deepspeed-accelerate",
                "kubernetes",
            ),
            *("kubernetes", "kubernetes-platform", "cluster-admin", "notebook", "failing-job", "ci"),
        )
    ),
    "docs/nodes.md",
    "docs/plan.md",
    "docs/writing-a-rule.md",
    "docs/writing-a-check.md",
)
#: Parts of the repository that are copied to the folder in which a page is followed.
COPIED = ("examples", "integrations")
DEADLINE_S = 120.0
_FENCE = re.compile(r"^```([a-z]+)(?:[ ]title=\"([^\"\n]+)\")?[ ]*\n(.*?)^```[ ]*$", re.MULTILINE | re.DOTALL)
_MARK = "@@ command ended"
#: Lines that a command prints to standard error only where the machine is slow.
_PROGRESS = re.compile(r"^preflight: (?:reading (?:files|logs)|judging)\b.*\n", re.MULTILINE)


@dataclass(frozen=True)
class Step:
    """A step of a page: a file to write, or a command to run."""

    file: str = ""
    text: str = ""
    command: str = ""
    #: Whether the page shows what the command prints.
    shown: bool = False


class Refused(Exception):
    """A command of a page failed or took too long."""


def steps(text: str) -> list[Step]:
    found: list[Step] = []
    for fence in _FENCE.finditer(text):
        language, title, body = fence.groups()
        if title:
            found.append(Step(file=title, text=body))
        elif language == "console":
            found += [Step(command=command, shown=True) for command, _ in _entries(body) if command]
        elif language == "sh":
            found += [Step(command=line) for line in body.splitlines() if line.strip()]
    return found


def followed(text: str, *, environment: Mapping[str, str] | None = None) -> str:
    """Return the page with today's output of its commands.

    Raises Refused if a command of an `sh` block failed, or the page took too long.
    """
    with tempfile.TemporaryDirectory(prefix="preflight-page-") as folder:
        for name in COPIED:
            if (ROOT / name).exists():
                shutil.copytree(ROOT / name, Path(folder, "work", name), ignore=shutil.ignore_patterns("__pycache__"))
        outputs = iter(_run(steps(text), Path(folder), environment or {}))
    return _FENCE.sub(lambda fence: _with_output(fence, outputs), text)


def _run(todo: list[Step], folder: Path, environment: Mapping[str, str]) -> list[str]:
    """Return the output of each shown command."""
    lines = ["set -o pipefail", 'cd "$HOME"']
    for number, step in enumerate(todo):
        if step.file:
            lines += [f"mkdir -p \"$(dirname '{step.file}')\"", f"cat > '{step.file}' <<'END OF {number}'"]
            lines.append(step.text + f"END OF {number}")
            continue
        # The next command must see this command's exit code as $?.
        lines += ["(exit ${code:-0})", step.command, f"code=$?; echo; echo '{_MARK}' $code; (exit $code)"]
    script = folder / "page.sh"
    script.write_text("\n".join(lines) + "\n")
    (folder / "work").mkdir(exist_ok=True)
    try:
        done = subprocess.run(
            ["bash", str(script)],
            cwd=folder / "work",
            env=_surroundings(folder / "work", environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise Refused(f"the page took more than {DEADLINE_S:g} s; output so far:\n{late.output!r}") from None
    parts = re.split(rf"\n{_MARK} (\d+)\n", _PROGRESS.sub("", done.stdout))
    commands = [step for step in todo if step.command]
    if len(parts) != 2 * len(commands) + 1:
        raise Refused(f"the page ended early:\n{done.stdout}")
    shown: list[str] = []
    for step, output, code in zip(commands, parts[::2], parts[1::2], strict=False):
        if step.shown:
            shown.append(output.rstrip() + "\n" if output.strip() else "")
        elif code != "0":
            raise Refused(f"`{step.command}` ended with {code}:\n{output}")
    return shown


def _surroundings(home: Path, more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a reader with an empty home, and preflight installed."""
    folders = [str(ROOT), str(ROOT / "checks"), str(ROOT / "rules"), os.environ.get("PYTHONPATH", "")]
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
        "PYTHONPATH": os.pathsep.join(filter(None, folders)),
        "HOME": str(home),
        "LC_ALL": "C.UTF-8",
        "NO_COLOR": "1",
        **more,
    }


def _entries(body: str) -> Iterator[tuple[str, str]]:
    """Yield each command of a block with the lines below it; the first entry has the lines above all commands."""
    command, below, goes_on = "", "", False
    for line in body.splitlines(keepends=True):
        if line.startswith("$ "):
            yield command, below
            command, below = line[2:].rstrip("\n"), ""
            goes_on = command.endswith("\\")
        elif goes_on:
            command += "\n" + line.rstrip("\n")
            goes_on = command.endswith("\\")
        else:
            below += line
    yield command, below


def _with_output(fence: re.Match[str], outputs: Iterator[str]) -> str:
    language, title, body = fence.groups()
    if title or language != "console":
        return fence[0]
    pieces = [below if not command else f"$ {command}\n{next(outputs)}" for command, below in _entries(body)]
    return f"```console\n{''.join(pieces)}```"


def main() -> int:
    """Insert the output of its commands into each page, or into the named pages."""
    for name in sys.argv[1:] or PAGES:
        page = ROOT / name
        page.write_text(followed(page.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
