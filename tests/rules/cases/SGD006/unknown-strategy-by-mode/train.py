import paddle
import paddle.distributed.fleet as fleet


def get_strategy(sync_mode):
    if sync_mode == "sync":
        strategy = fleet.DistributedStrategy()
        strategy.a_sync = False
    elif sync_mode == "async":
        strategy = fleet.DistributedStrategy()
        strategy.a_sync = True
    elif sync_mode == "geo":
        strategy = fleet.DistributedStrategy()
        strategy.a_sync = True
        strategy.a_sync_configs = {"k_steps": 200}
    return strategy


fleet.init()
strategy = get_strategy("async")
