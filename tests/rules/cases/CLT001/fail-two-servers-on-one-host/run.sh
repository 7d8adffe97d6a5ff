#!/bin/bash
paddle pserver --port=7164 --ports_num=2 --ports_num_for_sparse=2 --num_gradient_servers=2 &
paddle pserver --port=7166 --ports_num=2 --num_gradient_servers=2 &
