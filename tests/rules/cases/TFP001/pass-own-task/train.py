import json
import os

config = {"cluster": {"chief": ["host0:2222"], "ps": ["host2:2222"]}, "task": {"type": "evaluator", "index": 0}}
os.environ["TF_CONFIG"] = json.dumps(config)
