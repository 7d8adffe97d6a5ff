"""What a training script does in loops, on single ranks and with saved state, as the rules need it."""

from preflight.model.job.quantity import Quantity

LOOP = (
    Quantity("entry_point", bool, "the script does something when it is run, and does not only define names"),
    Quantity("variable_read", str, "name of a scheduler's or launcher's variable that the script reads"),
    Quantity("rank_local_exit", str, "break or continue in a loop with collectives, depending on data of one rank"),
    Quantity("step_failure_swallowed", str, "handler that continues the loop after a step failed on one rank"),
    Quantity("collective_unmatched", bool, "nothing else in the script may be the counterpart of such a collective"),
    Quantity("guarded_collective", str, "collective that only some ranks reach"),
    Quantity("guarded_gather", str, "call that gathers a divided model or its state, and that only some ranks reach"),
    Quantity("group_left_on_failure", str, "call that waits for other ranks, made after this rank has failed"),
    Quantity("device_of_masked_list", tuple, "GPU index taken from the list that CUDA_VISIBLE_DEVICES was set to"),
    Quantity("spawned_processes", int, "processes that the script starts from each of its own processes", "processes"),
    Quantity(
        "spawned_by_option", str, "attribute of the parsed arguments that the number of such processes is read from"
    ),
    Quantity("device_index", int, "GPU chosen by a literal number above 0"),
    Quantity("device_of_global_rank", str, "GPU chosen by the global rank"),
    Quantity("uneven_shards", str, "how samples are divided unevenly among ranks: clamp, rest, stride, stream"),
    Quantity("checkpoint_written", str, "who writes a checkpoint: every rank, rank 0, the first rank of every node"),
    Quantity("local_checkpoint_read", str, "file on a node's own disk that rank 0 writes and every rank reads"),
    Quantity(
        "checkpoint_guard",
        str,
        "condition under which a checkpoint is written; the claim about the writers names it",
    ),
)
