#!/bin/bash
P=6379
ray start --head --port=$P
ssh w1 ray start --address=h1:$P
