from mmengine.config import Config
from mmengine.runner import Runner

Runner.from_cfg(Config.fromfile("config.py")).train()
