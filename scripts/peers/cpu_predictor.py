# What torch takes on the cpu for the shapes of `tide bench`, to stand beside it.
#   python3 scripts/peers/cpu_predictor.py [SECONDS]
# Prints one JSON value: {"peer": "torch ...", "cases": {case: {"torch": microseconds}}}; needs torch.
import json
import sys
import time

import torch

SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
Q_HEADS, KV_HEADS, DIM, RANK, SIZE = 32, 8, 128, 32, 16
GROUP = Q_HEADS // KV_HEADS
ROTATE_BYTES = 2**30  # buffers rotate over this much, as in tide bench


def median_us(run, least=9):
    run(0)
    samples, end, i = [], time.perf_counter() + SECONDS, 1
    while len(samples) < least or time.perf_counter() < end:
        before = time.perf_counter()
        run(i)
        samples.append((time.perf_counter() - before) * 1e6)
        i += 1
    return sorted(samples)[len(samples) // 2]


def rotated(n_elements, shape):
    n = max(1, ROTATE_BYTES // (n_elements * 2))
    one = torch.randn(n_elements).to(torch.bfloat16).reshape(shape)
    return [one.clone() for _ in range(n)]


# Product and relayout to [block, head, token, rank]; the output is kept, as in tide.
def project(blocks, tokens, heads):
    xs = rotated(blocks * tokens * heads * DIM, (blocks * tokens * heads, DIM))
    p = torch.randn(DIM, RANK).to(torch.bfloat16)
    y = torch.empty(blocks, heads, tokens, RANK, dtype=torch.bfloat16)

    def run(i):
        product = xs[i % len(xs)] @ p
        y.copy_(product.reshape(blocks, tokens, heads, RANK).permute(0, 2, 1, 3))

    return run


# Three ways; the fastest one counts.
def score(tokens, mass):
    blocks = tokens // SIZE
    keys = rotated(tokens * KV_HEADS * RANK, (blocks, KV_HEADS, SIZE, RANK))
    q = torch.randn(KV_HEADS, RANK, GROUP).to(torch.bfloat16)
    scale = DIM**-0.5

    def reduce(e):  # [blocks, kv heads, tokens, group]
        if not mass:
            return e.amax(dim=(1, 2, 3)).float()
        logits = torch.logsumexp(e.float() * scale, dim=2)
        return torch.softmax(logits, dim=0).mean(dim=(1, 2))

    def bf16(i):
        return reduce(torch.matmul(keys[i % len(keys)], q))

    def by_head(i):
        k = keys[i % len(keys)]
        return reduce(torch.stack([k[:, h] @ q[h] for h in range(KV_HEADS)], dim=1))

    def f32(i):
        return reduce(torch.matmul(keys[i % len(keys)].float(), q.float()))

    return [bf16, by_head, f32]


def attend(tokens):
    ks = rotated(tokens * KV_HEADS * DIM, (1, tokens, KV_HEADS, DIM))
    q = torch.randn(1, Q_HEADS, 1, DIM).to(torch.bfloat16)

    def run(i):
        k, v = ks[i % len(ks)].transpose(1, 2), ks[(i + 1) % len(ks)].transpose(1, 2)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    return run


def summarize(tokens):
    xs = rotated(tokens * KV_HEADS * DIM, (tokens // SIZE, SIZE, KV_HEADS, DIM))
    return lambda i: xs[i % len(xs)].mean(dim=1)


def main():
    cases = {
        "project_batched": lambda: [project(8192, SIZE, KV_HEADS)],
        "project_block": lambda: [project(1, SIZE, KV_HEADS)],
        "project_q": lambda: [project(1, 1, Q_HEADS)],
        "score_max_128k": lambda: score(2**17, False),
        "score_max_1m": lambda: score(2**20, False),
        "score_mass_128k": lambda: score(2**17, True),
        "score_mass_1m": lambda: score(2**20, True),
        "summarize_mean_128k": lambda: [summarize(2**17)],
        "attend_decode": lambda: [attend(2**15)],
    }
    found = {}
    with torch.inference_mode():
        for name, make in cases.items():
            print("torch:", name, file=sys.stderr)
            found[name] = {"torch": min(median_us(run) for run in make())}
    threads = torch.get_num_threads()
    print(json.dumps({"peer": f"torch {torch.__version__}, {threads} threads", "cases": found}))


main()
