import paddle
import paddle.distributed.fleet as fleet


class WideDeep:
    def __init__(self, config):
        self.config = config

    def net(self):
        ids = paddle.static.data("ids", [-1, 1], "int64", lod_level=1)
        label = paddle.static.data("label", [-1, 1], "int64")
        self.inputs = [ids, label]
        table = paddle.static.nn.sparse_embedding(
            ids, [self.config["sparse_features"], self.config["embedding_dim"]])
        out = paddle.static.nn.fc(table, 2, activation="softmax")
        return paddle.mean(paddle.nn.functional.cross_entropy(out, label))

    def dataset(self):
        dataset = paddle.distributed.QueueDataset()
        dataset.init(use_var=self.inputs, batch_size=self.config["batch_size"], pipe_command="cat")
        dataset.set_filelist(["part-0", "part-1", "part-2", "part-3"])
        dataset.global_shuffle(fleet)
        return dataset
