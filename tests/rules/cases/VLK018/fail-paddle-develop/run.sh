pip install paddlepaddle-gpu==0.0.0.post112 -f https://www.paddlepaddle.org.cn/whl/linux/gpu/develop.html
python -m paddle.distributed.launch --master 10.0.0.1:8090 --nnodes 2 --devices 0,1,2,3 train.py
