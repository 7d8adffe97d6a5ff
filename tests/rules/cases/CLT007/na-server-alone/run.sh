#!/bin/bash
paddle pserver --port=7164 --num_gradient_servers=2
