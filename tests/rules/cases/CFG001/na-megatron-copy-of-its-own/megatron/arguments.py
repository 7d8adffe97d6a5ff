def add(parser):
    parser.add_argument('--num-layers', type=int)
    parser.add_argument('--lr-warmup-iters', type=float)
    parser.add_argument('--checkpoint-activations', action='store_true')
