import json
import os

config = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}
os.environ["TF_CONFIG"] = json.dumps(config)
