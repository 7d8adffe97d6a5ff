import argparse
import json

import deepspeed

parser = argparse.ArgumentParser()
parser.add_argument("--deepspeed")
parser.add_argument("--per_device_train_batch_size", type=int)
args = parser.parse_args()
deepspeed.initialize(model=model, config=json.load(open(args.deepspeed)))
