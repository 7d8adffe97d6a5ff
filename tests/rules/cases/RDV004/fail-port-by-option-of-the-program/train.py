import click
import torch.distributed as dist


@click.command()
@click.option("-r", "--rank", type=int)
@click.option("-w", "--world-size", type=int)
@click.option("-p", "--port", type=int)
def main(rank, world_size, port):
    dist.init_process_group("gloo", init_method=f"tcp://10.0.0.4:{port}", rank=rank, world_size=world_size)


main()
