import paddle
paddle.enable_static()
ids = paddle.static.data("ids", [None, 26], dtype="int64")
y = paddle.static.data("y", [None, 1], dtype="float32")
emb = paddle.static.nn.sparse_embedding(ids, size=[1000000, 16])
out = paddle.static.nn.fc(paddle.flatten(emb, 1), 1)
loss = paddle.mean(paddle.nn.functional.binary_cross_entropy_with_logits(out, y))
paddle.optimizer.SGD(0.01).minimize(loss)
exe = paddle.static.Executor(paddle.CPUPlace())
exe.run(paddle.static.default_startup_program())
from reader import batches
for a, b in batches():
    exe.run(feed={"ids": a, "y": b}, fetch_list=[loss])
