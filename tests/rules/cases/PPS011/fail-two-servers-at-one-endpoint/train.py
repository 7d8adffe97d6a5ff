import paddle.distributed.fleet as fleet

fleet.init()
fleet.run_server()
