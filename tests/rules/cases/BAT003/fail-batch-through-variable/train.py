import torch, deepspeed
from transformers import Trainer, HfArgumentParser, TrainingArguments
