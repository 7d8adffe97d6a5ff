import argparse
import os

p = argparse.ArgumentParser()
p.add_argument("--lr", type=float)
args = p.parse_args()
rank = int(os.environ["LOCAL_RANK"])
