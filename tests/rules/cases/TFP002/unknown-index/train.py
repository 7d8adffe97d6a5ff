import json
import os
import sys

config = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": int(sys.argv[1])}}
os.environ["TF_CONFIG"] = json.dumps(config)
