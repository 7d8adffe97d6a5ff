#!/bin/bash
paddle train --port=7164 --num_gradient_servers=2 --pservers=10.0.0.1 --trainer_id=0 --local=$LOCAL --config=c.py
