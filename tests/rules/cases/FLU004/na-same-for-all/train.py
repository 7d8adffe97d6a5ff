import os

import paddle.fluid as fluid

t = fluid.DistributeTranspiler()
t.transpile(trainer_id, pservers=eps, trainers=4)
for batch_id, data in enumerate(train_data()):
    if batch_id > 100:
        break
    if trainer_id == 0:
        print(batch_id)
