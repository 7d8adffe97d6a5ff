saver = CheckpointSaver(out) if args.local_rank == 0 else None
