#!/bin/bash
bash run.sh main
bash run.sh branch
