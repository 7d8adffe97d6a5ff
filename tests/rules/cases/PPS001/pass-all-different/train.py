import paddle
