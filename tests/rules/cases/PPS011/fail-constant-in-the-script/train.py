import paddle.fluid as fluid

t = fluid.DistributeTranspiler()
t.transpile(0, pservers="a:1", trainers=2)
