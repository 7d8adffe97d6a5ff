"""Shapes of hostile files: each has a text that grows with `n`; the reading time must not grow much faster."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LAUNCH = "torchrun --nnodes=2 --nproc-per-node=8 --rdzv-endpoint=host:29500 train.py\n"
BASH = "#!/bin/bash\n#SBATCH --nodes=2\n"
TRAIN = (
    "import torch\nimport torch.distributed as dist\n"
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\ndist.init_process_group('nccl')\n"
)
POD = """apiVersion: batch/v1
kind: Job
metadata: {name: a}
spec:
  template:
    spec:
      containers:
      - name: c
"""
_RUN = '        command: ["torchrun", "--nnodes=2", "train.py", "$(V0)"]\n'


@dataclass(frozen=True)
class Shape:
    """`text(n)` is a file called `name`, some multiple of `n` long or more."""

    id: str
    name: str
    text: Callable[[int], str]


def _pod_variables(n: int) -> str:
    doubled = "".join(
        f'        - {{name: V{i}, value: "{"x" if not i else f"$(V{i - 1})$(V{i - 1})"}"}}\n'
        for i in range(min(n, 400))
    )
    last = min(n, 400) - 1
    return POD + "        env:\n" + doubled + f'        command: ["torchrun", "--nnodes=2", "train.py", "$(V{last})"]\n'


def _laughs(n: int, head: str = "", tail: str = "") -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, min(n, 60))]
    return head + "\n".join(lines) + "\n" + tail


def _merges(n: int) -> str:
    lines = ["m0: &m0 {train_batch_size: 1, zero_optimization: {stage: 3}}"]
    lines += [f"m{i}: &m{i}\n  <<: [*m{i - 1}, *m{i - 1}]\n  k{i}: {i}" for i in range(1, n)]
    return "\n".join(lines) + "\n"


def _pod_laughs(n: int) -> str:
    return POD + _RUN + "---\n" + _laughs(n, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\n")


def _deep_json(n: int) -> str:
    return '{"train_batch_size": ' + "[" * n + "]" * n + "}"


SHELL = (
    Shape("comments", "run.sh", lambda n: BASH + "# comment\n" * n + LAUNCH),
    Shape(
        "doubling", "run.sh", lambda n: BASH + "a0=x\n" + "".join(f"a{i + 1}=$a{i}$a{i}\n" for i in range(n)) + LAUNCH
    ),
    Shape("self-doubling", "run.sh", lambda n: BASH + "a=x\n" + "a=$a$a\n" * n + LAUNCH + 'echo "$a"\n'),
    Shape("appending", "run.sh", lambda n: BASH + "a+=xxxxxxxxxxxxxxxx\n" * n + LAUNCH),
    Shape("array-appending", "run.sh", lambda n: BASH + "a+=(x)\n" * n + 'torchrun "${a[@]}" train.py\n'),
    Shape(
        "array-doubling",
        "run.sh",
        lambda n: BASH + "a=(x y)\n" + 'a=("${a[@]}" "${a[@]}")\n' * n + 'torchrun "${a[@]}" t.py\n',
    ),
    Shape("braces", "run.sh", lambda n: BASH + f"for i in {{1..{n * 1000}}}; do torchrun train.py $i; done\n"),
    Shape("brace-product", "run.sh", lambda n: BASH + "torchrun train.py " + "{a,b}" * n + "\n"),
    Shape("brace-nest", "run.sh", lambda n: BASH + "torchrun train.py " + "{a," * n + "b" + "}" * n + "\n"),
    Shape("arithmetic", "run.sh", lambda n: BASH + f"N=$((9{'**9' * n}))\n" + LAUNCH),
    Shape("shift", "run.sh", lambda n: BASH + f"N=$((1{'<<60' * n}))\n" + LAUNCH),
    Shape("arithmetic-nest", "run.sh", lambda n: BASH + f"N=$(({'(' * n}1{')' * n}))\n" + LAUNCH),
    Shape("arithmetic-sum", "run.sh", lambda n: BASH + f"N=$((1{'+1' * n}))\n" + LAUNCH),
    Shape("substitution-nest", "run.sh", lambda n: BASH + "N=" + "$(echo " * n + "4" + ")" * n + "\n" + LAUNCH),
    Shape("parameter-nest", "run.sh", lambda n: BASH + "N=" + "${a:-" * n + "4" + "}" * n + "\n" + LAUNCH),
    Shape("quote-nest", "run.sh", lambda n: BASH + "bash -c " + "'bash -c \"" * n + LAUNCH),
    Shape("eval", "run.sh", lambda n: BASH + "x='eval $x'\n" * 2 + "eval $x\n" * n + LAUNCH),
    Shape(
        "functions",
        "run.sh",
        lambda n: (
            BASH
            + "f0() { torchrun a.py; }\n"
            + "".join(f"f{i + 1}() {{ f{i}; f{i}; }}\n" for i in range(n))
            + f"f{n}\n"
        ),
    ),
    Shape("recursion", "run.sh", lambda n: BASH + "f() { f; f; }\n" * n + "f\n" + LAUNCH),
    Shape(
        "loops",
        "run.sh",
        lambda n: BASH + "for a in 1 2 3 4 5 6 7 8 9; do\n" * min(n, 300) + LAUNCH + "done\n" * min(n, 300),
    ),
    Shape("while", "run.sh", lambda n: BASH + "i=0\n" + "while [ $i -lt 1000000 ]; do i=$((i+1)); done\n" * n + LAUNCH),
    Shape(
        "branches",
        "run.sh",
        lambda n: (
            BASH
            + "".join(f"if [ $x{i} = 1 ]; then a=$a{i}; else a=$a-{i}; fi\n" for i in range(n))
            + "torchrun --nnodes=$a t.py\n"
        ),
    ),
    Shape("branch-nest", "run.sh", lambda n: BASH + "if true; then\n" * n + LAUNCH + "fi\n" * n),
    Shape(
        "cases",
        "run.sh",
        lambda n: BASH + "case $x in\n" + "".join(f"a{i}) b=$b{i};;\n" for i in range(n)) + "esac\n" + LAUNCH,
    ),
    Shape("assignments", "run.sh", lambda n: BASH + "".join(f"v{i}=1\n" for i in range(n)) + LAUNCH),
    Shape("exports", "run.sh", lambda n: BASH + "".join(f"export v{i}=1\ntorchrun t{i}.py\n" for i in range(n))),
    Shape("launches", "run.sh", lambda n: BASH + LAUNCH * n),
    Shape("pipes", "run.sh", lambda n: BASH + LAUNCH.strip() + " | tee a" * n + "\n"),
    Shape("and", "run.sh", lambda n: BASH + "true && " * n + LAUNCH),
    Shape("semicolons", "run.sh", lambda n: BASH + "x=1;" * n + LAUNCH),
    Shape("words", "run.sh", lambda n: BASH + LAUNCH.strip() + " --x=1" * n + "\n"),
    Shape("continued", "run.sh", lambda n: BASH + LAUNCH.strip() + " \\\n  --x=1" * n + "\n"),
    Shape("one-word", "run.sh", lambda n: BASH + LAUNCH.strip() + " " + "a" * n + "\n"),
    Shape("backslashes", "run.sh", lambda n: BASH + LAUNCH.strip() + " " + "\\" * n + "\n"),
    Shape("blanks", "run.sh", lambda n: BASH + " " * n + LAUNCH),
    Shape("newlines", "run.sh", lambda n: BASH + "\n" * n + LAUNCH),
    Shape("quotes", "run.sh", lambda n: BASH + LAUNCH.strip() + " " + "'" * (2 * n + 1) + "\n"),
    Shape("dollars", "run.sh", lambda n: BASH + LAUNCH.strip() + " " + "$" * n + "\n"),
    Shape("open-substitution", "run.sh", lambda n: BASH + "$(" * n + "\n" + LAUNCH),
    Shape("open-braces", "run.sh", lambda n: BASH + "${" * n + "\n" + LAUNCH),
    Shape("open-here", "run.sh", lambda n: BASH + "cat <<EOF\n" * n + LAUNCH),
    Shape("here", "run.sh", lambda n: BASH + "".join(f"cat > f{i}.json <<EOF\n{{}}\nEOF\n" for i in range(n)) + LAUNCH),
    Shape(
        "here-nested",
        "run.sh",
        lambda n: BASH + "".join(f"cat <<E{i}\n" for i in range(n)) + "".join(f"E{i}\n" for i in range(n)) + LAUNCH,
    ),
    Shape("directives", "run.sh", lambda n: "#!/bin/bash\n" + "#SBATCH --nodes=2\n" * n + LAUNCH),
    Shape("directive-long", "run.sh", lambda n: "#!/bin/bash\n#SBATCH --nodelist=" + "n[1-9]," * n + "\n" + LAUNCH),
    Shape(
        "nodelist-product", "run.sh", lambda n: "#!/bin/bash\n#SBATCH --nodelist=" + "n" + "[1-99]" * n + "\n" + LAUNCH
    ),
    Shape("ignores", "run.sh", lambda n: BASH + "x=1 # preflight: ignore[ABC001] a\n" * n + LAUNCH),
    Shape("patterns", "run.sh", lambda n: BASH + f"a={'a' * n}b\nb=${{a##{'*a' * n}}}\n" + LAUNCH),
    Shape("replacements", "run.sh", lambda n: BASH + f"a={'a' * n}\nb=${{a//a/{'a' * n}}}\nc=${{b//a/$a}}\n" + LAUNCH),
    Shape("matching", "run.sh", lambda n: BASH + f"[[ {'a' * n} =~ ^(a+)+$b ]] && x=1\n" + LAUNCH),
    Shape("case-pattern", "run.sh", lambda n: BASH + f"case {'a' * n} in {'*a' * n}b) x=1;; esac\n" + LAUNCH),
    Shape("sed", "run.sh", lambda n: BASH + f"a=$(echo {'a' * n} | sed 's/\\(a*\\)*b/x/')\n" + LAUNCH),
    Shape("seq", "run.sh", lambda n: BASH + f"for i in $(seq 1 {n * 1000}); do torchrun train.py $i; done\n"),
    Shape("printf", "run.sh", lambda n: BASH + f"a=$(printf '%{n * 100000}d' 1)\n" + LAUNCH),
    Shape("hosts", "run.sh", lambda n: BASH + "mpirun -H " + "a:1," * n + " python train.py\n"),
    Shape("mpmd", "run.sh", lambda n: BASH + "mpirun " + "-np 1 python t.py : " * n + "-np 1 python t.py\n"),
    Shape("wrappers", "run.sh", lambda n: BASH + "env A=1 nohup time " * n + LAUNCH),
    Shape("containers", "run.sh", lambda n: BASH + "docker run " + "-e A=1 " * n + "image " + LAUNCH),
    Shape("secrets", "run.sh", lambda n: BASH + "".join(f"export TOKEN{i}=abcdef{i}xyz\n" for i in range(n)) + LAUNCH),
    Shape("indirect", "run.sh", lambda n: BASH + "".join(f"a{i}=a{i + 1}\n" for i in range(n)) + "b=${!a0}\n" + LAUNCH),
    Shape("positional", "run.sh", lambda n: BASH + "set -- a b\n" + 'set -- "$@" "$@"\n' * n + 'torchrun t.py "$@"\n'),
    Shape("read", "run.sh", lambda n: BASH + "while read a; do torchrun t.py $a; done < run.sh\n" * n),
    Shape("trap", "run.sh", lambda n: BASH + "trap 'torchrun t.py' EXIT\n" * n + LAUNCH),
    Shape("sourcing-itself", "run.sh", lambda n: BASH + "source run.sh\n" * n + LAUNCH),
)

YAML = (
    Shape("pod-variables", "job.yaml", _pod_variables),
    Shape("pod-laughs", "job.yaml", _pod_laughs),
    Shape("laughs", "ds_config.yaml", _laughs),
    Shape("merges", "accelerate.yaml", lambda n: "compute_environment: LOCAL_MACHINE\n" + _merges(n)),
    Shape(
        "deep-flow", "accelerate.yaml", lambda n: "compute_environment: LOCAL_MACHINE\na: " + "[" * n + "]" * n + "\n"
    ),
    Shape("deep-open", "accelerate.yaml", lambda n: "compute_environment: LOCAL_MACHINE\na: " + "{a: " * n + "\n"),
    Shape(
        "deep-block",
        "accelerate.yaml",
        lambda n: "compute_environment: LOCAL_MACHINE\n" + "".join(" " * i + "a:\n" for i in range(min(n, 1500))),
    ),
    Shape(
        "keys",
        "accelerate.yaml",
        lambda n: "compute_environment: LOCAL_MACHINE\n" + "".join(f"k{i}: 1\n" for i in range(n)),
    ),
    Shape("equal-keys", "accelerate.yaml", lambda n: "compute_environment: LOCAL_MACHINE\n" + "num_machines: 1\n" * n),
    Shape("items", "accelerate.yaml", lambda n: "compute_environment: LOCAL_MACHINE\na:\n" + "- 1\n" * n),
    Shape("string", "accelerate.yaml", lambda n: 'compute_environment: LOCAL_MACHINE\na: "' + "x" * n + '"\n'),
    Shape(
        "folded",
        "job.yaml",
        lambda n: (
            POD
            + '        command: ["bash", "-c"]\n        args:\n        - >\n'
            + "          true &&\n" * n
            + "          torchrun t.py\n"
        ),
    ),
    Shape("escapes", "job.yaml", lambda n: POD + '        command: ["bash", "-c", "' + "\\n" * n + 'torchrun t.py"]\n'),
    Shape(
        "placeholders",
        "job.yaml",
        lambda n: (
            POD
            + "        env:\n"
            + "".join(f"        - {{name: V{i}, value: '{{{{ x }}}}'}}\n" for i in range(n))
            + _RUN
        ),
    ),
    Shape("open-placeholders", "job.yaml", lambda n: POD + "        image: " + "{{" * n + "\n" + _RUN),
    Shape("placeholder-comments", "job.yaml", lambda n: POD + "{{/*" * n + "\n" + _RUN),
    Shape("documents", "job.yaml", lambda n: (POD + _RUN + "---\n") * n),
    Shape("containers", "job.yaml", lambda n: POD + _RUN + ("      - name: c\n" + _RUN) * n),
    Shape("arguments", "job.yaml", lambda n: POD + _RUN + "        args: [" + '"--a=$(V0)",' * n + "]\n"),
    Shape(
        "anchors",
        "accelerate.yaml",
        lambda n: "compute_environment: LOCAL_MACHINE\n" + "".join(f"k{i}: &a{i} 1\n" for i in range(n)),
    ),
    Shape("tags", "accelerate.yaml", lambda n: "compute_environment: LOCAL_MACHINE\n" + "a: !!int '1'\n" * n),
    Shape(
        "numbers",
        "accelerate.yaml",
        lambda n: "compute_environment: LOCAL_MACHINE\na: " + "9" * n + "\nb: " + "1_" * n + "\nc: " + "1:" * n + "0\n",
    ),
    Shape("bad-ends", "accelerate.yaml", lambda n: "compute_environment: LOCAL_MACHINE\n" + "a: 1\n" * n + "b: [\n"),
    Shape(
        "compose-variables",
        "docker-compose.yml",
        lambda n: "services:\n  a:\n    image: x\n    command: torchrun " + "${A:-" * n + "1" + "}" * n + " t.py\n",
    ),
    Shape(
        "compose-services",
        "docker-compose.yml",
        lambda n: (
            "services:\n"
            + "".join(
                f"  s{i}:\n    image: x\n    command: torchrun t.py\n    environment: {{A: '${{A}}'}}\n"
                for i in range(n)
            )
        ),
    ),
    Shape(
        "compose-extends",
        "docker-compose.yml",
        lambda n: (
            "services:\n" + "".join(f"  s{i}:\n    extends: s{i + 1}\n    command: torchrun t.py\n" for i in range(n))
        ),
    ),
    Shape(
        "omega",
        "config.yaml",
        lambda n: (
            "trainer: {num_nodes: 1, devices: 8}\n" + "".join(f"k{i}: ${{k{i + 1}}}${{k{i + 1}}}\n" for i in range(n))
        ),
    ),
)

JSON = (
    Shape("deep", "ds_config.json", _deep_json),
    Shape("deep-objects", "ds_config.json", lambda n: '{"train_batch_size": ' + '{"a":' * n + "1" + "}" * n + "}"),
    Shape("open", "ds_config.json", lambda n: '{"train_batch_size": ' + "[" * n),
    Shape("string", "ds_config.json", lambda n: json.dumps({"train_batch_size": 1, "a": "x" * n})),
    Shape("escapes", "ds_config.json", lambda n: '{"train_batch_size": 1, "a": "' + "\\n" * n + '"}'),
    Shape("open-string", "ds_config.json", lambda n: '{"train_batch_size": 1, "a": "' + "x" * n),
    Shape("open-strings", "ds_config.json", lambda n: '{"train_batch_size": 1,\n' + '"a\n' * n),
    Shape("braces-in-string", "ds_config.json", lambda n: json.dumps({"train_batch_size": 1, "a": "{{" * n})),
    Shape("dollars-in-string", "ds_config.json", lambda n: json.dumps({"train_batch_size": 1, "a": "${" * n})),
    Shape("ats-in-string", "ds_config.json", lambda n: json.dumps({"train_batch_size": 1, "a": "@a" * n})),
    Shape(
        "members", "ds_config.json", lambda n: "{" + "".join(f'"k{i}": 1,' for i in range(n)) + '"train_batch_size": 1}'
    ),
    Shape("equal-members", "ds_config.json", lambda n: "{" + '"train_batch_size": 1,' * n + '"a": 1}'),
    Shape("items", "ds_config.json", lambda n: '{"train_batch_size": [' + "1," * n + "1]}"),
    Shape("faults", "ds_config.json", lambda n: '{"train_batch_size": 1 ' + "a " * n + "}"),
    Shape("colons", "ds_config.json", lambda n: '{"train_batch_size": [' + ":" * n + "]}"),
    Shape("comments", "ds_config.json", lambda n: '{"train_batch_size": 1,' + "/* */" * n + '"a": 1}'),
    Shape("open-comments", "ds_config.json", lambda n: '{"train_batch_size": 1,' + "/*" * n),
    Shape("placeholders", "ds_config.json", lambda n: '{"train_batch_size": 1,' + "{{a}}" * n + '"a": 1}'),
    Shape("bare", "ds_config.json", lambda n: '{"train_batch_size": ' + "a" * n + "}"),
    Shape("digits", "ds_config.json", lambda n: '{"train_batch_size": ' + "9" * n + "}"),
    Shape("spaces", "ds_config.json", lambda n: '{"train_batch_size": ' + " " * n + "1}"),
    Shape("spaced-commas", "ds_config.json", lambda n: '{"train_batch_size": 1' + ", " * n + "}"),
    Shape(
        "manifest",
        "pod.json",
        lambda n: (
            '{"apiVersion": "v1", "kind": "Pod", "spec": {"containers": ['
            + '{"command": ["torchrun", "t.py"]},' * n
            + "{}]}}"
        ),
    ),
)

_LOOP = TRAIN + "model = FSDP(net)\nfor batch in loader:\n    loss = model(batch).mean()\n    loss.backward()\n"

PYTHON = (
    Shape("assignments", "train.py", lambda n: TRAIN + "".join(f"v{i} = {i}\n" for i in range(n))),
    Shape("same-assignment", "train.py", lambda n: TRAIN + "v = 1\n" * n + "torch.cuda.set_device(v)\n"),
    Shape("self-assignment", "train.py", lambda n: TRAIN + "v = v + v\n" * n + "torch.cuda.set_device(v)\n"),
    Shape(
        "chain",
        "train.py",
        lambda n: (
            TRAIN
            + "v0 = 'x'\n"
            + "".join(f"v{i + 1} = v{i} + v{i}\n" for i in range(n))
            + f"dist.init_process_group(v{n})\n"
        ),
    ),
    Shape(
        "products",
        "train.py",
        lambda n: TRAIN + f"dist.init_process_group('a' * {10 ** min(n, 30)}, world_size=2{'*2' * n})\n",
    ),
    Shape("powers", "train.py", lambda n: TRAIN + f"dist.init_process_group('nccl', world_size=9{'**9' * n})\n"),
    Shape(
        "nested-format",
        "train.py",
        lambda n: TRAIN + "v = 'a'\n" + "v = f'{v}{v}'\n" * n + "dist.init_process_group(v)\n",
    ),
    Shape("conditional", "train.py", lambda n: TRAIN + "v = " + "1 if a else " * n + "2\ntorch.cuda.set_device(v)\n"),
    Shape("sum", "train.py", lambda n: TRAIN + "v = 1" + " + 1" * n + "\ntorch.cuda.set_device(v)\n"),
    Shape("strings", "train.py", lambda n: TRAIN + "v = 'a'" + " 'a'" * n + "\ndist.init_process_group(v)\n"),
    Shape("brackets", "train.py", lambda n: TRAIN + "v = " + "(" * n + ")" * n + "\n"),
    Shape("open-brackets", "train.py", lambda n: TRAIN + "v = " + "[" * n + "\n"),
    Shape("unary", "train.py", lambda n: TRAIN + "v = " + "-" * n + "1\n"),
    Shape("attributes", "train.py", lambda n: TRAIN + "v = a" + ".a" * n + "\n"),
    Shape("calls", "train.py", lambda n: TRAIN + "v = a" + "()" * n + "\n"),
    Shape("indexes", "train.py", lambda n: TRAIN + "v = a" + "[0]" * n + "\n"),
    Shape("nested-calls", "train.py", lambda n: TRAIN + "v = " + "f(" * n + ")" * n + "\n"),
    Shape("lambdas", "train.py", lambda n: TRAIN + "v = " + "lambda: " * n + "1\n"),
    Shape(
        "nested-functions",
        "train.py",
        lambda n: TRAIN + "".join(" " * i + "def f():\n" for i in range(min(n, 95))) + " " * min(n, 95) + "pass\n",
    ),
    Shape(
        "nested-ifs",
        "train.py",
        lambda n: (
            TRAIN + "".join(" " * i + "if a:\n" for i in range(min(n, 95))) + " " * min(n, 95) + "dist.barrier()\n"
        ),
    ),
    Shape(
        "elifs",
        "train.py",
        lambda n: (
            TRAIN
            + "if a == 0:\n    dist.barrier()\n"
            + "".join(f"elif a == {i}:\n    dist.barrier()\n" for i in range(n))
        ),
    ),
    Shape(
        "functions",
        "train.py",
        lambda n: TRAIN + "".join(f"def f{i}():\n    f{i + 1}()\n    dist.barrier()\n" for i in range(n)),
    ),
    Shape(
        "same-functions",
        "train.py",
        lambda n: TRAIN + "def f():\n    f()\n    dist.barrier()\n" * n + "if rank == 0:\n    f()\n" * n,
    ),
    Shape(
        "calling-each-other",
        "train.py",
        lambda n: (
            TRAIN
            + "".join(
                f"def f{i}():\n    f{(i + 1) % n}()\n    f{(i + 7) % n}()\nif dist.get_rank() == 0:\n    f{i}()\n"
                for i in range(n)
            )
        ),
    ),
    Shape("barriers", "train.py", lambda n: TRAIN + "if dist.get_rank() == 0:\n    dist.barrier()\n" * n),
    Shape(
        "loaders",
        "train.py",
        lambda n: (
            TRAIN
            + "l = torch.utils.data.DataLoader(d, batch_size=2, sampler=s)\nfor e in range(9):\n    for b in l: pass\n"
            * n
        ),
    ),
    Shape("losses", "train.py", lambda n: _LOOP + "    if loss.item() > 3:\n        break\n" * n),
    Shape(
        "loss-chain",
        "train.py",
        lambda n: _LOOP + "".join(f"    l{i + 1} = l{i} + l{i}\n" for i in range(n)) + f"    if l{n} > 3: break\n",
    ),
    Shape(
        "endless",
        "train.py",
        lambda n: (
            _LOOP
            + '    log["x"] = meters["a"].avg\n    losses.update(meters["a"].avg)\n' * n
            + "    if losses.val > 10:\n        return False\n"
        ),
    ),
    Shape(
        "endless-attributes",
        "train.py",
        lambda n: (
            _LOOP
            + "    a[0].b = a[1].b\n    a.update(a[0].b, a[1].b.c)\n" * n
            + "    if a[0].b.loss > a.loss:\n        break\n"
        ),
    ),
    Shape(
        "endless-while",
        "train.py",
        lambda n: (
            TRAIN
            + "model = FSDP(net)\n"
            + 'while losses["a"].val > 3:\n    losses["a"].val = meters["a"].avg\n'
            + '    losses.update(meters["a"].avg)\n    loss.backward()\n' * n
        ),
    ),
    Shape("imports", "train.py", lambda n: TRAIN + "".join(f"import m{i}\nfrom .p{i} import q\n" for i in range(n))),
    Shape(
        "arguments",
        "train.py",
        lambda n: (
            TRAIN
            + "import argparse\np = argparse.ArgumentParser()\n"
            + "".join(f"p.add_argument('--a{i}', type=int, default={i})\n" for i in range(n))
        ),
    ),
    Shape(
        "environment",
        "train.py",
        lambda n: TRAIN + "import os\n" + "".join(f"os.environ['NCCL_A{i}'] = '1'\n" for i in range(n)),
    ),
    Shape("one-line", "train.py", lambda n: TRAIN + "a=1;" * n + "\n"),
    Shape("string", "train.py", lambda n: TRAIN + "v = '" + "a" * n + "'\n"),
    Shape("docstring", "train.py", lambda n: TRAIN + "'''\n" + "import torch\n" * n + "'''\n"),
    Shape("comments", "train.py", lambda n: TRAIN + "# import torch\n" * n),
    Shape("integers", "train.py", lambda n: TRAIN + "v = " + "9" * n + "\n"),
    Shape("list", "train.py", lambda n: TRAIN + "v = [" + "1," * n + "]\n" + "torch.cuda.set_device(v)\n" * 9),
    Shape("dict", "train.py", lambda n: TRAIN + "v = {" + "'a': 1," * n + "}\n"),
    Shape("saves", "train.py", lambda n: TRAIN + "if True:\n    torch.save(m, 'a')\n" * n),
    Shape(
        "try",
        "train.py",
        lambda n: _LOOP + "    try:\n        loss.backward()\n    except RuntimeError:\n        continue\n" * n,
    ),
    Shape("with", "train.py", lambda n: TRAIN + "with " + "a() as b, " * n + "c() as d:\n    pass\n"),
    Shape("walrus", "train.py", lambda n: TRAIN + "(v := v)\n" * n),
    Shape("tabs", "train.py", lambda n: TRAIN + "\t" * n + "x\n"),
)

OTHER = (
    Shape(
        "arg",
        "Dockerfile",
        lambda n: (
            "FROM x\nARG A0=x\n"
            + "".join(f"ARG A{i + 1}=$A{i}$A{i}\n" for i in range(n))
            + f'CMD ["torchrun", "t.py", "$A{n}"]\n'
        ),
    ),
    Shape("env", "Dockerfile", lambda n: "FROM x\nENV A=x\n" + "ENV A=$A$A\n" * n + "CMD torchrun t.py $A\n"),
    Shape(
        "stages",
        "Dockerfile",
        lambda n: (
            "".join(f"FROM {'x' if not i else f's{i - 1}'} AS s{i}\nENV A{i}=1\n" for i in range(n))
            + "CMD torchrun t.py\n"
        ),
    ),
    Shape("runs", "Dockerfile", lambda n: "FROM x\n" + "RUN pip install torch\n" * n + "CMD torchrun t.py\n"),
    Shape("continued", "Dockerfile", lambda n: "FROM x\nRUN a" + " \\\n b" * n + "\nCMD torchrun t.py\n"),
    Shape("here", "Dockerfile", lambda n: "FROM x\n" + "RUN <<EOF\na\nEOF\n" * n + "CMD torchrun t.py\n"),
    Shape(
        "make-variables",
        "Makefile",
        lambda n: (
            "A0 = x\n"
            + "".join(f"A{i + 1} = $(A{i})$(A{i})\n" for i in range(n))
            + f"train:\n\ttorchrun t.py $(A{n})\n"
        ),
    ),
    Shape("make-append", "Makefile", lambda n: "A = x\n" + "A := $(A)$(A)\n" * n + "train:\n\ttorchrun t.py $(A)\n"),
    Shape("make-rules", "Makefile", lambda n: "".join(f"t{i}:\n\ttorchrun t.py\n" for i in range(n))),
    Shape("make-lines", "Makefile", lambda n: "train:\n" + "\ttorchrun t.py\n" * n),
    Shape("make-continued", "Makefile", lambda n: "train:\n\ttorchrun t.py" + " \\\n\t--a" * n + "\n"),
    Shape("make-nest", "Makefile", lambda n: "A = " + "$(if x," * n + ")" * n + "\ntrain:\n\ttorchrun t.py $(A)\n"),
    Shape("hosts", "hostfile", lambda n: "".join(f"node{i} slots=8\n" for i in range(n))),
    Shape("same-host", "hostfile", lambda n: "node slots=8\n" * n),
    Shape("host-range", "hostfile", lambda n: "node[1-9999999] slots=8\n" * n),
    Shape("host-faults", "hostfile", lambda n: "node1 slots=8\n" + "node slots=a\n" * n),
    Shape("host-line", "hostfile", lambda n: "node1 slots=8\n" + "n" * n + "\n"),
    Shape("host-spaces", "hostfile", lambda n: "node1 slots=8\n" + " " * n + "x" + " " * n + "y\n"),
    Shape("requirements", "requirements.txt", lambda n: "".join(f"torch=={i}\n" for i in range(n))),
    Shape("requirement-line", "requirements.txt", lambda n: "torch" + ">=1," * n + "\n"),
    Shape("requirement-loop", "requirements.txt", lambda n: "-r requirements.txt\n" * n),
    Shape("requirement-continued", "requirements.txt", lambda n: "torch \\\n" * n),
    Shape("dotenv", ".env", lambda n: "".join(f"NCCL_A{i}=1\n" for i in range(n))),
    Shape("dotenv-doubling", ".env", lambda n: "NCCL_A=x\n" + "NCCL_A=$NCCL_A$NCCL_A\n" * n),
    Shape("toml", "config.toml", lambda n: "[a]\n" + "".join(f"k{i} = 1\n" for i in range(n))),
    Shape("toml-deep", "config.toml", lambda n: "a = " + "[" * n + "]" * n + "\n"),
    Shape("deepspeed-env", ".deepspeed_env", lambda n: "NCCL_DEBUG=INFO\n" * n),
)

SHAPES = (*SHELL, *YAML, *JSON, *PYTHON, *OTHER)


# A tree of hostile files: each shape at a harmful size, and odd entries of a file system.


_MIB = 1 << 20


def plant(root: Path) -> list[str]:
    """Write the tree; return the paths that cannot be read completely."""
    for shape in SHAPES:
        folder = root / f"{shape.name.strip('.').replace('.', '-')}-{shape.id}"
        folder.mkdir()
        (folder / shape.name).write_text(shape.text(6000))
    unread = list(_too_much(root / "large"))
    unread += odd_files(root / "odd")
    _many(root / "many")
    misleading_names(root / "names")
    return unread


def _too_much(folder: Path) -> Iterator[str]:
    """Files beyond the size limit."""
    folder.mkdir()
    texts = {
        "comments.sh": BASH + "# a comment\n" * 40_000 + LAUNCH,
        "lines.sh": BASH + "true a b\n" * 60_000 + LAUNCH,
        "steps.sh": BASH
        + "for a in 1 2 3 4 5 6 7 8; do for b in 1 2 3 4 5 6 7 8; do x=$a$b; y=$x; done; done\n" * 400
        + LAUNCH,
        "statements.py": TRAIN + "value = 1\n" * 80_000,
        "huge.sh": BASH + "#" * (11 * _MIB) + "\n" + LAUNCH,
        "huge.py": TRAIN + "#" * (11 * _MIB) + "\n",
        "huge.yaml": POD + '        command: ["torchrun", "t.py"]\n' + "#" * (11 * _MIB) + "\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
        yield f"large/{name}"
    with (folder / "sparse.sh").open("wb") as file:
        file.write(BASH.encode())
        file.truncate(1 << 40)
    yield "large/sparse.sh"
    (folder / "ds_config.json").write_text('{"train_batch_size": 1, "a": "' + "x" * (9 * _MIB) + '"}')
    (folder / "ds_config_items.json").write_text('{"train_batch_size": 1, "a": [' + "1," * (4 * _MIB) + "1]}")
    yield "large/ds_config_items.json"
    (folder / "line.py").write_text(TRAIN + "value = '" + "a" * (10 * _MIB - 4096) + "'\n")
    yield "large/line.py"


def odd_files(folder: Path) -> Iterator[str]:
    """Entries that are not regular files, or not text."""
    folder.mkdir()
    (folder / "nul.sh").write_bytes(BASH.encode() + b"\0\n" + LAUNCH.encode())
    (folder / "wide.sh").write_bytes((BASH + LAUNCH).encode("utf-16"))
    (folder / "binary.py").write_bytes(os.urandom(4096) + b"\0")
    os.mkfifo(folder / "fifo.sh")
    (folder / "loop.sh").symlink_to("loop.sh")
    (folder / "outside.sh").symlink_to("/etc/passwd")
    (folder / "device.sh").symlink_to("/dev/zero")
    (folder / "nowhere.sh").symlink_to("nothing-here")
    (folder / "folder.sh").mkdir()
    (folder / "up").symlink_to("..")
    names = ["nul.sh", "wide.sh", "binary.py", "fifo.sh", "loop.sh", "outside.sh", "device.sh", "nowhere.sh"]
    with suppress(OSError), socket.socket(socket.AF_UNIX) as server:
        # A socket's path has at most 107 bytes.
        before = Path.cwd()
        os.chdir(folder)
        try:
            server.bind("socket.sh")
        finally:
            os.chdir(before)
        names.append("socket.sh")
    yield from (f"odd/{name}" for name in names)


def _many(folder: Path) -> None:
    """Files that are harmless alone."""
    (folder / "ring").mkdir(parents=True)
    for number in range(100):
        sourced = "".join(f"source ring{(number + step) % 100}.sh\n" for step in (1, 7, 50))
        (folder / "ring" / f"ring{number}.sh").write_text(BASH + sourced + LAUNCH)
    (folder / "modules").mkdir()
    for number in range(100):
        (folder / "modules" / f"m{number}.py").write_text(TRAIN + f"import m{number + 1}\nimport m{number * 2}\n")
    (folder / "deep").mkdir()
    inner = folder / "deep"
    for _ in range(120):
        inner = inner / "d"
    inner.mkdir(parents=True)
    (inner / "run.sh").write_text(BASH + LAUNCH)


def misleading_names(folder: Path) -> None:
    """Misleading names."""
    folder.mkdir()
    for name in (
        "-rf.sh",
        "new\nline.sh",
        "bell\a.sh",
        "::error::.sh",
        "esc\x1b[31m.sh",
        "\udcff.sh",
        "a b.sh",
        "$(id).sh",
        "ünïcode.sh",
    ):
        with suppress(OSError, UnicodeError):
            (folder / name).write_text(BASH + LAUNCH)
