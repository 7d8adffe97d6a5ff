#!/bin/bash
horovodrun -np 8 --min-np $MIN --host-discovery-script ./d.sh python train.py
