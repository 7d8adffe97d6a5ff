import argparse
parser = argparse.ArgumentParser()
parser.add_argument('--local_rank', type=int)
options = parser.parse_args()
