import os

import paddle
import paddle.distributed.fleet as fleet
import paddle.fluid as fluid

fleet.init()
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
else:
    fleet.init_worker()
    fleet.stop_worker()
