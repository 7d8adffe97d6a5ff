import hugectr

solver = hugectr.CreateSolver(batchsize_eval=1024, lr=0.001, batchsize=1000, vvgpu=[[0, 1, 2]])
reader = hugectr.DataReaderParams(source=["train.txt"], eval_source="val.txt")
model = hugectr.Model(solver, reader, hugectr.CreateOptimizer(optimizer_type=hugectr.Optimizer_t.Adam))
