"""Contexts of a secret: each name in each form of assignment, in each kind of file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from preflight._util import toml
from tests.pip_options import EXTRA_INDEX_URL, INDEX_URL

#: Forms of a name and its value, by the kind of file.
_FORMS = {
    "shell": ("export {n}=C", "{n}='C'", 'declare -x {n}="C"'),
    "arguments": ("--{o} C", "--{o}=C", "-e {n}=C"),
    "python": ('{p} = "C"', 'os.environ["{n}"] = "C"', 'x = {{"{n}": "C"}}', 'f({p}="C")'),
    "yaml": (
        "{n}: C\n",
        'x: {{"{n}": "C"}}\n',
        "env:\n- name: {n}\n  value: C\n",
        "args: [--{o}, C]\n",
        "{n}: >-\n  C\n",
    ),
    "log": ("+ export {n}=C", "environ({{'{n}': 'C', 'A': 'b'}})", '{{"{n}": "C"}}', "GET /x?{n}=C&y=1"),
}
_LAUNCH = "#!/bin/bash\n#SBATCH --nodes=2\n{before}\nsrun torchrun --nnodes=4 --nproc_per_node=8 train.py {arguments}\n"
_POD = """apiVersion: batch/v1
kind: Job
metadata: {{name: t}}
spec:
  template:
    spec:
      containers:
      - name: t
        image: x:1
        command: [torchrun, --nnodes=4, --nproc_per_node=8, train.py]
{rest}"""


@dataclass(frozen=True, slots=True)
class Context:
    """One secret in one file, and its canary."""

    place: str
    spelling: str
    path: str
    text: str
    canary: str


def contexts(table: str, prefix: str) -> Iterator[Context]:
    """Every context of `TABLE.toml`, each with its own canary."""
    text = Path(__file__).with_name(f"{table}.toml").read_text()
    text = text.replace("<extra-index-url>", EXTRA_INDEX_URL).replace("<index-url>", INDEX_URL)
    number = 0
    for place, spelling in _spellings(toml.loads(text)):
        for path, template in _files(place):
            number += 1
            canary = f"hunter2-CANARY{prefix}{number:04d}"
            if "C0000" in spelling:
                # Secrets that services issue have only letters and digits.
                canary = canary.replace("-", "")
            written = (
                spelling.replace("C0000", canary + "0000") if "C0000" in spelling else _insert_canary(spelling, canary)
            )
            yield Context(place, spelling, path, template(written), canary)


def _insert_canary(spelling: str, canary: str) -> str:
    """The spelling with the canary instead of the single `C`."""
    import re

    return re.sub(r"(?:(?<![A-Za-z_])|(?<=\\n))C(?![A-Za-z_])|(?<=-p)C\b", canary, spelling)


def _spellings(table: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    for place in ("shell", "arguments", "python", "yaml"):
        yield from ((place, spelling) for spelling in table[place])
    yield from (("log", spelling) for spelling in table["logs"])
    for place, forms in _FORMS.items():
        for name in table["names"]:
            for form in forms:
                plain = name.replace("-", "_")
                n = plain if place in ("shell", "python", "arguments") else name
                yield (
                    place,
                    form.format(
                        n=n,
                        o=name.replace("_", "-").lower() if name.isupper() else name,
                        p=plain.lower() if name.isupper() else plain,
                    ),
                )


def _files(place: str) -> Iterator[tuple[str, object]]:
    if place == "shell":
        yield "job.sbatch", lambda s: _LAUNCH.format(before=s, arguments="")
        yield "run.sh", lambda s: f"{s} ; torchrun --nnodes=4 --nproc_per_node=8 train.py\n"
        yield "pod.yaml", lambda s: _POD.format(rest="        args:\n        - |\n" + _indent(s, 10))
    elif place == "arguments":
        yield "job.sbatch", lambda s: _LAUNCH.format(before="", arguments=s)
        yield "Makefile", lambda s: "t:\n\ttorchrun --nnodes=4 --nproc_per_node=8 train.py " + s + "\n"
    elif place == "python":
        yield (
            "train.py",
            lambda s: (
                "import os, argparse, json, torch\nparser = argparse.ArgumentParser()\n"
                + s
                + "\ntorch.distributed.init_process_group('nccl', timeout=5)\n"
            ),
        )
    elif place == "yaml":
        yield "pod.yaml", lambda s: _POD.format(rest=_indent(s, 8))
        yield "config.yaml", lambda s: "num_machines: 2\nnum_processes: 3\ncompute_environment: LOCAL_MACHINE\n" + s
    else:
        yield "out.log", lambda s: f"{s}\nRuntimeError: NCCL error: {s}\n"


def _indent(text: str, by: int) -> str:
    return "".join(" " * by + line + "\n" for line in text.rstrip("\n").split("\n"))
