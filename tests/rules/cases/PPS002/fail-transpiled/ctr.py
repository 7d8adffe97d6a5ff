import paddle.fluid as fluid

t = fluid.DistributeTranspiler()
t.transpile(2, pservers="172.20.0.1:7164", trainers=2)
