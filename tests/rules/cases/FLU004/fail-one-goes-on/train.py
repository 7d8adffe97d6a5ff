import os

import paddle.fluid as fluid

t = fluid.DistributeTranspiler()
t.transpile(trainer_id, pservers=eps, trainers=4, sync_mode=True)
for batch_id, data in enumerate(train_data()):
    if trainer_id != 3 and batch_id > 100:
        break
