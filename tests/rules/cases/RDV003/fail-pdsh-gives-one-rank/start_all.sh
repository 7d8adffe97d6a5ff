#!/bin/bash
pdsh -w node[0-2] 'cd /job && bash run.sh 0'
