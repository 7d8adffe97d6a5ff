import paddle
import paddle.distributed as dist


def train(loader):
    dist.init_parallel_env()


if __name__ == "__main__":
    loader = paddle.io.DataLoader(paddle.vision.datasets.MNIST())
    dist.spawn(train, args=(loader,))
