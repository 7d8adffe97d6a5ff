import os

os.environ["TF_CONFIG"] = "{'cluster': {'worker': ['a:1']}}"
strategy = MultiWorkerMirroredStrategy()
