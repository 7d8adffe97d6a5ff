import paddle.distributed.fleet as fleet

fleet.init()
