import os

import paddle.fluid as fluid

t = fluid.DistributeTranspiler()
trainer_id = int(os.environ["PADDLE_TRAINER_ID"])
for batch_id, data in enumerate(train_data()):
    if trainer_id != 3 and batch_id > 100:
        break
