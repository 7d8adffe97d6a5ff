"""Parameter servers."""

from preflight.model.job.quantity import Quantity

SERVERS = (
    Quantity("ps_mode", bool, "the launch starts parameter servers and trainers, not a collective job"),
    Quantity("ps_servers", int, "total number of parameter servers", "servers"),
    Quantity("ps_workers", int, "total number of trainers", "trainers"),
    Quantity("ps_server_endpoints", tuple, "host:port of every parameter server, in index order"),
    Quantity("ps_worker_endpoints", tuple, "host:port of every trainer, in index order"),
    Quantity("ps_role", str, "role of the process: PSERVER, TRAINER ..."),
    Quantity("ps_index", int, "index of the process among those of its role"),
    Quantity("ps_current_endpoint", str, "the process's own host:port"),
    Quantity("gloo_http_port", int, "port of the Gloo rendezvous of servers and trainers, given to Paddle's launcher"),
    Quantity("waits_for_servers", bool, "the program waits before training until the servers' ports answer"),
)
