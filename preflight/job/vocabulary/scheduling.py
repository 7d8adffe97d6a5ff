"""What is asked of Slurm beside sizes: single steps, what becomes of a step that fails, and how a job ends."""

from preflight.job.quantity import Quantity

SCHEDULING = (
    Quantity("step", str, "program that one srun starts; what else is said of this step stands in its scope"),
    Quantity("step_nodes", int, "nodes over which that step runs", "nodes"),
    Quantity("step_tasks", int, "tasks of that step in all", "tasks"),
    Quantity("step_tasks_per_node", int, "tasks of that step on each node", "tasks"),
    Quantity("step_cpus_per_task", int, "CPU cores that srun itself is told to give each task of the step", "cores"),
    Quantity("step_background", bool, "the step ends in `&`"),
    Quantity("step_repeated", bool, "the step stands in a loop that starts it once for each of many"),
    Quantity("step_pipe", str, "program at the end of the pipe that the step writes into"),
    Quantity("step_pipe_hides_failure", bool, "nothing in the script looks at the status of srun in that pipe"),
    Quantity("step_kills_on_failure", bool, "a task that fails ends the step (--kill-on-bad-exit)"),
    Quantity("step_module", str, "Python module the step starts with `-m`"),
    Quantity("plain_wait", bool, "the script waits for its background commands without looking how they ended"),
    Quantity("failure_watch", str, "what a script does to learn of a failure: `wait -n`, `wait PID`, a trap on EXIT"),
    Quantity("trapped_signal", str, "signal that a batch script handles with `trap`"),
    Quantity("hand_off_signal", str, "signal sent before the time limit, as `--signal` spells it"),
    Quantity("requeue", bool, "the job is queued again after preemption or a node's failure"),
    Quantity("job_array", str, "indices of a job array"),
    Quantity("output_file", str, "pattern of the file the job's output is written to"),
    Quantity("gpu_bind", str, "which GPUs of its node a task can see (--gpu-bind)"),
    Quantity("gpu_type", str, "kind of GPU asked for, as the scheduler or the instance names it"),
    Quantity("memory_per_cpu_mib", int, "memory granted with each CPU core", "MiB"),
    Quantity("memory_per_gpu_mib", int, "memory granted with each GPU", "MiB"),
    Quantity("exclusive", bool, "no other job shares the nodes"),
    Quantity("time_limit", str, "time limit as it is written"),
    Quantity("output_opened", str, "how the output file is opened again: append, truncate"),
    Quantity("directory_made", str, "directory that the script makes with mkdir"),
    Quantity("requeues_itself", bool, "the script puts its own job back into the queue"),
    Quantity("directive_unread", str, "an `#SBATCH` line that sbatch does not read, and why"),
)
