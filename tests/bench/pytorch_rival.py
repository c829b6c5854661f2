#!/usr/bin/env python3
"""How fast a straightforward PyTorch training loop is on this machine: the rival of Trine's speed figures.

    python3 -m venv /tmp/venv-torch && /tmp/venv-torch/bin/pip install torch numpy     # PyPI's newest, 5.5 GB installed
    /tmp/venv-torch/bin/python tests/bench/pytorch_rival.py --dtype fp32 --threads 2 --steps 5 --mode fastest

The model is Llama-like: RMSNorm, RoPE, SwiGLU, untied head, no biases; by default 12 layers, hidden 768, 12 heads,
ffn 2048, vocabulary 32,000, sequence 512, micro-batch 4. A step is zero_grad, forward, cross-entropy, backward, clipping
at 1.0, AdamW (decay on matrices only), on one micro-batch. Nothing is tuned beyond what a careful user does: fused
attention (F.scaled_dot_product_attention), fused AdamW, torch.compile of the model where asked.

    --dtype  fp32 | bf16 (model.to(bfloat16), moments in bf16 too) | bf16-autocast (fp32 weights, autocast to bf16)
    --device cpu | cuda (one GPU)
    --mode   eager | compile | fastest (both, each in its own process; for a bf16 dtype, both bf16 dtypes as well)

Each run prints a line per step and ends with one JSON line: torch version, settings, median seconds of the timed steps,
tokens per second. With `fastest` the last line is that of the fastest run. Steps before the timed ones (--warmup) carry
compilation and first allocations and are not timed.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn


def rotate(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Block(nn.Module):
    def __init__(self, hidden, heads, ffn):
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.RMSNorm(hidden, eps=1e-5)
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.mlp_norm = nn.RMSNorm(hidden, eps=1e-5)
        self.gate = nn.Linear(hidden, ffn, bias=False)
        self.up = nn.Linear(hidden, ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x, cos, sin):
        b, t, h = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2)
                   for y in self.qkv(self.attention_norm(x)).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, h))
        y = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.embed = nn.Embedding(a.vocab, a.hidden)
        self.blocks = nn.ModuleList(Block(a.hidden, a.heads, a.ffn) for _ in range(a.layers))
        self.norm = nn.RMSNorm(a.hidden, eps=1e-5)
        self.head = nn.Linear(a.hidden, a.vocab, bias=False)
        size = a.hidden // a.heads
        frequency = 10000.0 ** (-torch.arange(0, size, 2) / size)
        angle = torch.outer(torch.arange(a.seq), frequency).repeat(1, 2)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        for p in self.parameters():
            if p.ndim >= 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def run(a):
    torch.manual_seed(1)
    torch.set_num_threads(a.threads)
    torch.set_num_interop_threads(1)
    model = Model(a).to(a.device)
    if a.dtype == "bf16":
        model.to(torch.bfloat16)
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
                                  lr=3e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)
    compute_loss = torch.compile(model) if a.mode == "compile" else model
    seconds = []
    for step in range(a.warmup + a.steps):
        batch = torch.randint(a.vocab, (a.micro_batch, a.seq + 1), device=a.device)
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(a.device, dtype=torch.bfloat16, enabled=a.dtype == "bf16-autocast"):
            loss = compute_loss(batch[:, :-1], batch[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        value = loss.item()
        seconds.append(time.perf_counter() - begin)
        kind = "warm-up" if step < a.warmup else "timed"
        print(f"step {step + 1} ({kind}): loss {value:.4f}, {seconds[-1]:.3f} s", flush=True)
    median = statistics.median(seconds[a.warmup:])
    processor = torch.backends.cpu.get_cpu_capability() if a.device == "cpu" else torch.cuda.get_device_name()
    return {"torch": torch.__version__, "device": a.device, "processor": processor,
            "threads": a.threads, "dtype": a.dtype, "mode": a.mode,
            "parameters": sum(p.numel() for p in model.parameters()), "tokens_per_step": a.micro_batch * a.seq,
            "timed_steps": a.steps, "median_step_s": round(median, 4),
            "tokens_per_s": round(a.micro_batch * a.seq / median, 2)}


def run_fastest(argv, a):
    """Each variant in a process of its own, so that none inherits another's memory or thread settings."""
    results = []
    for dtype in ("bf16", "bf16-autocast") if a.dtype.startswith("bf16") else (a.dtype,):
        for mode in ("eager", "compile"):
            print(f"--- {dtype}, {mode}", flush=True)
            command = [sys.executable, __file__, *argv, "--dtype", dtype, "--mode", mode]
            child = subprocess.run(command, stdout=subprocess.PIPE, text=True)
            print(child.stdout, end="", flush=True)
            if child.returncode == 0:
                results.append(json.loads(child.stdout.splitlines()[-1]))
            else:
                print(f"failed with exit code {child.returncode}", flush=True)
    if not results:
        sys.exit("no variant ran")
    print("--- fastest", flush=True)
    return max(results, key=lambda result: result["tokens_per_s"])


def main():
    parser = argparse.ArgumentParser(description="Times a straightforward PyTorch training loop.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("fp32", "bf16", "bf16-autocast"), default="fp32")
    parser.add_argument("--mode", choices=("eager", "compile", "fastest"), default="fastest")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5, help="timed steps; their median counts")
    parser.add_argument("--warmup", type=int, default=2, help="steps before, not timed")
    for name, default in (("layers", 12), ("hidden", 768), ("heads", 12), ("ffn", 2048), ("vocab", 32000),
                          ("seq", 512), ("micro-batch", 4)):
        parser.add_argument("--" + name, type=int, default=default)
    a = parser.parse_args()
    result = run_fastest(sys.argv[1:], a) if a.mode == "fastest" else run(a)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
