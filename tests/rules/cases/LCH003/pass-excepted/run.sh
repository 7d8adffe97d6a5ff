#!/bin/bash
export http_proxy=http://proxy.site:3128
export no_proxy=10.0.0.0/8,.cluster
ray start --head --port=6379
