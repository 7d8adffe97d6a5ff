"""What training scripts say through one framework: wrappers, splits of the data, Horovod, TensorFlow."""

from preflight.job.quantity import Quantity

FRAMEWORKS = (
    Quantity("ddp_device_count", int, "devices named in the device_ids of a DistributedDataParallel", "devices"),
    Quantity("sync_batchnorm_late", str, "model whose BatchNorm is converted after it was wrapped"),
    Quantity("device_not_chosen", str, "call that moves to the GPU in a script that never chooses one for its rank"),
    Quantity("data_unsplit", str, "data that every rank reads whole: stream, loader, webdataset"),
    Quantity("dataloader_prefetch_factor", int, "DataLoader prefetch_factor", "batches"),
    Quantity("dataloader_persistent_workers", bool, "DataLoader persistent_workers"),
    Quantity("folder_made", str, "call by which every rank makes a folder that must not be there yet"),
    Quantity("horovod_started", bool, "calls Horovod's init"),
    Quantity("horovod_optimizer", str, "Horovod's wrapper of the optimizer or gradient tape"),
    Quantity("horovod_broadcasts", str, "how a Horovod script gives all ranks the same first weights"),
    Quantity("tf_config", str, "TF_CONFIG as JSON, null for what only run time knows"),
    Quantity("tf_strategy", str, "TensorFlow's distribution strategy"),
)
