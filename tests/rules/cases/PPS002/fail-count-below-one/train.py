import paddle.distributed.fleet as fleet
