export PADDLE_MASTER="xxx.xxx.xxx.xxx:port"
export PADDLE_NNODES=2
python -m paddle.distributed.launch --nnodes 2 --master $PADDLE_MASTER train.py
