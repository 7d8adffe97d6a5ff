"""How many of what is started."""

from preflight.job.quantity import Quantity

STARTING = (
    Quantity("nodes", int, "nodes that take part in the launch", "nodes", agrees=True),
    Quantity("min_nodes", int, "lower end of an elastic range of nodes", "nodes"),
    Quantity("tasks", int, "tasks (copies of the launched command) the scheduler or MPI starts in all", "tasks"),
    Quantity("tasks_per_node", int, "copies of the launched command started on each node", "tasks", agrees=True),
    Quantity("processes_per_node", int, "ranks the launcher starts on each node", "processes", agrees=True),
    Quantity("world_size", int, "ranks of the job in all", "ranks", agrees=True),
    Quantity("gpus_per_node", int, "GPUs the job holds on each node", "GPUs", agrees=True),
    Quantity("gpus_per_task", int, "GPUs the scheduler binds to each task", "GPUs"),
    Quantity("min_tasks", int, "lower end of an elastic number of tasks", "tasks"),
    Quantity("max_tasks", int, "upper end of an elastic number of tasks", "tasks"),
    Quantity("host_discovery", str, "program that an elastic launcher asks for the hosts there are"),
    Quantity("mpi_implementation", str, "family of MPI, told by its options: openmpi, mpich (with Intel MPI)"),
    Quantity("passed_variables", tuple, "names of the variables that mpirun hands on to ranks on other hosts"),
    Quantity("controller", str, "how horovodrun coordinates: gloo, mpi, jsrun"),
    Quantity("oversubscribe", bool, "more processes than slots are allowed"),
    Quantity("unknown_option", str, "an option that the launcher's parser does not know, as its bare name"),
    Quantity("cpus_per_task", int, "CPU cores of each task", "cores"),
    Quantity("memory_per_node_mib", int, "memory the scheduler grants on each node", "MiB"),
    Quantity("time_limit_s", int, "wall time after which the scheduler ends the job", "s"),
    Quantity("partition", str, "scheduler partition or queue"),
    Quantity("hosts", tuple, "names of the job's nodes in rank order"),
    Quantity("host_slots", int, "slots of one host of a hostfile (scope.node names the host)", "slots"),
    Quantity("node_rank", int, "index of the node this launch line is for"),
    Quantity("rank", int, "global rank of the process"),
    Quantity("local_rank", int, "rank of the process on its node"),
    Quantity("included_slots", tuple, "host[:slot,slot] entries of deepspeed --include, as written"),
    Quantity("excluded_slots", tuple, "host[:slot,slot] entries of deepspeed --exclude, as written"),
    Quantity("plain_program", str, "script that a plain python line starts as one process, with no ranks around it"),
)
