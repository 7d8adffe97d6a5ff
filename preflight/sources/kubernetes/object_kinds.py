"""The objects of controllers whose fields are settings, and their parts."""

from __future__ import annotations

from dataclasses import dataclass, field

#: The names of the settings of a pod template and of a container.
POD, CONTAINER = "pod_template", "pod_container"


@dataclass(frozen=True, slots=True)
class Shape:
    """How the settings of an object are named, and those of its parts by their paths.

    A path that ends in `.*` is that of a list or mapping of parts.
    """

    framework: str
    parts: dict[str, str] = field(default_factory=dict)


def _kubeflow(specs: str) -> Shape:
    return Shape("kubeflow_job", {f"spec.{specs}.*": "kubeflow_role"})


_RUNTIME = Shape("training_runtime", {"spec.template.spec.replicatedJobs.*": "runtime_job"})


def _ray(framework: str, spec: str) -> Shape:
    return Shape(
        framework, {spec: "ray_spec", f"{spec}.headGroupSpec": "ray_group", f"{spec}.workerGroupSpecs.*": "ray_group"}
    )


#: The objects by API version and kind, with the types of training-operator 1.9, trainer 2.3, mpi-operator 0.8, JobSet
#: 0.12, LWS 0.10, Volcano 1.15, KubeRay 1.7 and Kubernetes 1.34.
SHAPES = {
    ("kubeflow.org/v1", "PyTorchJob"): _kubeflow("pytorchReplicaSpecs"),
    ("kubeflow.org/v1", "TFJob"): _kubeflow("tfReplicaSpecs"),
    ("kubeflow.org/v1", "XGBoostJob"): _kubeflow("xgbReplicaSpecs"),
    ("kubeflow.org/v1", "PaddleJob"): _kubeflow("paddleReplicaSpecs"),
    ("kubeflow.org/v1", "JAXJob"): _kubeflow("jaxReplicaSpecs"),
    ("kubeflow.org/v1", "MPIJob"): _kubeflow("mpiReplicaSpecs"),
    ("kubeflow.org/v2beta1", "MPIJob"): Shape("mpijob", {"spec.mpiReplicaSpecs.*": "mpijob_role"}),
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): Shape("trainjob", {"spec.runtimePatches.*": "trainjob_patch"}),
    ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime"): _RUNTIME,
    ("trainer.kubeflow.org/v1alpha1", "ClusterTrainingRuntime"): _RUNTIME,
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): Shape(
        "jobset", {"spec.replicatedJobs.*": "jobset_job", "spec.failurePolicy.rules.*": "jobset_rule"}
    ),
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): Shape("leader_worker_set"),
    ("batch.volcano.sh/v1alpha1", "Job"): Shape(
        "volcano_job",
        {"spec.tasks.*": "volcano_task", "spec.policies.*": "volcano_policy", "spec.volumes.*": "volcano_volume"},
    ),
    ("ray.io/v1", "RayCluster"): _ray("ray_cluster", "spec"),
    ("ray.io/v1", "RayJob"): _ray("ray_job", "spec.rayClusterSpec"),
    ("ray.io/v1", "RayService"): _ray("ray_service", "spec.rayClusterConfig"),
    ("batch/v1", "Job"): Shape("batch_job", {"spec.podFailurePolicy.rules.*": "job_failure_rule"}),
    ("v1", "Pod"): Shape("bare_pod"),
}
