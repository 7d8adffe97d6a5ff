"""What the training script does."""

from preflight.job.quantity import Quantity

SCRIPT = (
    Quantity("script", str, "the training script, relative to the root"),
    Quantity("uses_ddp", bool, "wraps a model in DistributedDataParallel"),
    Quantity("uses_fsdp", bool, "wraps a model in FullyShardedDataParallel or fully_shard"),
    Quantity("training_framework", str, "library whose trainer drives the loop (and calls set_epoch itself)"),
    Quantity("local_rank_argument", str, "spelling of the local-rank option the script declares"),
    Quantity("strict_arguments", bool, "the script's own parser stops at options that the script does not declare"),
    Quantity("dataloader", str, "variable a DataLoader is bound to; its other claims name this one in `because`"),
    Quantity("distributed_sampler", str, "variable a DistributedSampler is bound to; empty when to none"),
    Quantity("sampler_shuffle", bool, "whether that sampler shuffles"),
    Quantity("set_epoch_called", bool, "set_epoch is called somewhere in the script"),
    Quantity("dataloader_workers", int, "DataLoader num_workers", "processes"),
    Quantity("dataloader_drop_last", bool, "DataLoader drop_last"),
    Quantity("dataloader_shuffle", bool, "DataLoader shuffle=True"),
    Quantity("dataloader_sampler", str, "variable given as DataLoader sampler="),
    Quantity("dataloader_batch_size", int, "DataLoader batch_size: samples of one rank's step", "samples"),
    Quantity("declared_options", tuple, "every option that such a parser declares, in all its spellings"),
    Quantity("loop_over_epochs", bool, "the script iterates over epochs"),
    Quantity("serial_work", str, "long work done by one rank while others wait (download, preprocess, map ...)"),
    Quantity("argument_default", str, "argparse default; `scope.role` is empty, the spelling names the option"),
    Quantity("data_path", str, "file or directory the ranks read their data from"),
    Quantity("input_file", str, "file beside the data that every rank reads: vocabulary, merges, tokenizer"),
    Quantity("checkpoint_path", str, "folder that checkpoints are written to"),
    Quantity("resume_path", str, "checkpoint, or folder of checkpoints, that the training goes on from"),
    Quantity("checkpoints_kept", int, "checkpoints that are kept; older ones are removed", "checkpoints"),
    Quantity("shard_list", tuple, "file names of the data shards, where the files spell them out"),
    Quantity("required_variable", str, "name of a variable that the script reads and cannot do without"),
)
