import json
import os

import tensorflow as tf

config = {"cluster": {"chief": ["c:1"], "worker": ["a:1", "b:1"]}, "task": {"type": "chief", "index": 0}}
os.environ["TF_CONFIG"] = json.dumps(config)
strategy = tf.distribute.experimental.ParameterServerStrategy(resolver)
