"""Numbers of nodes, tasks, processes and devices."""

from preflight.model.job.quantity import Quantity

STARTING = (
    Quantity("nodes", int, "nodes that take part in the launch", "nodes", agrees=True),
    Quantity("min_nodes", int, "lower end of an elastic range of nodes", "nodes"),
    Quantity("rejected_node_range", str, "range of nodes that its launcher rejects (`4:2`, `0:2`), as written"),
    Quantity("tasks", int, "tasks (copies of the launched command) the scheduler or MPI starts in total", "tasks"),
    Quantity(
        "single_node_step", bool, "the launch is an srun step on one named node; other nodes have their own steps"
    ),
    Quantity("tasks_per_node", int, "copies of the launched command started on each node", "tasks", agrees=True),
    Quantity("processes_per_node", int, "ranks the launcher starts on each node", "processes", agrees=True),
    Quantity("world_size", int, "total number of ranks of the job", "ranks", agrees=True),
    Quantity("gpus_per_node", int, "GPUs the job holds on each node", "GPUs", agrees=True),
    Quantity("gpus_per_task", int, "GPUs the scheduler binds to each task", "GPUs"),
    Quantity("min_tasks", int, "lower end of an elastic number of tasks", "tasks"),
    Quantity("max_tasks", int, "upper end of an elastic number of tasks", "tasks"),
    Quantity("host_discovery", str, "program that an elastic launcher runs to discover hosts"),
    Quantity(
        "mpi_implementation", str, "MPI implementation, recognised by its options: openmpi, mpich (with Intel MPI)"
    ),
    Quantity("each_node_itself", bool, "the launcher is started on each node, and does not connect to the others"),
    Quantity("runs_as_root", bool, "mpirun is allowed to run as root"),
    Quantity("starts_here", bool, "the launcher was given no host, and starts the ranks on its own machine"),
    Quantity("selected_devices", tuple, "GPUs of each node that the launcher's options select, one for each rank"),
    Quantity("rank_argument", str, "argument that the launcher gives each rank, with `{local_rank}` for its number"),
    Quantity("passed_variables", tuple, "names of the variables that mpirun passes to ranks on other hosts"),
    Quantity("controller", str, "how horovodrun coordinates: gloo, mpi, jsrun"),
    Quantity("oversubscribe", bool, "more processes than slots are allowed"),
    Quantity("chosen_value", str, "value of a launcher's option that accepts only certain words"),
    Quantity("unknown_option", str, "an option that the launcher's parser does not know, as its bare name"),
    Quantity("cpus_per_task", int, "CPU cores of each task", "cores"),
    Quantity("memory_per_node_mib", int, "memory the scheduler grants on each node", "MiB"),
    Quantity("time_limit_s", int, "wall time after which the scheduler ends the job", "s"),
    Quantity("partition", str, "scheduler partition or queue"),
    Quantity("hosts", tuple, "names of the job's nodes in rank order"),
    Quantity("produced_hostfile", str, "hostfile that the script writes before it starts the ranks"),
    Quantity("host_slots", int, "slots of one host of a hostfile (scope.node names the host)", "slots"),
    Quantity("node_rank", int, "index of the node this launch line is for"),
    Quantity("base_rank", int, "global rank of the first process that this launch line starts"),
    Quantity("rank", int, "global rank of the process"),
    Quantity("local_rank", int, "rank of the process on its node"),
    Quantity(
        "given_rank", int, "value of the program's own option --rank or --node-rank; its meaning depends on the program"
    ),
    Quantity(
        "given_world_size", int, "value of the program's own option --world-size; its meaning depends on the program"
    ),
    Quantity("given_batch_size", int, "value of the program's own option --batch-size, of a rank or of all", "samples"),
    Quantity("batch_slots", int, "processes that the header of a batch script requests on all nodes", "slots"),
    Quantity("included_slots", tuple, "host[:slot,slot] entries of deepspeed --include, as written"),
    Quantity("excluded_slots", tuple, "host[:slot,slot] entries of deepspeed --exclude, as written"),
    Quantity("launcher_option", str, "launcher that a plain python line tells its program of (`--launcher pytorch`)"),
    Quantity("plain_visible_devices", str, "CUDA_VISIBLE_DEVICES of a plain python line"),
    Quantity("blank_word", str, "word of a launch line that is only a blank: a backslash before a space"),
    Quantity("plain_program", str, "script that a plain python line starts as a single process without ranks"),
)
