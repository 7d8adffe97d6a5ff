import argparse
import os

p = argparse.ArgumentParser()
p.add_argument("--lr", type=float)
p.add_argument("--local_rank", "--local-rank", type=int)
args = p.parse_args()
rank = int(os.environ["LOCAL_RANK"])
