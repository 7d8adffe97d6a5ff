import json
import os

os.environ["TF_CONFIG"] = json.dumps(
    {
        "cluster": {
            "chief": ["host0:2222"],
            "worker": ["host1:2222"],
            "ps": ["host2:2222"],
            "evaluator": ["host3:2222"],
        },
        "task": {"type": "worker", "index": 0},
    }
)
