"""Commands started once per line, argument or submission; scripts on standard input or written by the script itself."""

from __future__ import annotations

import pytest

from preflight.model.job import Known
from preflight.sources.base import Script, SourceFile
from preflight.sources.formats.tree import MemoryTree
from preflight.sources.shell import evaluate

NODE = "torchrun --node_rank $1 x.py\n"


def script(text: str, **files: str) -> Script:
    tree = MemoryTree({"run.sh": text, "node.sh": NODE, **{name.replace("_dot_", "."): t for name, t in files.items()}})
    return evaluate(SourceFile("run.sh", text, "", len(text)), tree)


def ranks(found: Script) -> list[object]:
    """The node ranks passed to torchrun; None for an unknown one."""
    return [
        command.words[2].value.value if isinstance(command.words[2].value, Known) else None
        for command in found.commands
        if command.words[0].value == Known("torchrun")
    ]


@pytest.mark.parametrize(
    "line",
    [
        "for i in 0 1; do bash node.sh $i & done",
        "echo 0 1 | xargs -n 1 -P 2 bash node.sh",
        "printf '%s\\n' 0 1 | xargs -I{} ssh h{} 'bash node.sh {}'",
        "printf '%s\\n' 0 1 | xargs -I RANK bash node.sh RANK",
        "seq 0 1 | xargs -L1 -P0 bash node.sh",
        "xargs -n1 bash node.sh <<< '0 1'",
        "parallel -j 2 bash node.sh {} ::: 0 1",
        "parallel bash node.sh ::: 0 1",
        "parallel --link 'ssh h{1} bash node.sh {2}' ::: a b ::: 0 1",
        "seq 0 1 | parallel 'bash node.sh {}'",
        "parallel ::: 'bash node.sh 0' 'bash node.sh 1'",
        "parallel --colsep ' ' ssh {1} bash node.sh {2} < hosts.txt",
        "while read -r host rank; do ssh -n $host bash node.sh $rank; done < hosts.txt",
        "cat hosts.txt | while read h r; do bash node.sh $r; done",
        "while IFS=, read h r; do bash node.sh $r; done <<EOF\na,0\nb,1\nEOF",
        'while read -r r || [ -n "$r" ]; do bash node.sh $r; done < <(seq 0 1)',
        'mapfile -t L < hosts.txt; for l in "${L[@]}"; do bash node.sh ${l#* }; done',
        "for i in 0 1; do sbatch -N1 node.sh $i; done",
        "for i in 0 1; do qsub node.sh $i; done",
        'for i in 0 1; do bsub -n 8 "bash node.sh $i"; done',
    ],
)
def test_each_start_has_its_own_arguments(line: str) -> None:
    assert ranks(script(line, hosts_dot_txt="a 0\nb 1\n")) == ["0", "1"]


@pytest.mark.parametrize(
    "line",
    ["find . | xargs -n1 bash node.sh", "parallel bash node.sh {} :::: list", "cat list | parallel bash node.sh"],
)
def test_unknown_arguments_mean_any_number_of_starts(line: str) -> None:
    found = script(line)
    assert ranks(found) == [None]
    assert found.commands[-1].repeated


def test_concurrent_starts_are_marked() -> None:
    for line, concurrent in (("-P 2 ", True), ("", False)):
        found = script(f"echo 0 1 | xargs -n 1 {line}bash node.sh")
        assert {c.concurrent for c in found.commands if c.words[0].value == Known("torchrun")} == {concurrent}


def test_read_assigns_the_words_of_its_input() -> None:
    found = script('IFS=: read -r h p <<< "a:29500"; read -ra A <<< "x y"; cmd $h $p ${A[1]} "${rest}"')
    assert [word.value for word in found.commands[-1].words[:4]] == [Known(t) for t in ("cmd", "a", "29500", "y")]


@pytest.mark.parametrize(
    "text",
    [
        "ssh h bash -s <<EOF\ntorchrun --node_rank 0 x.py\nEOF",
        "ssh h 'bash -s' -- 0 < node.sh",
        "cat <<EOF | sbatch\n#!/bin/bash\ntorchrun --node_rank 0 x.py\nEOF",
        "C='torchrun --node_rank 0 x.py'\necho \"$C\" | bash",
        "cat > r.sh <<EOF\ntorchrun --node_rank 0 x.py\nEOF\nsbatch r.sh",
        "S=job_$(date +%s).sh\ncat > $S <<EOF\ntorchrun --node_rank 0 x.py\nEOF\nbash $S",
        "S=r$1.sh\necho '#!/bin/bash' > $S\necho 'torchrun --node_rank 0 x.py' >> $S\nsbatch $S",
        "{\n echo '#!/bin/bash'\n echo 'torchrun --node_rank 0 x.py'\n} > r.sh\nbash r.sh",
        "$(which torchrun) --node_rank 0 x.py",
        "T=$(command -v torchrun)\n$T --node_rank 0 x.py",
    ],
)
def test_code_from_elsewhere_is_followed(text: str) -> None:
    assert ranks(script(text)) == ["0"]


def test_a_loop_over_unknown_lines_is_unresolved() -> None:
    found = script("while read r; do bash node.sh $r; done < nowhere.txt")
    assert ranks(found) == [None]


@pytest.mark.parametrize("damage", ['echo "open\n', "A=(1 2 3\n", 'if [ $A = 1 ; then\n  echo "\nfi\n'])
def test_a_launch_line_in_damaged_code_is_read(damage: str) -> None:
    found = script(f"N=0\n{damage}torchrun --node_rank $N x.py\n")
    assert ranks(found) == ["0"]


def test_a_looked_up_path_is_not_the_name() -> None:
    found = script("cmd $(dirname $(which nvcc))")
    assert not isinstance(found.commands[-1].words[1].value, Known)


ENVIRONMENT_NODE = "torchrun --node_rank $NODE_RANK x.py\n"


@pytest.mark.parametrize(
    "line",
    [
        "docker run -e NODE_RANK=1 img bash env.sh",
        "docker run -it --rm --env=NODE_RANK=1 img bash env.sh",
        "export NODE_RANK=1; docker run -e NODE_RANK img bash env.sh",
        "docker run --env-file node.env img bash env.sh",
        "docker run --env-file other.env -e NODE_RANK=1 img bash env.sh",
        "ssh h docker run -e NODE_RANK=1 img bash env.sh",
        "ssh h \"docker run -e NODE_RANK=1 img bash -c 'torchrun --node_rank \\$NODE_RANK x.py'\"",
        "podman run -e NODE_RANK=1 img bash env.sh",
        "apptainer exec --env A=b,NODE_RANK=1 i.sif bash env.sh",
        "singularity exec --cleanenv --env-file node.env i.sif bash env.sh",
        "export APPTAINERENV_NODE_RANK=1; apptainer exec --containall i.sif bash env.sh",
        "enroot start --env NODE_RANK=1 img bash env.sh",
        "shifter --image=i --env NODE_RANK=1 bash env.sh",
        "srun --export=ALL,NODE_RANK=1 bash env.sh",
        "srun --export ALL,NODE_RANK=1 bash env.sh",
        "export NODE_RANK=1; srun --export=NODE_RANK bash env.sh",
        "mpirun -x NODE_RANK=1 bash env.sh",
        "mpiexec -genv NODE_RANK 1 bash env.sh",
        "sudo NODE_RANK=1 bash env.sh",
    ],
)
def test_variables_that_a_wrapper_gives_reach_the_script(line: str) -> None:
    files = {"env_dot_sh": ENVIRONMENT_NODE, "node_dot_env": "NODE_RANK=1\n", "other_dot_env": "NODE_RANK=7\n"}
    assert ranks(script(line, **files)) == ["1"]


@pytest.mark.parametrize(
    "line",
    [
        "docker run img bash env.sh",
        "docker run -e OTHER=1 img bash env.sh",
        "apptainer exec --containall i.sif bash env.sh",
        "srun --export=OTHER bash env.sh",
        "srun kubectl exec pod -- bash env.sh",
    ],
)
def test_variables_that_a_wrapper_withholds_do_not_reach_the_script(line: str) -> None:
    assert ranks(script(f"export NODE_RANK=1\n{line}", env_dot_sh=ENVIRONMENT_NODE)) == [None]
