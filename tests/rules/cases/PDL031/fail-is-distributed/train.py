import paddle.fluid as fluid
import paddle
ids = fluid.layers.data("ids", shape=[1], dtype="int64", lod_level=1)
label = fluid.layers.data("label", shape=[1], dtype="int64")
emb = fluid.layers.embedding(ids, size=[1000000, 16], is_sparse=True, is_distributed=True)
pred = fluid.layers.fc(fluid.layers.sequence_pool(emb, "sum"), 2, act="softmax")
loss = fluid.layers.mean(fluid.layers.cross_entropy(pred, label))
fluid.optimizer.SGD(0.01).minimize(loss)
place = fluid.CPUPlace()
exe = fluid.Executor(place)
exe.run(fluid.default_startup_program())
feeder = fluid.DataFeeder([ids, label], place)
for data in paddle.batch(paddle.dataset.imdb.train(None), 64)():
    exe.run(feed=feeder.feed(data), fetch_list=[loss])
