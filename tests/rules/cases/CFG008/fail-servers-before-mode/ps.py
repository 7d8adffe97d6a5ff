import paddle.distributed.fleet as fleet

fleet.init(fleet.PaddleCloudRoleMaker(is_collective=False))
fleet.init_server()
fleet.run_server()
