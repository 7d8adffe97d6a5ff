#!/bin/bash
paddle pserver --port=$PORT --ports_num=2 --num_gradient_servers=2
