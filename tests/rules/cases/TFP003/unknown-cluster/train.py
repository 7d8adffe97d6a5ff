import json
import os

import tensorflow as tf

os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster_of(sys.argv), "task": {"type": "chief", "index": 0}})
strategy = tf.distribute.ParameterServerStrategy(resolver)
