"""Endpoints and settings with which ranks find each other."""

from preflight.model.job.quantity import Quantity

MEETING = (
    Quantity("rendezvous_backend", str, "torchrun backend: static, c10d, etcd ..."),
    Quantity("rendezvous_endpoint", str, "host[:port] given to --rdzv_endpoint"),
    Quantity("unused_master_addr", str, "master address given to a launcher whose rendezvous does not use it"),
    Quantity("unused_master_port", int, "master port given to a launcher whose rendezvous does not use it"),
    Quantity("rendezvous_conf", str, "further settings of the backend given to --rdzv_conf"),
    Quantity("local_addr", str, "address that a node announces to the others, given to --local_addr"),
    Quantity("rendezvous_id", str, "job id given to --rdzv_id"),
    Quantity("standalone", bool, "torchrun --standalone: a separate single-node rendezvous"),
    Quantity("master_addr", str, "host name or address of rank 0's store"),
    Quantity("master_port", int, "TCP port of rank 0's store"),
    Quantity("backend", str, "process-group backend: nccl, gloo, mpi ..."),
    Quantity("host_name_transport", str, "transport that listens at the address of the node's own host name: gloo ..."),
    Quantity("process_group_timeout_s", int, "timeout of collectives", "s"),
    Quantity("max_restarts", int, "times the launcher restarts a failed group"),
)
