python tools/train.py config.py --launcher none
