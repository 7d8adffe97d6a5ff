import paddle

if args.n > 1:
    model = paddle.DataParallel(net)
