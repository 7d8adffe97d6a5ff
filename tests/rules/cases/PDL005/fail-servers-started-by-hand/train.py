import paddle.distributed.fleet as fleet

fleet.init()
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
else:
    fleet.init_worker()
