from __future__ import annotations

from preflight.model.job import Claim, Known, Unresolved
from tests.sources.launchers.reading_lines import read

HEADER = "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=8\n"


def steps(script: str) -> dict[str, dict[str, Claim]]:
    """The claims about each step, by its line."""
    found: dict[str, dict[str, Claim]] = {}
    for claim in read(script).claims:
        if claim.quantity.startswith("step"):
            found.setdefault(claim.scope.launch.partition(":")[2], {})[claim.quantity] = claim
    return found


def test_a_step_without_python_is_claimed() -> None:
    said = steps(HEADER + "srun -N2 ./train\n")["4"]
    assert said["step"].value == Known("train")
    assert (said["step_nodes"].value, said["step_nodes"].spelling) == (Known(2), "-N2")
    assert (said["step_tasks"].value, said["step_tasks_per_node"].value) == (Known(16), Known(8))
    assert said["step_kills_on_failure"].value == Known(False)


def test_background_and_pipe_belong_to_their_statement() -> None:
    found = steps(
        HEADER + "srun a &\n{ srun b; } &\nsrun c 2>&1 | tee -a log\nsrun d |& cat\nsrun e > log\n(srun f) &\n"
        "for i in $ALL; do\n  srun g $i &\ndone\n"
    )
    behind = {said["step"].value for said in found.values() if said["step_background"].value == Known(True)}
    assert behind == {Known("a"), Known("b"), Known("f"), Known("g")}
    piped = {said["step"].value: said["step_pipe"].value for said in found.values() if "step_pipe" in said}
    assert piped == {Known("c"): Known("tee"), Known("d"): Known("cat")}
    assert [line for line, said in found.items() if "step_repeated" in said] == ["11"]


def test_a_shell_inside_srun_has_its_own_pipes_and_options() -> None:
    found = steps(HEADER + "srun bash -c 'set -o pipefail; python x.py | tee log'\nsrun a | tee log\n")
    assert "step_pipe" not in found["4"]
    assert found["5"]["step_pipe_hides_failure"].value == Known(True)


def test_pipefail_counts_from_where_it_is_set() -> None:
    found = steps(HEADER + "srun a | cat\nset -euo pipefail\nsrun b | cat\nset +o pipefail\nsrun c | cat\n")
    assert [found[line]["step_pipe_hides_failure"].value for line in ("4", "6", "8")] == [
        Known(True),
        Known(False),
        Known(True),
    ]


def test_kill_on_bad_exit_in_every_spelling() -> None:
    found = steps(
        HEADER
        + "srun -K a\nsrun -K1 b\nsrun --kill-on-bad-exit=1 c\nsrun --kill-on-bad-exit=0 d\nsrun $OPTIONS python e.py\n"
        "SLURM_KILL_BAD_EXIT=1 srun f\n"
    )
    values = [found[str(line)]["step_kills_on_failure"].value for line in range(4, 10)]
    assert values[:4] == [Known(True), Known(True), Known(True), Known(False)]
    assert isinstance(values[4], Unresolved)
    assert values[5] == Known(True)


def test_cores_of_a_step_come_from_srun_or_its_variable_alone() -> None:
    found = steps(HEADER + "#SBATCH -c 6\nsrun a\nsrun -c 4 b\nexport SRUN_CPUS_PER_TASK=6\nsrun c\n")
    assert "step_cpus_per_task" not in found["5"]
    assert found["6"]["step_cpus_per_task"].value == Known(4)
    assert found["8"]["step_cpus_per_task"].value == Known(6)


def test_without_a_header_steps_are_not_claimed() -> None:
    assert steps("srun -N2 ./train | tee log\nwait\n") == {}


def test_waits_and_traps_are_claimed() -> None:
    reading = read(HEADER + "trap 'exit 1' SIGTERM 10\ntrap cleanup EXIT\nsrun a &\nwait\nwait $!\n")
    said = [(c.quantity, c.value, c.span.line) for c in reading.claims if c.source == "shell"]
    assert said == [
        ("background_awaited", Known(True), 7),
        ("trapped_signal", Known("TERM"), 4),
        ("trapped_signal", Known("USR1"), 4),
        ("failure_watch", Known("trap EXIT"), 5),
        ("trapped_signal", Known("EXIT"), 5),
        ("plain_wait", Known(True), 7),
        ("failure_watch", Known("wait"), 8),
    ]


def test_header_options_other_than_sizes() -> None:
    reading = read(
        "#!/bin/bash\n#SBATCH --gres=gpu:a100:4,nvme:1 --signal=B:USR1@90\n#SBATCH -a 0-7%2 -o log_%j.txt --requeue\n"
        "#SBATCH --mem-per-gpu=60G --exclusive --gpu-bind=single:1\ntrue\n"
    )
    said = {claim.quantity: claim.value for claim in reading.claims}
    assert said["gpu_type"] == Known("a100")
    assert said["hand_off_signal"] == Known("B:USR1@90")
    assert said["job_array"] == Known("0-7%2")
    assert said["output_file"] == Known("log_%j.txt")
    assert said["requeue"] == said["exclusive"] == Known(True)
    assert said["memory_per_gpu_mib"] == Known(60 * 1024)
    assert said["gpu_bind"] == Known("single:1")


def test_a_script_that_launches_nothing_states_what_it_exports_for_communication() -> None:
    reading = read("export NCCL_SOCKET_IFNAME=bond0\nexport LD_LIBRARY_PATH=/opt\nNCCL_DEBUG=INFO\nexport FI_TOKEN=x\n")
    said = [(c.quantity, c.value, c.span.line) for c in reading.claims]
    assert said == [("env.NCCL_SOCKET_IFNAME", Known("bond0"), 1)]


def test_ignored_directives() -> None:
    reading = read(
        "#!/bin/bash\n#SBATCH --nodes=2\n# SBATCH --time=1:00:00\n##SBATCH -p gpu\n#sbatch -n 4\n"
        "cat <<'END' > other.sbatch\n#SBATCH --nodes=8\nEND\n#SBATCH --gres=gpu:4\n# SBATCH is read at the top\n"
    )
    found = [(c.span.line, c.value) for c in reading.claims if c.quantity == "directive_unread"]
    assert found == [
        (3, Known("there is a space between # and SBATCH")),
        (5, Known("SBATCH must be in capitals")),
        (9, Known("it comes after the first command")),
    ]


def test_setup_commands_of_the_script() -> None:
    reading = read(HEADER + "mkdir -p logs/ out\nsrun mkdir far\nscontrol requeue $SLURM_JOB_ID\n")
    said = [(c.quantity, c.value) for c in reading.claims if c.source == "shell" and c.quantity != "variable_read"]
    assert said == [
        ("directory_made", Known("logs")),
        ("directory_made", Known("out")),
        ("requeues_itself", Known(True)),
    ]
