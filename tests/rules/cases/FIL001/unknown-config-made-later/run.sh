#!/bin/bash
deepspeed train.py --deepspeed_config made_later.json
