import os

import paddle
import paddle.distributed.fleet as fleet
import paddle.fluid as fluid

def a():
    opt.minimize(loss)


def b():
    return main.clone(for_test=True)
