"""How ranks find each other."""

from preflight.job.quantity import Quantity

MEETING = (
    Quantity("rendezvous_backend", str, "torchrun back end: static, c10d, etcd ..."),
    Quantity("rendezvous_endpoint", str, "host[:port] given to --rdzv_endpoint"),
    Quantity("unused_master_addr", str, "master address given to a launcher that meets by something else"),
    Quantity("unused_master_port", int, "master port given to a launcher that meets by something else"),
    Quantity("rendezvous_conf", str, "further settings of the back end given to --rdzv_conf"),
    Quantity("local_addr", str, "address under which a node makes itself known, given to --local_addr"),
    Quantity("rendezvous_id", str, "job id given to --rdzv_id"),
    Quantity("standalone", bool, "torchrun --standalone: a single-node rendezvous of its own"),
    Quantity("master_addr", str, "host name or address of rank 0's store"),
    Quantity("master_port", int, "TCP port of rank 0's store"),
    Quantity("backend", str, "process-group back end: nccl, gloo, mpi ..."),
    Quantity("host_name_transport", str, "transport that listens at the address of the node's own host name: gloo ..."),
    Quantity("process_group_timeout_s", int, "time-out of collectives", "s"),
    Quantity("max_restarts", int, "times the launcher restarts a failed group"),
)
