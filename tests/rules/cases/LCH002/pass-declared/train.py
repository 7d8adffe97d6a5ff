import argparse

parser = argparse.ArgumentParser()
parser.add_argument('--num_gpus', type=int)
parser.add_argument('--local_rank', type=int)
args = parser.parse_args()
