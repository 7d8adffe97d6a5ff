import os
import torch.multiprocessing as mp

if "LOCAL_RANK" in os.environ:
    main(int(os.environ["LOCAL_RANK"]))
else:
    mp.spawn(main, nprocs=4)
