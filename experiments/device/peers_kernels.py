"""Times the attention kernels that a PyTorch user has, and measures their error against the f64 reference.

    peers_kernels.py FOLDER [LONGEST]

Appends to FOLDER/bench-peers.csv the columns that the lab writes, and to FOLDER/accuracy-peers.csv the error of each
implementation on the problems that `lab accuracy` left in FOLDER/problems. Implementations: PyTorch's cuDNN and flash
(FA2) back ends, and FlashAttention-3's forward where the wheel fa3-fwd is importable.
"""

import csv
import statistics
import sys
import types
from pathlib import Path

import numpy
import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

WIDTH = 2048
WARM_UP, REPEATS = 3, 10
COLUMNS = (
    "implementation,kernel,pass,dtype,head_dim,heads,kv_heads,batch,len,mask,layout,ranks,scope,"
    "tflops,median_ms,min_ms,max_ms,repeats,device,cuda"
).split(",")


def load_fa3():
    """FlashAttention-3's forward, or None; its wheel lacks a generated module that the interface imports."""
    module = types.ModuleType("flash_attn_config")
    module.CONFIG = {"build_flags": {}}
    sys.modules["flash_attn_config"] = module
    try:
        from fa3_fwd_interface import flash_attn_func

        return flash_attn_func
    except Exception as error:  # Whatever a foreign build raises means that it is not there.
        print(f"no FlashAttention-3: {error}", file=sys.stderr)
        return None


FA3 = load_fa3()
BACKENDS = {"torch-cudnn": SDPBackend.CUDNN_ATTENTION, "torch-flash2": SDPBackend.FLASH_ATTENTION}


def milliseconds(call):
    """Times of single calls between device events, rising."""
    for _ in range(WARM_UP):
        call()
    marks = []
    for _ in range(REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        marks.append((start, end))
    torch.cuda.synchronize()
    return sorted(start.elapsed_time(end) for start, end in marks)


def sdpa(backend, q, k, v, causal):
    """Tensors [batch][len][heads][dim] in and out; the back ends read the transposed view."""
    with sdpa_kernel(backend):
        heads_first = (x.transpose(1, 2) for x in (q, k, v))
        return functional.scaled_dot_product_attention(*heads_first, is_causal=causal).transpose(1, 2)


def bench_point(head_dim, length, causal):
    """Rows of every implementation at one shape."""
    heads, batch = WIDTH // head_dim, max(1, 16384 // length)
    shape = (batch, length, heads, head_dim)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    gradient = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    pairs = length * (length + 1) / 2 if causal else length * length
    flops = 4 * head_dim * heads * batch * pairs
    base = {
        "kernel": "", "dtype": "bf16", "head_dim": head_dim, "heads": heads, "kv_heads": heads, "batch": batch,
        "len": length, "mask": "causal" if causal else "full", "layout": "contiguous", "ranks": 1, "scope": "whole",
        "device": torch.cuda.get_device_name(), "cuda": torch.version.cuda,
    }

    def row(implementation, direction, times, operations):
        median = statistics.median(times)
        return base | {
            "implementation": implementation, "pass": direction, "tflops": f"{operations / median / 1e9:.1f}",
            "median_ms": median, "min_ms": times[0], "max_ms": times[-1], "repeats": len(times),
        }

    for name, backend in BACKENDS.items():
        with torch.no_grad():
            times = milliseconds(lambda: sdpa(backend, q, k, v, causal))
        yield row(name, "forward", times, flops)
        out = sdpa(backend, q, k, v, causal)
        times = milliseconds(lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True))
        yield row(name, "backward", times, 2.5 * flops)
    if FA3:
        with torch.no_grad():
            times = milliseconds(lambda: FA3(q, k, v, causal=causal))
        yield row("fa3", "forward", times, flops)


def bench(folder, longest):
    with open(folder / "bench-peers.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for head_dim in (128, 64):
            for length in (1024, 2048, 4096, 8192, 16384, 32768, 65536):
                if length > longest:
                    continue
                for causal in (False, True):
                    for row in bench_point(head_dim, length, causal):
                        writer.writerow(row)
                        print(
                            f"d{head_dim:<3} len {length:>5} {row['mask']:<8} {row['pass']:<8} "
                            f"{row['tflops']:>6} TFLOP/s  {row['implementation']}",
                            flush=True,
                        )


def relative_l2(actual, expected):
    return ((actual.double() - expected).norm() / expected.norm()).item()


def accuracy_of(problem):
    """(implementation, tensor, error) of every implementation on one problem folder."""
    head_dim = int(problem.name.split("-d")[1].split("-")[0])
    causal = problem.name.endswith("causal")

    def read(name, dtype):
        bits = torch.from_numpy(numpy.fromfile(problem / name, dtype=dtype)).cuda()
        return bits.view(1, -1, 2, head_dim)

    inputs = [read(name, numpy.int16).view(torch.bfloat16).requires_grad_() for name in ("q", "k", "v")]
    gradient = read("do", numpy.int16).view(torch.bfloat16)
    expected = {name: read(name, numpy.float64) for name in ("o", "dq", "dk", "dv")}
    for name, backend in BACKENDS.items():
        out = sdpa(backend, *inputs, causal)
        yield name, "o", relative_l2(out.detach(), expected["o"])
        grads = torch.autograd.grad(out, inputs, gradient)
        for tensor, actual in zip(("dq", "dk", "dv"), grads):
            yield name, tensor, relative_l2(actual, expected[tensor])
    if FA3:
        with torch.no_grad():
            out = FA3(*inputs, causal=causal)
        yield "fa3", "o", relative_l2(out[0] if isinstance(out, tuple) else out, expected["o"])


def accuracy(folder):
    with open(folder / "accuracy-peers.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["implementation", "problem", "tensor", "relative_l2"])
        for problem in sorted((folder / "problems").iterdir()):
            for implementation, tensor, error in accuracy_of(problem):
                writer.writerow([implementation, problem.name, tensor, f"{error:.4e}"])
                print(f"{implementation},{problem.name},{tensor},{error:.4e}", flush=True)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    if (target / "problems").is_dir():
        accuracy(target)
    bench(target, int(sys.argv[2]) if len(sys.argv) > 2 else 65536)
