import os

import paddle.fluid as fluid

emb = fluid.layers.embedding(x, size=[1000000, 8], is_sparse=True, is_distributed=True)
opt = fluid.optimizer.Adam(learning_rate=0.1)
opt.minimize(loss)
t = fluid.DistributeTranspiler()
t.transpile(0, pservers=os.getenv("EPS"), trainers=2)
