"""Launchers: one module each, and modules for the wrappers and arguments around them. The claims of each launcher
follow. Unless noted, the scope is the launch, the relation SETS and the strength FLAG. D is a default
(Strength.DEFAULT, located at the launcher's word, omitted if `$ARGS` may hide the option), E a variable
(Strength.ENVIRONMENT), S is Strength.SCHEDULER, R is Relation.REQUIRES.

`#SBATCH` (whole job)
    source `slurm`, all S: nodes, min_nodes (`2-4`), tasks, tasks_per_node, gpus_per_node (--gpus-per-node,
    --gres=gpu, or --gpus / nodes), gpus_per_task, cpus_per_task, memory_per_node_mib, time_limit_s,
    partition, hosts, working_directory, gpu_type, gpu_bind, memory_per_cpu_mib, memory_per_gpu_mib, exclusive,
    requeue, job_array, output_file, hand_off_signal; tasks and tasks_per_node are also derived from each other and
    nodes (with `because`)
srun
    the same as `#SBATCH` in launch scope, so it wins there; nodes also from an `-n` below the number of nodes;
    tasks_per_node 1 as D without any --ntasks; `srun -N1 -w host` (one step per node) states only
    tasks_per_node 1
every srun of a batch script, training or not
    source `srun`, in the scope of a launch on that line, S: step, step_nodes, step_tasks, step_tasks_per_node,
    step_cpus_per_task, step_background, step_repeated, step_pipe, step_pipe_hides_failure,
    step_kills_on_failure, step_module; the script's own plain_wait, failure_watch, trapped_signal
a line without srun in a batch script
    source `slurm`, S: nodes 1 and tasks_per_node 1, spelled `torchrun (without srun: runs on the first node only)`; not
    for deepspeed, not after mpirun, ssh or an unknown prefix, not where the script also starts something with srun,
    ssh, pdsh or mpirun
torchrun, torch.distributed.run, torch.distributed.launch
    nodes R (D 1), min_nodes, processes_per_node (D 1; `gpu`, `auto` unresolved), node_rank (no default),
    max_restarts, standalone, rendezvous_backend (D static), rendezvous_id, rendezvous_endpoint, master_addr
    and master_port (of the endpoint; D 127.0.0.1 and 29500 for static with more than one node; D localhost
    and 29400 for c10d without endpoint), tasks_per_node R 1 under srun or mpirun; PET_* variables as E.
    torchrun does not read MASTER_ADDR and MASTER_PORT, so they claim only env.MASTER_ADDR and env.MASTER_PORT.
    Launch.launcher is `torchrun`, or `torch.distributed.launch` where --local-rank is passed
deepspeed
    nodes (--num_nodes: S, and AT_LEAST), processes_per_node (--num_gpus), hosts, nodes and processes_per_node
    of --include, master_addr, master_port (D 29500), node_rank; hostfile and configuration as references,
    whose claims arrive in the launch's scope
accelerate launch
    world_size (--num_processes), nodes R (--num_machines; D 1 without --config_file), node_rank, max_restarts,
    master_addr, master_port (0 unresolved), rendezvous_backend (D static; the file's is never read), tasks_per_node R 1
    under srun or mpirun, mixed_precision, distributed_type, fsdp_*, parallel sizes, env.CUDA_VISIBLE_DEVICES
    (--gpu_ids), zero_stage and gradient_accumulation_steps as source `deepspeed`; its configuration, the DeepSpeed file
    and the hostfile as references. Launch.launcher is `deepspeed` where DeepSpeed's own launcher starts the ranks
    of the other machines
llamafactory-cli train
    all E, from variables: nodes R (NNODES; D 1), min_nodes, processes_per_node (NPROC_PER_NODE), node_rank (NODE_RANK,
    else RANK), master_addr, master_port, rendezvous_id, rendezvous_backend (D), max_restarts, tasks_per_node R 1 under
    srun; none of these unless a variable requests torchrun
axolotl train, trl, tune run, swift
    the claims of accelerate launch or torchrun, whose command line they build
paddle (paddle.distributed.launch, fleetrun)
    a variable overrides its option (E). Collective: nodes R (--nnodes, or the number of --ips; D 1), hosts,
    processes_per_node (--nproc_per_node, else the number of --gpus or --devices), node_rank,
    rendezvous_endpoint, rendezvous_backend (etcd, http), master_addr, master_port, rendezvous_id (--job_id),
    max_restarts, tasks_per_node R 1 under srun. Parameter server: ps_mode, ps_servers, ps_workers (R where a
    list is also given), ps_server_endpoints, ps_worker_endpoints, hosts, nodes R
python under srun, mpirun or horovodrun, or with ranks in the environment
    Launch.launcher is `srun`, `mpirun`, `horovodrun` or `python`. All E: master_addr, master_port, world_size
    R, rank, local_rank, node_rank. Paddle without a launcher: ps_mode, ps_role, ps_index, ps_server_endpoints,
    ps_servers, ps_worker_endpoints, ps_workers, ps_current_endpoint; or rank, world_size R,
    rendezvous_endpoint, master_addr, master_port
a launcher that is known only at run time (`$LAUNCHER train.py`)
    Launch.launcher is `unknown`; no sizes, and a note that is required
arguments of a program that reads its rank, sizes or endpoint from its own options, `sys.argv` or variables
    source `arguments`: rank, node_rank, world_size R, master_addr, master_port, ps_index, ps_role, ps_workers R,
    given_batch_size, depending on how the program uses each (preflight.sources.python.program_inputs)
mpirun, horovodrun
    S: tasks, tasks_per_node, hosts, nodes; working_directory; the hostfile as reference
arguments of the program
    source `arguments`: tensor_, pipeline_, context_ and expert_parallel_size, micro_batch_size_per_gpu,
    train_batch_size, gradient_accumulation_steps, process_group_timeout_s, data_path, backend,
    dataloader_workers, zero_stage, local_rank; the DeepSpeed configuration as reference; of Hugging Face's trainer:
    learning_rate, weight_decay, warmup_steps, gradient_clipping, mixed_precision (--fp16, --bf16),
    gradient_checkpointing, save_ and eval_strategy and _steps, load_best_model, model_name; a file of training
    arguments as reference
configuration of a framework
    named by the line: its claims in the scope of the launch, with the framework as source (`torchtitan`, `nanotron`,
    `megatron-bridge`, ...); and the settings that the line overrides, with the same source
every launch
    script, interpreter, working_directory, container (`apptainer IMAGE`, `docker IMAGE`, `pyxis IMAGE`),
    prelude, and env.NAME (E) for every variable it sees; secrets are Unresolved("redacted")
docker run, podman run, apptainer exec
    source `container`, in the scope of the launch inside, else of the line: container_run, container_command,
    option_behind_image, container_gpus, gpus_per_node (`--gpus 4`; S), shm_mib, container_network, container_memlock,
    pod_capability, host_path
a program that is a whole command line in quotes
    quoted_command, with what starts it as source: `srun`, `ray`, `container` (a new one), `docker` (exec)
derived (preflight.model.job.derive)
    processes_per_node of accelerate = world_size // nodes;
    world_size = nodes x processes_per_node (tasks for plain python), processes_per_node of plain python =
    tasks_per_node, data_parallel_size; with `because`
"""
