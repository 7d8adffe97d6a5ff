"""Programs of the rows on program contracts: one of a framework with some of its parts replaced.

A row writes `@part` and then the text of the part; every other part is as below, between `@part` and `@`.
"""

from __future__ import annotations

import textwrap

Files = dict[str, str]

_DDP = """import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, random_split
from dataset import make_dataset
@pre
@

def main():
    local_rank = int(os.environ['LOCAL_RANK'])
    rank = int(os.environ['RANK'])
    @set_device
    torch.cuda.set_device(local_rank)
    @
    @init
    dist.init_process_group('nccl')
    @
    ds = make_dataset()
    @model
    model = torch.nn.Linear(8, 8).cuda(local_rank)
    @
    @wrap
    ddp = DDP(model, device_ids=[local_rank])
    @
    @opt
    opt = torch.optim.SGD(ddp.parameters(), lr=0.1)
    @
    @loader
    sampler = DistributedSampler(ds)
    loader = DataLoader(ds, batch_size=32, sampler=sampler)
    @
    @after
    @
    @loop
    for epoch in range(10):
        sampler.set_epoch(epoch)
        for x, y in loader:
            x, y = x.to(local_rank), y.to(local_rank)
            loss = torch.nn.functional.mse_loss(ddp(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            torch.save(ddp.module.state_dict(), f"ckpt-{epoch}.pt")
        dist.barrier()
    @
    @end
    @
    dist.destroy_process_group()

if __name__ == '__main__':
    main()
"""
_DEEPSPEED = """import argparse
import torch
import deepspeed
from dataset import make_dataset
from model import make_model

def main():
    p = argparse.ArgumentParser()
    p.add_argument('--local_rank', type=int, default=-1)
    p = deepspeed.add_config_arguments(p)
    args = p.parse_args()
    deepspeed.init_distributed()
    rank = torch.distributed.get_rank()
    data = make_dataset()
    model = make_model()
    @before
    @
    @init
    engine, opt, loader, sched = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters(), \
training_data=data)
    @
    for x, y in loader:
        loss = engine(x, y)
        @step
        engine.backward(loss)
        engine.step()
        @
    @end
    @

if __name__ == '__main__':
    main()
"""
_HOROVOD = """import torch
import horovod.torch as hvd
from dataset import make_dataset

@pin
hvd.init()
torch.cuda.set_device(hvd.local_rank())
@
ds = make_dataset()
@sampler
sampler = torch.utils.data.DistributedSampler(ds, num_replicas=hvd.size(), rank=hvd.rank())
@
loader = torch.utils.data.DataLoader(ds, batch_size=32, sampler=sampler)
@model
model = torch.nn.Linear(8, 8).cuda()
@
opt = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1 * hvd.size()), named_parameters=\
model.named_parameters())
@broadcast
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(opt, root_rank=0)
@
@resume
@
for epoch in range(10):
    sampler.set_epoch(epoch)
    for x, y in loader:
        opt.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x.cuda()), y.cuda())
        loss.backward()
        opt.step()
"""
_KERAS = """import tensorflow as tf
import horovod.tensorflow.keras as hvd
from dataset import ds

hvd.init()
gpus = tf.config.experimental.list_physical_devices('GPU')
tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], 'GPU')
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
opt = hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.001 * hvd.size()))
model.compile(loss='mse', optimizer=opt)
@callbacks
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
@
@fit
model.fit(ds, epochs=10, steps_per_epoch=500 // hvd.size(), callbacks=callbacks)
@
"""
_PADDLE = """import paddle
import paddle.distributed as dist
from paddle.distributed import fleet
from dataset import make_dataset

@place
@
@init
dist.init_parallel_env()
@
ds = make_dataset()
@model
model = paddle.DataParallel(paddle.nn.Linear(8, 8))
@
@opt
opt = paddle.optimizer.SGD(parameters=model.parameters())
@
sampler = paddle.io.DistributedBatchSampler(ds, batch_size=32, shuffle=True)
loader = paddle.io.DataLoader(ds, batch_sampler=sampler)
@loop
for epoch in range(10):
    for x, y in loader:
        loss = paddle.nn.functional.mse_loss(model(x), y)
        loss.backward()
        opt.step()
        opt.clear_grad()
@
"""
_TWO_NODES = (
    "torchrun --nnodes=2 --nproc_per_node=8 --rdzv_backend=c10d --rdzv_endpoint=node0:29500 --rdzv_id=7 train.py"
)
_DEEPSPEED_RUN = "deepspeed --hostfile hosts --num_nodes 2 --num_gpus 8 train.py --deepspeed --deepspeed_config ds.json"
_DEEPSPEED_JSON = """{"train_batch_size": 128, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 1,
 "zero_optimization": {"stage": %s}, "bf16": {"enabled": true}}
"""


def ddp_program(text: str, run: str) -> Files:
    """A program of torch with DDP, which torchrun starts on two nodes."""
    return _job(_DDP, text, run or _TWO_NODES)


def deepspeed_program(text: str, run: str) -> Files:
    """A program of DeepSpeed on two nodes; the part `stage` is the stage of ZeRO in its configuration."""
    stage = _parts(text).get("stage", "3")
    files = {"ds.json": _DEEPSPEED_JSON % stage, "hosts": "node0 slots=8\nnode1 slots=8\n"}
    return {**_job(_DEEPSPEED, text, run or _DEEPSPEED_RUN), **files}


def horovod_program(text: str, run: str) -> Files:
    """A program of torch with Horovod."""
    return _job(_HOROVOD, text, run or "horovodrun -np 16 -H node0:8,node1:8 python train.py")


def keras_program(text: str, run: str) -> Files:
    """A program of Keras with Horovod."""
    return _job(_KERAS, text, run or "horovodrun -np 16 -H node0:8,node1:8 python train.py")


def paddle_program(text: str, run: str) -> Files:
    """A program of Paddle, which its launcher starts on four GPUs."""
    return _job(_PADDLE, text, run or "python -m paddle.distributed.launch --devices 0,1,2,3 train.py")


def whole_program(text: str, run: str) -> Files:
    """A program that the row writes out."""
    return {"run.sh": f"#!/bin/bash\n{run}\n", "train.py": text.lstrip("\n") + "\n"}


def _job(template: str, text: str, run: str) -> Files:
    return whole_program(_filled(template, _parts(text)), run)


def _parts(text: str) -> dict[str, str]:
    """The texts after each `@part`, by its name."""
    found: dict[str, list[str]] = {}
    own: list[str] = []
    for line in text.strip("\n").split("\n"):
        if line.startswith("@"):
            own = found.setdefault(line[1:], [])
        else:
            own.append(line)
    return {name: "\n".join(lines) for name, lines in found.items()}


def _filled(template: str, parts: dict[str, str]) -> str:
    """The template with these parts in place of its own."""
    lines: list[str] = []
    replaced = False
    for line in template.split("\n"):
        name = line.strip()[1:] if line.strip().startswith("@") else None
        if name:
            replaced = name in parts
            if replaced:
                lines.append(textwrap.indent(parts[name], line[: len(line) - len(line.lstrip())]))
        elif name == "":
            replaced = False
        elif not replaced:
            lines.append(line)
    return "\n".join(lines)


FORMS = {
    form.__name__: form
    for form in (ddp_program, deepspeed_program, horovod_program, keras_program, paddle_program, whole_program)
}
