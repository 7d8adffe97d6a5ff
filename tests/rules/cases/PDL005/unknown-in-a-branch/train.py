import os

import paddle
import paddle.distributed.fleet as fleet
import paddle.fluid as fluid

if args.distributed:
    fleet.init()
if fleet.is_server():
    fleet.init_server()
