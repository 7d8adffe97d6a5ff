#!/bin/bash
horovodrun -np 4 --min-np 8 --host-discovery-script ./d.sh python train.py
