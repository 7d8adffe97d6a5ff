import paddle

model = paddle.DataParallel(net)
