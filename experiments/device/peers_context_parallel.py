"""Times PyTorch's context_parallel, which a user would pick instead, on as many GPUs as torchrun starts.

    torchrun --nproc_per_node P peers_context_parallel.py FOLDER [LENGTH ...] [--seconds N]

cuDNN with load balance and alltoall, its fastest set-up, at every length; the others up to 64Ki tokens. Begins no set-up
after N seconds. Writes FOLDER/context-parallel-peers.csv after each set-up. Causal attention of one sequence, bf16 random normal inputs; the time of a
repeat is that of the slowest rank.
"""

import argparse
import csv
import itertools
import os
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.tensor.experimental._attention as options
import torch.nn.functional as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.nn.attention import SDPBackend, sdpa_kernel

HEADS, HEAD_DIM = 16, 128
WARM_UP, REPEATS = 3, 7
OTHERS_UP_TO = 65536
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash2": SDPBackend.FLASH_ATTENTION}
COLUMNS = ["kernel", "load_balance", "rotate", "cp", "seq_len", "pass", "median_s", "min_s", "max_s", "tflops_per_gpu"]


def seconds(call, device):
    """Times of repeats on the slowest rank, rising."""
    for _ in range(WARM_UP):
        call()
    times = []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        dist.barrier()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        slowest = torch.tensor([start.elapsed_time(end) * 1e-3], device=device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        times.append(slowest.item())
    return sorted(times)


def measure(mesh, device, backend, length):
    """(pass, times) of a forward and of a forward with its backward."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, length, HEAD_DIM, device=device, dtype=torch.bfloat16) for _ in range(3))
    with sdpa_kernel(backend), context_parallel(mesh, buffers=(q, k, v), buffer_seq_dims=(2, 2, 2)):
        leaves = [t.detach().clone().requires_grad_(True) for t in (q, k, v)]
        gradient = torch.randn_like(q)

        def forward():
            with torch.no_grad():
                functional.scaled_dot_product_attention(q, k, v, is_causal=True)

        def both():
            out = functional.scaled_dot_product_attention(*leaves, is_causal=True)
            torch.autograd.grad(out, leaves, gradient)

        yield "forward", seconds(forward, device)
        yield "forward+backward", seconds(both, device)


def has_time(start, seconds, device):
    """Whether no rank has worked for so long, on which all agree."""
    late = torch.tensor([float(time.monotonic() - start > seconds)], device=device)
    dist.all_reduce(late, op=dist.ReduceOp.MAX)
    return late.item() == 0


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("lengths", type=int, nargs="*", default=[16384, 65536, 131072, 262144])
    parser.add_argument("--seconds", type=float, default=float("inf"))
    return parser.parse_args()


def main():
    start, args = time.monotonic(), arguments()
    folder, lengths = args.folder, args.lengths
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda", torch.cuda.current_device())
    mesh = init_device_mesh("cuda", (world,), mesh_dim_names=("cp",))
    rows = []
    for name, balance, rotate in itertools.product(BACKENDS, (True, False), ("alltoall", "allgather")):
        if not has_time(start, args.seconds, device):
            break
        options._cp_options.enable_load_balance = balance
        options.set_rotate_method(rotate)
        fastest = (name, balance, rotate) == ("cudnn", True, "alltoall")
        for length in (n for n in lengths if fastest or n <= OTHERS_UP_TO):
            flops = 2 * HEADS * HEAD_DIM * length**2 / world
            for which, times in measure(mesh, device, BACKENDS[name], length):
                median = statistics.median(times)
                rate = (1 if which == "forward" else 3.5) * flops / median / 1e12
                rows.append([name, balance, rotate, world, length, which, median, times[0], times[-1], rate])
                if rank == 0:
                    print(f"torch {name} balance={balance} {rotate} {length} {which}: {rate:.0f} TFLOP/s a GPU", flush=True)
        if rank == 0:
            with open(folder / "context-parallel-peers.csv", "w", newline="") as file:
                csv.writer(file).writerows([COLUMNS, *rows])
    dist.destroy_process_group()


main()
