import paddle.fluid as fluid

opt.minimize(loss)
if args.test:
    test = main.clone(for_test=True)
