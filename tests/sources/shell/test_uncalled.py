"""Functions that only a file outside of the tree calls, and text that `read` takes whole."""

from __future__ import annotations

import pytest

from tests.sources.launchers.reading_lines import only, read, why

BENCHMARK = """
function _set_params(){ bs=${1:-4}; devices=${CUDA_VISIBLE_DEVICES//,/ }; a=($devices); n=${#a[*]}; }
function _train(){
    cmd="--batch_size=${bs}"
    if [ ${mode} = "sp" ]; then cmd="python -u train.py "${cmd}
    else cmd="python -m paddle.distributed.launch --gpus=0,1,2,3 train.py "${cmd}; fi
    timeout 15m ${cmd} > log 2>&1
}
%s
_set_params $@
_run
"""


@pytest.mark.parametrize("line", ["source ${BENCHMARK_ROOT}/run_model.sh", ". scripts/run_model.sh", '"$@"'])
def test_a_function_that_another_file_calls(line: str) -> None:
    found = read(BENCHMARK % line)
    (launch,) = found.launches
    assert (launch.launcher, launch.program) == ("paddle", "train.py")
    assert "_train is called" in launch.condition
    assert only(found, "processes_per_node").alternatives == (4,)


@pytest.mark.parametrize("line", ["true", "source /opt/conda/etc/profile.d/conda.sh", "source ./env.sh"])
def test_a_function_that_nothing_calls(line: str) -> None:
    assert read(BENCHMARK % line, env_dot_sh="A=1\n").launches == ()


def test_a_function_runs_once_through_the_one_that_calls_it() -> None:
    text = ". other.sh\nlaunch() { torchrun --nproc_per_node=$1 t.py; }\nmain() { launch 4; }\n"
    found = read(text)
    assert len(found.launches) == 1
    assert only(found, "processes_per_node").alternatives == (4,)


def test_a_called_function_does_not_run_again() -> None:
    assert len(read(". other.sh\nlaunch() { torchrun t.py; }\nlaunch\n").launches) == 1


def test_unknown_arguments_of_an_uncalled_function_are_unknown() -> None:
    assert "$1" in why(only(read('launch() { torchrun --nproc_per_node=$1 t.py; }\n"$@"\n'), "processes_per_node"))


def test_read_takes_a_whole_here_document() -> None:
    text = "read -r -d '' JOB <<'EOF'\ncd /x\ntorchrun --nproc_per_node=4 \\\n  t.py\nEOF\nsrun -N2 bash -c \"$JOB\"\n"
    found = read(text)
    assert [launch.launcher for launch in found.launches] == ["torchrun"]
    assert only(found, "processes_per_node").span.line == 3
