torchrun --nproc_per_node=4 train.py --data coco.yaml --weights yolov5s.pt --batch-size 6
