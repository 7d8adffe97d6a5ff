import paddle
from paddle.io import DataLoader, DistributedBatchSampler

paddle.distributed.init_parallel_env()
batches = DistributedBatchSampler(dataset, batch_size=16, shuffle=True)
loader = DataLoader(dataset, batch_sampler=batches)
for epoch in range(20):
    for images, labels in loader:
        loss = model(images, labels)
        loss.backward()
