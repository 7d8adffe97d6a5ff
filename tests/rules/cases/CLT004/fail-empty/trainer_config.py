from paddle.trainer_config_helpers import *

define_py_data_sources2(train_list="train.list", test_list=None, module="provider", obj="process")
