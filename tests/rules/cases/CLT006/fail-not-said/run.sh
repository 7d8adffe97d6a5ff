#!/bin/bash
paddle train --port=7164 --num_gradient_servers=2 --pservers=10.0.0.1,10.0.0.2 --trainer_id=0 --config=c.py
