import os

import paddle.fluid as fluid

emb = fluid.layers.embedding(x, size=[1000000, 8], is_sparse=True, is_distributed=True)
