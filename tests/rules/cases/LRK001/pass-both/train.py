import argparse
parser = argparse.ArgumentParser()
parser.add_argument('--local_rank', '--local-rank', type=int)
options = parser.parse_args()
