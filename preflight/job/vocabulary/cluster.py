"""What a Kubernetes manifest or a container command line asks for.

The claims about one object stand in the scope of that object (`Scope.launch` is its `path:line`) and, where they
speak of one group of equal pods, of that role.
"""

from preflight.job.quantity import Quantity

CLUSTER = (
    Quantity("workload", str, "Kubernetes object that starts pods, as `group/Kind`"),
    Quantity("workload_name", str, "name of a Kubernetes object that starts pods"),
    Quantity("workload_launch", str, "id of a launch line that the object's pods run"),
    Quantity("namespace", str, "Kubernetes namespace"),
    Quantity("pod_replicas", int, "equal pods of a role", "pods"),
    Quantity("pod_trains", bool, "whether the pods of a role hold training ranks"),
    Quantity("pod_gpus", int, "GPUs of each pod, as its limits say", "GPUs"),
    Quantity("pod_gpu_requests", int, "GPUs of each pod, as its requests say", "GPUs"),
    Quantity("pod_cpus", float, "CPU cores that a pod may use (limits)", "cores"),
    Quantity("pod_memory_mib", int, "memory that a pod may use (limits)", "MiB"),
    Quantity("pod_cpu_requests", float, "CPU cores that a node must have left for a pod", "cores"),
    Quantity("pod_memory_requests_mib", int, "memory that a node must have left for a pod", "MiB"),
    Quantity("shm_mib", int, "size of /dev/shm; without a claim the runtime's 64 MiB", "MiB"),
    Quantity("pod_image", str, "container image of a role"),
    Quantity("pod_scheduler", str, "scheduler that places the pods"),
    Quantity("gang", str, "what makes the pods start all together or not at all"),
    Quantity("gang_min", int, "pods that must be placeable before any of them is started", "pods"),
    Quantity("host_network", bool, "the pods use the network of their node"),
    Quantity("host_port", int, "port of the node that a pod takes"),
    Quantity("restart_policy", str, "when a pod that ended is started again"),
    Quantity("backoff_limit", int, "failures after which the job is given up"),
    Quantity("mesh_injection", str, "annotation or label that says whether a mesh proxy joins the pod"),
    Quantity("node_label", str, "label, as `key=value`, of the nodes the pods may go to"),
    Quantity("quota_gpus", int, "GPUs that all pods of a namespace or queue may hold together", "GPUs"),
    Quantity("denies_ingress", bool, "a network policy that lets nobody connect to the pods it selects"),
    Quantity("pod_rdma", str, "RDMA device resource of a pod, as `name=count`"),
    Quantity("pod_capability", str, "Linux capability added to a container; `privileged` for all"),
    Quantity("host_path", str, "directory of the node mounted into a pod"),
    Quantity("shared_volume", str, "persistent volume claim that the pods of a role write to"),
    Quantity("volume_access", tuple, "access modes of a persistent volume claim"),
    Quantity("launcher_trains", bool, "the launcher of an MPIJob runs ranks itself"),
    Quantity("slots_per_worker", int, "slots of each MPI worker", "slots"),
    Quantity("mpi_mapping", str, "how mpirun lays ranks over hosts, where it is told (`--map-by node`)"),
    Quantity("pods_started_first", int, "pods that are created before the others wait for them", "pods"),
    Quantity("unexpanded_variable", str, "`$NAME` in a place where no shell will replace it"),
    Quantity("completion_mode", str, "whether the pods of a Job get an index: Indexed, NonIndexed"),
    Quantity("image_base", str, "image that a Dockerfile's last stage is built on"),
    Quantity("container_run", str, "image of a container started on a command line or by Compose"),
    Quantity("container_gpus", str, "option that gives a container its GPUs, as written"),
    Quantity("container_command", str, "what a container on a command line is to run"),
    Quantity("container_network", str, "network of a container: host, bridge ..."),
    Quantity("container_memlock", str, "limit of locked memory of a container"),
)
