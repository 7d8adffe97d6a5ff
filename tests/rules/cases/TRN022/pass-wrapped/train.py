import argparse
import paddle
import paddle.distributed.fleet as fleet
from paddle.io import DataLoader, DistributedBatchSampler
from paddle.vision.models import resnet50
from data import Images

def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--batch_size", type=int, default=64)
    p.add_argument("--epochs", type=int, default=90)
    return p.parse_args()

def train(args):
    fleet.init(is_collective=True)
    model = resnet50()
    opt = paddle.optimizer.Momentum(0.1, parameters=model.parameters())
    model = fleet.distributed_model(model)
    opt = fleet.distributed_optimizer(opt)
    data = Images("train")
    sampler = DistributedBatchSampler(data, batch_size=args.batch_size, shuffle=True, drop_last=True)
    loader = DataLoader(data, batch_sampler=sampler, num_workers=4)
    for epoch in range(args.epochs):
        for x, y in loader:
            loss = paddle.nn.functional.cross_entropy(model(x), y)
            loss.backward(); opt.step(); opt.clear_grad()
        if paddle.distributed.get_rank() == 0:
            paddle.save(model.state_dict(), f"out/{epoch}.pdparams")

if __name__ == "__main__":
    train(parse())
