import paddle
import paddle.distributed.fleet as fleet

fleet.init()
dataset = paddle.distributed.InMemoryDataset()
dataset.load_into_memory()
dataset.local_shuffle()
