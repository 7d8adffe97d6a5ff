"""What a training script does in a way that rules about loops, ranks and saved state ask for."""

from preflight.job.quantity import Quantity

LOOP = (
    Quantity("entry_point", bool, "the script does something when it is run, beside defining things for others"),
    Quantity("variable_read", str, "name of a scheduler's or launcher's variable that the script reads"),
    Quantity("rank_local_exit", str, "break or continue, in a loop with collectives, on what one rank knows"),
    Quantity("step_failure_swallowed", str, "handler that goes on with the loop after a step failed on one rank"),
    Quantity("guarded_collective", str, "collective that only some ranks come to"),
    Quantity("group_left_on_failure", str, "call that waits for other ranks, made when this one has failed"),
    Quantity("device_of_masked_list", tuple, "GPU index taken from the list that CUDA_VISIBLE_DEVICES was set to"),
    Quantity("spawned_processes", int, "processes that the script makes of each one it is started as", "processes"),
    Quantity("device_index", int, "GPU chosen by a number above 0 that is written out"),
    Quantity("device_of_global_rank", str, "GPU chosen by the global rank"),
    Quantity("uneven_shards", str, "how samples are divided unevenly among ranks: clamp, rest, stride"),
    Quantity("checkpoint_written", str, "who writes a checkpoint: every rank, rank 0, the first rank of every node"),
    Quantity("local_checkpoint_read", str, "file on a node's own disk that rank 0 writes and every rank reads"),
    Quantity("checkpoint_guard", str, "condition under which a checkpoint is written; `because` of the former"),
)
