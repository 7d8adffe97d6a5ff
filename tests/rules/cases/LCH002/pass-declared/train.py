import argparse

parser = argparse.ArgumentParser()
parser.add_argument('--num_gpus', type=int)
args = parser.parse_args()
