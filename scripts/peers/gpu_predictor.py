"""Peers of the predictor's CUDA kernels: what PyTorch needs for the same projection and the same scores, in one run.

How to run:  python3 scripts/peers/gpu_predictor.py          (PyTorch with CUDA; about a minute, most of it torch.compile)
Prints one JSON object a line: {"op", "how", "us", "bytes", "floor_us", "ratio"}: median us of graph replays that rotate
through more than 250 MB of random inputs; floors are bytes over the read or copy rate of the same run.
"""
import json
import statistics

import torch

HEADS, KV_HEADS, DIM, RANK, BLOCK = 32, 8, 128, 32, 16
GROUP = HEADS // KV_HEADS
ROTATED_BYTES = 256 << 20


def median_us(step, n_steps, n_replays=21):
    """Median us of one step(i): n_steps of them in a graph, which is replayed."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for i in range(3):
            step(i)
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(n_steps):
            step(i)
    times = []
    for replay in range(-3, n_replays):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        if replay >= 0:
            times.append(start.elapsed_time(end) * 1000 / n_steps)
    return statistics.median(times)


def random(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def rotation(n_bytes):
    """How many inputs of n_bytes rotate, and how many steps a graph takes."""
    n_sets = min(64, max(2, -(-ROTATED_BYTES // n_bytes)))
    return n_sets, max(8, n_sets)


def report(op, how, us, n_bytes=0, rate=None):
    row = {"op": op, "how": how, "us": round(us, 2), "bytes": n_bytes}
    if rate:
        row["floor_us"] = round(n_bytes / rate, 2)
        row["ratio"] = round(us * rate / n_bytes, 3)
    print(json.dumps(row), flush=True)


def ceilings():
    n = 512 << 20
    source = [torch.randint(0, 1 << 30, (n // 4,), device="cuda", dtype=torch.int32) for _ in range(2)]
    target = torch.empty_like(source[0])
    copy_us = median_us(lambda i: target.copy_(source[i % 2]), 8)
    read_us = median_us(lambda i: torch.max(source[i % 2].view(torch.float32)), 8)
    one = torch.zeros(1, device="cuda")
    report("ceiling", "copy", copy_us, 2 * n)
    report("ceiling", "read (torch.max)", read_us, n)
    report("ceiling", "smallest torch kernel", median_us(lambda i: one.zero_(), 200))
    return n / read_us, 2 * n / copy_us


def relayout(product, n_blocks):
    """[tokens, heads, rank] to the blocks' [block, head, token, rank]."""
    return product.view(n_blocks, BLOCK, KV_HEADS, RANK).transpose(1, 2).contiguous()


def bench_projection(copy_rate):
    p = random(DIM, RANK)
    for n_blocks in (1, 64, 8192):
        rows = n_blocks * BLOCK * KV_HEADS
        n_bytes = rows * (DIM + RANK) * 2
        n_sets, n_steps = rotation(rows * DIM * 2)
        x = [random(rows, DIM) for _ in range(n_sets)]
        y = [torch.empty(rows, RANK, device="cuda", dtype=torch.bfloat16) for _ in range(n_sets)]
        name = f"project {n_blocks} blocks"
        us = median_us(lambda i: torch.matmul(x[i % n_sets], p, out=y[i % n_sets]), n_steps)
        report(name, "torch.matmul, no relayout", us, n_bytes, copy_rate)
        us = median_us(lambda i: relayout(torch.matmul(x[i % n_sets], p), n_blocks), n_steps)
        report(name, "torch.matmul and relayout", us, n_bytes, copy_rate)
        del x, y
    q, y = random(HEADS, DIM), random(HEADS, RANK)
    report("project q", "torch.matmul", median_us(lambda i: torch.matmul(q, p, out=y), 64))


def max_score(q, keys):
    """q [kv, group, rank], keys [block, kv, token, rank] -> [block]."""
    return torch.einsum("hgr,bhtr->bhgt", q, keys).float().amax((1, 2, 3))


def mass_score(q, keys):
    logits = torch.einsum("hgr,bhtr->bhgt", q, keys).float().mul(0.1).logsumexp(3)
    return logits.softmax(0).mean((1, 2))


def sum_score(q, keys):
    """The same products as one multiplication and one reduction, which a compiler can fuse."""
    return (q.float()[None, :, :, None] * keys.float()[:, :, None]).sum(-1).amax((1, 2, 3))


def bench_score(read_rate):
    q = random(KV_HEADS, GROUP, RANK)
    for name, n_blocks in (("16k", 1024), ("128k", 8192), ("1M", 65536)):
        n_bytes = n_blocks * KV_HEADS * BLOCK * RANK * 2
        n_sets, n_steps = rotation(n_bytes)
        keys = [random(n_blocks, KV_HEADS, BLOCK, RANK) for _ in range(n_sets)]
        ways = {"eager": max_score}
        for way, function in (("max", max_score), ("sum", sum_score), ("mass", mass_score)):
            ways[f"torch.compile {way}"] = torch.compile(function, mode="max-autotune-no-cudagraphs", dynamic=False)
        for how, function in ways.items():
            us = median_us(lambda i: function(q, keys[i % n_sets]), n_steps)
            report(f"score {name}", how, us, n_bytes, read_rate)
        del keys


def main():
    torch.manual_seed(1)
    print(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__}))
    read_rate, copy_rate = ceilings()
    with torch.inference_mode():
        bench_projection(copy_rate)
        bench_score(read_rate)


if __name__ == "__main__":
    main()
