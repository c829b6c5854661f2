#!/usr/bin/env python3
"""Makes golden_g.safetensors and golden_l.safetensors: what PyTorch computes for two tiny models.

How to run it again (the committed files came from PyTorch 2.15.0 of PyPI, as their metadata say):

    python3 -m venv /tmp/venv-torch && /tmp/venv-torch/bin/pip install torch==2.15.0 numpy
    /tmp/venv-torch/bin/python tests/golden/make_golden.py            # rewrites both files beside this script
    /tmp/venv-torch/bin/python tests/golden/make_golden.py --out DIR  # writes them elsewhere, to compare

One thread, no random numbers, no clock: the same PyTorch on the same kind of CPU writes the same bytes. Any PyTorch
from 1.12 on runs it. Debian 12's own (apt-get install python3-torch python3-numpy, /usr/bin/python3) gives the same
fp64 results to the bit and the same fp32 losses to 1e-6, but bf16 errors of gradients up to six times larger: the
newer one is the stricter reference.

Independent of Trine on purpose: every formula below was written from the models' definitions, for autograd; nothing
is derived from the C code. Shared with the C side are only names, shapes and the value formulas of this header.

Models
    G  GPT-2 style: 4 layers, hidden 64, 4 heads, ffn 256, 32 learned positions, LayerNorm (eps 1e-5) with biases,
       biases on all linear maps, GELU with tanh, head tied to wte, norm before each part and at the end.
    L  Llama style: 4 layers, hidden 64, 4 heads, 2 key/value heads (head h reads key/value head h // 2), head size 16,
       ffn 176 SwiGLU, RMSNorm (eps 1e-5), RoPE (theta 10000, halves rotated), head not tied, no biases.
    Both: vocabulary 257, sequence 32, scores scaled by 1/sqrt(16), causal. Linear weights are [out, in].

Values, computed in double and rounded to fp32
    key = FNV-1a 64 of the name's bytes
    z_i = splitmix64 finaliser of (key + (i + 1) * 0x9E3779B97F4A7C15) mod 2^64, i the row-major element index
    u_i = (z_i >> 40) / 2^24 * 2 - 1, in [-1, 1)
    embeddings and the head (wte, wpe, embed_tokens, lm_head) 0.2 * u;  other two-dimensional parameters 0.1 * u;
    biases 0.1 * u;  norm weights 1 + 0.2 * u
    token i of step s = (z_i >> 33) % 257 with the name "tokens.s", s in decimal, as [B, 33] rows: position t of a
    row predicts t + 1. Step 0 (B = 2) is the batch of logits, loss and gradients, steps 1..20 (B = 8) are trained on.
    These scales give logits of standard deviation 0.9, so that the softmax is neither flat nor one-hot, clipping at
    1.0 that bites in 7 of G's 20 steps and in all of L's, and fp32 rounding well below 1e-5 everywhere. The last
    one limits the linear maps: the key biases of G have a gradient of exactly 0 (softmax ignores what all keys share),
    so theirs is rounding noise, which grows with the attention scores.

Contents of each file (names of tensors; P stands for a parameter name)
    logits [2,32,257] F32, loss [] F64, grad.P F32   fp64 run on the fp32 weights; loss is the mean over all tokens
    token_loss [2,32] F64                            its loss of each position
    bf16_error.P, bf16_error.{logits,loss,token_loss} [] F64
        norm of (PyTorch bf16 - fp64): parameters rounded to bf16, everything in bf16 as after model.to(bfloat16)
        with softmax included, loss in fp32 from logits.float(). For `loss` the plain difference of two scalars is
        luck; ||token_loss error|| / sqrt(64) bounds it and is the fair measure.
    fp32_error.P, fp32_error.{logits,loss,token_loss} [] F64    the same for PyTorch in fp32
    train.loss, train.grad_norm [20] F64             fp32 run; the norm is the one before clipping
    train.loss_fp64, train.grad_norm_fp64 [20] F64   the same in fp64: shows how far rounding alone moves them
        torch.optim.AdamW, lr 1e-3 constant, betas 0.9 0.95, eps 1e-8, decay 0.1 on two-dimensional parameters
        (embeddings included) and 0 on the others, clip_grad_norm_ at 1.0 before the step
    weight_check.P [] F64                            sum of (i + 1) * weight_i, to check the value formula
    tokens.0 [2,33], tokens.20 [8,33] I32            to check the token formula
"""

import argparse
import json
import math
import os
import struct

import numpy
import torch
import torch.nn.functional as F

LAYERS, HIDDEN, HEADS, SEQ, VOCAB = 4, 64, 4, 32, 257
HEAD_DIM = HIDDEN // HEADS
FFN_G, FFN_L, KV_HEADS_L = 256, 176, 2
EPS, THETA = 1e-5, 10000.0
STEPS, TRAIN_BATCH, GRAD_BATCH = 20, 8, 2


# Values by formula.

def hash_values(name, count):
    """z_0 .. z_(count-1) of a name, as uint64."""
    key = 14695981039346656037
    for byte in name.encode():
        key = ((key ^ byte) * 1099511628211) % 2**64
    with numpy.errstate(over="ignore"):
        z = numpy.uint64(key) + numpy.arange(1, count + 1, dtype=numpy.uint64) * numpy.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
        return z ^ (z >> numpy.uint64(31))


def make_weight(name, shape):
    z = hash_values(name, math.prod(shape))
    u = (z >> numpy.uint64(40)).astype(numpy.float64) / 2.0**24 * 2.0 - 1.0
    if name.split(".")[-2] in ("wte", "wpe", "embed_tokens", "lm_head"):
        w = 0.2 * u
    elif len(shape) == 2:
        w = 0.1 * u
    elif name.endswith(".bias"):
        w = 0.1 * u
    else:
        w = 1.0 + 0.2 * u
    return torch.from_numpy(w.astype(numpy.float32).reshape(shape))


def make_tokens(step, batch):
    z = hash_values(f"tokens.{step}", batch * (SEQ + 1))
    tokens = (z >> numpy.uint64(33)) % numpy.uint64(VOCAB)
    return torch.from_numpy(tokens.astype(numpy.int64).reshape(batch, SEQ + 1))


# The two models: a table of parameters and a forward function each. B sequences, T positions, H hidden, A heads,
# K key/value heads, D head size.

def attention(q, k, v):
    """Causal attention; q [B,A,T,D], k and v [B,A,T,D]; softmax in the dtype of the operands."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(HEAD_DIM)
    future = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).triu(1)
    scores = scores.masked_fill(future, float("-inf"))
    return torch.softmax(scores, dim=-1) @ v


def split_heads(x, heads):
    """[B,T,heads*D] -> [B,heads,T,D]"""
    return x.view(x.shape[0], x.shape[1], heads, HEAD_DIM).transpose(1, 2)


def join_heads(x):
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], HIDDEN)


def shapes_g():
    shapes = {"wte.weight": (VOCAB, HIDDEN), "wpe.weight": (SEQ, HIDDEN)}
    for i in range(LAYERS):
        linear = {"attn.q": (HIDDEN, HIDDEN), "attn.k": (HIDDEN, HIDDEN), "attn.v": (HIDDEN, HIDDEN),
                  "attn.c_proj": (HIDDEN, HIDDEN), "mlp.c_fc": (FFN_G, HIDDEN), "mlp.c_proj": (HIDDEN, FFN_G)}
        for norm in ("ln_1", "ln_2"):
            shapes[f"h.{i}.{norm}.weight"] = (HIDDEN,)
            shapes[f"h.{i}.{norm}.bias"] = (HIDDEN,)
        for name, shape in linear.items():
            shapes[f"h.{i}.{name}.weight"] = shape
            shapes[f"h.{i}.{name}.bias"] = (shape[0],)
    shapes["ln_f.weight"] = (HIDDEN,)
    shapes["ln_f.bias"] = (HIDDEN,)
    return shapes


def forward_g(p, tokens):
    """tokens [B,T] -> logits [B,T,V]"""
    def linear(name, x):
        return F.linear(x, p[name + ".weight"], p[name + ".bias"])

    def norm(name, x):
        return F.layer_norm(x, (HIDDEN,), p[name + ".weight"], p[name + ".bias"], EPS)

    x = F.embedding(tokens, p["wte.weight"]) + p["wpe.weight"][: tokens.shape[1]]
    for i in range(LAYERS):
        h = norm(f"h.{i}.ln_1", x)
        q, k, v = (split_heads(linear(f"h.{i}.attn.{n}", h), HEADS) for n in "qkv")
        x = x + linear(f"h.{i}.attn.c_proj", join_heads(attention(q, k, v)))
        h = linear(f"h.{i}.mlp.c_fc", norm(f"h.{i}.ln_2", x))
        x = x + linear(f"h.{i}.mlp.c_proj", F.gelu(h, approximate="tanh"))
    return F.linear(norm("ln_f", x), p["wte.weight"])


def shapes_l():
    kv = KV_HEADS_L * HEAD_DIM
    shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN)}
    for i in range(LAYERS):
        layer = {"input_layernorm": (HIDDEN,),
                 "self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (kv, HIDDEN),
                 "self_attn.v_proj": (kv, HIDDEN), "self_attn.o_proj": (HIDDEN, HIDDEN),
                 "post_attention_layernorm": (HIDDEN,),
                 "mlp.gate_proj": (FFN_L, HIDDEN), "mlp.up_proj": (FFN_L, HIDDEN), "mlp.down_proj": (HIDDEN, FFN_L)}
        for name, shape in layer.items():
            shapes[f"model.layers.{i}.{name}.weight"] = shape
    shapes["model.norm.weight"] = (HIDDEN,)
    shapes["lm_head.weight"] = (VOCAB, HIDDEN)
    return shapes


def rms_norm(x, weight):
    """x / sqrt(mean(x^2) + eps) * weight; the statistic at least in fp32, as Hugging Face's Llama does."""
    wide = x if x.dtype == torch.float64 else x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)
    return wide.to(x.dtype) * weight


def rope_tables(length, dtype):
    """cos and sin [T,D] of position * theta^(-2j/D), j = 0 .. D/2-1 repeated for both halves."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    frequency = THETA ** (-torch.arange(0, HEAD_DIM, 2, dtype=wide) / HEAD_DIM)
    angle = torch.outer(torch.arange(length, dtype=wide), frequency)
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rotate(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def forward_l(p, tokens):
    """tokens [B,T] -> logits [B,T,V]"""
    x = F.embedding(tokens, p["model.embed_tokens.weight"])
    cos, sin = rope_tables(tokens.shape[1], x.dtype)
    for i in range(LAYERS):
        def linear(name, h):
            return F.linear(h, p[f"model.layers.{i}.{name}.weight"])

        h = rms_norm(x, p[f"model.layers.{i}.input_layernorm.weight"])
        q = rotate(split_heads(linear("self_attn.q_proj", h), HEADS), cos, sin)
        k = rotate(split_heads(linear("self_attn.k_proj", h), KV_HEADS_L), cos, sin)
        v = split_heads(linear("self_attn.v_proj", h), KV_HEADS_L)
        k, v = (t.repeat_interleave(HEADS // KV_HEADS_L, dim=1) for t in (k, v))
        x = x + linear("self_attn.o_proj", join_heads(attention(q, k, v)))
        h = rms_norm(x, p[f"model.layers.{i}.post_attention_layernorm.weight"])
        x = x + linear("mlp.down_proj", F.silu(linear("mlp.gate_proj", h)) * linear("mlp.up_proj", h))
    return F.linear(rms_norm(x, p["model.norm.weight"]), p["lm_head.weight"])


# Runs.

def make_parameters(weights, dtype):
    return {name: w.to(dtype).clone().requires_grad_() for name, w in weights.items()}


def token_losses(logits, targets):
    """-log p(target) of each position [B,T], at least in fp32."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(wide.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape)


def run_once(forward, weights, dtype):
    """Logits, losses and all gradients of batch 0, as float64."""
    p = make_parameters(weights, dtype)
    tokens = make_tokens(0, GRAD_BATCH)
    logits = forward(p, tokens[:, :-1])
    each = token_losses(logits, tokens[:, 1:])
    each.mean().backward()
    result = {"logits": logits, "loss": each.mean(), "token_loss": each}
    result = {name: t.detach().double() for name, t in result.items()}
    result.update({name: w.grad.double() for name, w in p.items()})
    return result


def train(forward, weights, dtype):
    """Losses and gradient norms before clipping of STEPS AdamW steps, as float64."""
    p = make_parameters(weights, dtype)
    groups = [{"params": [w for w in p.values() if w.ndim >= 2], "weight_decay": 0.1},
              {"params": [w for w in p.values() if w.ndim < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    losses, norms = [], []
    for step in range(1, STEPS + 1):
        tokens = make_tokens(step, TRAIN_BATCH)
        loss = token_losses(forward(p, tokens[:, :-1]), tokens[:, 1:]).mean()
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(list(p.values()), 1.0).double())
        optimizer.step()
        losses.append(loss.detach().double())
    return torch.stack(losses), torch.stack(norms)


def layer_of(name):
    """'h.2' or 'model.layers.2'; a parameter outside the layers stands for itself."""
    parts = name.split(".")
    digits = [i for i, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[: digits[0] + 1]) if digits else name


def worst_relative(errors, reference, names):
    """max over parameters of error / max(norm, 1e-3 * largest norm in its layer), with its name."""
    norms = {name: reference[name].norm().item() for name in names}
    largest = {}
    for name in names:
        largest[layer_of(name)] = max(norms[name], largest.get(layer_of(name), 0.0))
    return max((errors[name] / max(norms[name], 1e-3 * largest[layer_of(name)]), name) for name in names)


def write_safetensors(path, tensors, metadata):
    """8-byte ones come first and the header is padded to 8 bytes, so that every tensor lies aligned."""
    kinds = {torch.float64: "F64", torch.float32: "F32", torch.int32: "I32"}
    order = sorted(tensors, key=lambda name: -tensors[name].element_size())
    header, offset, blobs = {"__metadata__": metadata}, 0, []
    for name in order:
        blob = tensors[name].contiguous().numpy().tobytes()
        header[name] = {"dtype": kinds[tensors[name].dtype], "shape": list(tensors[name].shape),
                        "data_offsets": [offset, offset + len(blob)]}
        offset += len(blob)
        blobs.append(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path + ".tmp", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))
    os.replace(path + ".tmp", path)


def make_file(path, title, shapes, forward):
    weights = {name: make_weight(name, shape) for name, shape in shapes.items()}
    exact = run_once(forward, weights, torch.float64)
    tensors = {"logits": exact["logits"].float(), "loss": exact["loss"], "token_loss": exact["token_loss"]}
    tensors.update({"grad." + name: exact[name].float() for name in shapes})
    print(f"{title}: loss {exact['loss']:.9f}, ln V {math.log(VOCAB):.4f}, logits std {exact['logits'].std():.3f}")
    for label, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        rough = run_once(forward, weights, dtype)
        errors = {name: (rough[name] - exact[name]).norm() for name in exact}
        tensors.update({f"{label}_error.{name}": error for name, error in errors.items()})
        worst, name = worst_relative({n: e.item() for n, e in errors.items()}, exact, list(shapes))
        print(f"  PyTorch {label}: worst gradient {worst:.3g} ({name}), logits "
              f"{errors['logits'] / exact['logits'].norm():.3g}, loss off by {errors['loss']:.3g}, "
              f"rms of token losses {errors['token_loss'] / math.sqrt(exact['token_loss'].numel()):.3g}")
    for suffix, dtype in (("", torch.float32), ("_fp64", torch.float64)):
        tensors["train.loss" + suffix], tensors["train.grad_norm" + suffix] = train(forward, weights, dtype)
    drift = ((tensors["train.loss"] - tensors["train.loss_fp64"]).abs() / tensors["train.loss_fp64"]).max()
    norms = tensors["train.grad_norm"]
    print(f"  20 steps: loss {tensors['train.loss'][0]:.6f} -> {tensors['train.loss'][-1]:.6f}, fp32 off by at most "
          f"{drift:.3g}, norm {norms.max():.3f} .. {norms.min():.3f}, {int((norms > 1.0).sum())} steps clipped")
    for name, w in weights.items():
        index = torch.arange(1, w.numel() + 1, dtype=torch.float64)
        tensors["weight_check." + name] = (w.double().flatten() * index).sum()
    tensors["tokens.0"] = make_tokens(0, GRAD_BATCH).int()
    tensors["tokens.20"] = make_tokens(STEPS, TRAIN_BATCH).int()
    write_safetensors(path, tensors, {"model": title, "made_by": "tests/golden/make_golden.py",
                                      "torch": torch.__version__})
    print(f"  {path}: {os.path.getsize(path)} bytes")


def main():
    parser = argparse.ArgumentParser(description="Makes the golden files of tests/golden.")
    parser.add_argument("--out", default=os.path.dirname(os.path.abspath(__file__)), help="folder to write to")
    out = parser.parse_args().out
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    make_file(os.path.join(out, "golden_g.safetensors"), "G", shapes_g(), forward_g)
    make_file(os.path.join(out, "golden_l.safetensors"), "L", shapes_l(), forward_l)


if __name__ == "__main__":
    main()
