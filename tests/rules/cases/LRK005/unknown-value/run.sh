python tools/train.py config.py --launcher $1
