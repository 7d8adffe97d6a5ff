#!/bin/bash
paddle pserver --port=7164 --num_gradient_servers=2 --ports_num=1 &
paddle train --port=7164 --num_gradient_servers=2 --ports_num=2 --pservers=10.0.0.1 --trainer_id=0 --local=0 --config=c.py
