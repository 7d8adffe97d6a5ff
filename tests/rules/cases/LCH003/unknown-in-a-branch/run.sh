#!/bin/bash
if [ "$SITE" = a ]; then
  export http_proxy=http://proxy.site:3128
fi
ray start --head --port=6379
