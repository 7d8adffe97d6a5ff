import argparse
import subprocess

parser = argparse.ArgumentParser()
parser.add_argument("--ranks", type=int, default=4)
args = parser.parse_args()
subprocess.run("python3 -m torch.distributed.launch --nproc_per_node 4 one_case.py case out", shell=True)
