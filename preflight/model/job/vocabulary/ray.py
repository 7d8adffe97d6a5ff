"""Ray clusters that a script starts by hand, and the resources a script requests from one."""

from preflight.model.job.quantity import Quantity

RAY = (
    Quantity(
        "ray_workers", int, "workers that the script starts, one for each bundle of its placement group", "processes"
    ),
    Quantity("ray_role", str, "action of a `ray` command: head, worker, submit"),
    Quantity("ray_block", bool, "`ray start` stays in the foreground"),
    Quantity("ray_num_gpus", int, "GPUs that a node offers to Ray", "GPUs"),
    Quantity("ray_port", int, "port of one component of a Ray node; the spelling names which"),
    Quantity("ray_worker_ports", tuple, "first and last port of Ray's worker processes"),
    Quantity("ray_submit_address", str, "address that `ray job submit` sends the job to"),
    Quantity("ray_bundle", str, "resources of the largest bundle of a placement group, as written"),
    Quantity("ray_scaling", str, "a ScalingConfig that a script makes, with its arguments"),
    Quantity("ray_train_uses_gpu", bool, "workers of a Ray trainer use GPUs"),
    Quantity("ray_train_worker_gpus", float, "GPUs among the resources of each worker of a Ray trainer", "GPUs"),
    Quantity("ray_wait_unbounded", str, "waits for a placement group without a timeout"),
)
