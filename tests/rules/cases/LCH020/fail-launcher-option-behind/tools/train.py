import argparse

import paddle

parser = argparse.ArgumentParser()
parser.add_argument("-c", "--config")
args = parser.parse_args()
paddle.distributed.init_parallel_env()
