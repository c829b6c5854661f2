#!/usr/bin/env python3
"""How fast and how small Trine's checkpoints are beside PyTorch's, of the same state on the same disk.

    python3 -m venv /tmp/venv-torch && /tmp/venv-torch/bin/pip install torch numpy
    tests/bench/checkpoint_rival.py --python /tmp/venv-torch/bin/python --state runs/NAME/checkpoints/step-00001000 --dir /tmp

The state is a real checkpoint of Trine: fp32 masters and both moments, read by tests/python/ckpt_reader.py (python3-numpy,
python3-zstandard, python3-xxhash). Rounds alternate:

    trine        trine bench checkpoint --runs 1: shards written by --threads threads and flushed, read back with every hash
    torch.save   one file, flushed; torch.load
    dcp          torch.distributed.checkpoint.save and load, one process, --threads writer threads, flushed (its default)
    dcp async    dcp.async_save: how long the caller is blocked, and until it is on the disk
    cp           cp of PyTorch's file and sync of the copy: the disk

Before each read the files are taken out of the page cache. Each line is the median of the rounds: seconds, GB/s of the state
(12 bytes a parameter), bytes on the disk. Trine's own blocked time in a training run stands in the line of each save and in
metrics.jsonl (time.checkpoint); this program cannot see it.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def files_of(path):
    if os.path.isfile(path):
        return [path]
    return [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]


def bytes_of(path):
    return sum(os.path.getsize(file) for file in files_of(path))


def cache_drop(path):
    for file in files_of(path):
        fd = os.open(file, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def timed(action):
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


# ---- the process with PyTorch: one round for each line of standard input ----

def torch_state(folder):
    import numpy
    import torch
    with open(os.path.join(folder, "index.json"), encoding="ascii") as file:
        index = json.load(file)
    values = numpy.fromfile(os.path.join(folder, "values"), numpy.float32)
    state, at = {}, 0
    for kind, name, shape in index:
        size = int(numpy.prod(shape))
        state[f"{kind}.{name}"] = torch.from_numpy(values[at:at + size].reshape(shape)).clone()
        at += size
    return state


def torch_round(state, folder, threads):
    import torch
    import torch.distributed.checkpoint as dcp
    file, sharded, background = (os.path.join(folder, name) for name in ("torch.pt", "dcp", "dcp-async"))
    for old in (sharded, background):
        shutil.rmtree(old, ignore_errors=True)
    if os.path.exists(file):
        os.unlink(file)
    result = {}

    def save_file():
        with open(file, "wb") as out:
            torch.save(state, out)
            out.flush()
            os.fsync(out.fileno())

    def writer(path):
        return dcp.FileSystemWriter(path, thread_count=threads, sync_files=True)

    result["torch.save"] = {"save": timed(save_file)}
    cache_drop(file)
    result["torch.save"]["load"] = timed(lambda: torch.load(file))
    result["torch.save"]["bytes"] = bytes_of(file)
    result["dcp"] = {"save": timed(lambda: dcp.save(state, storage_writer=writer(sharded)))}
    cache_drop(sharded)
    empty = {name: torch.empty_like(tensor) for name, tensor in state.items()}
    result["dcp"]["load"] = timed(lambda: dcp.load(empty, storage_reader=dcp.FileSystemReader(sharded)))
    result["dcp"]["bytes"] = bytes_of(sharded)
    for name, tensor in state.items():
        if not torch.equal(tensor, empty[name]):
            raise SystemExit(f"dcp brought {name} back changed")
    begin = time.perf_counter()
    future = dcp.async_save(state, storage_writer=writer(background))
    blocked = time.perf_counter() - begin
    future.result()
    result["dcp async"] = {"blocked": blocked, "save": time.perf_counter() - begin, "bytes": bytes_of(background)}
    copy = os.path.join(folder, "copy")
    cache_drop(file)
    result["cp"] = {"save": timed(lambda: subprocess.run(f"cp '{file}' '{copy}' && sync '{copy}'", shell=True, check=True)),
                    "bytes": bytes_of(copy)}
    cache_drop(copy)
    result["cp"]["load"] = timed(lambda: subprocess.run(["dd", "if=" + copy, "of=/dev/null", "bs=4M", "status=none"], check=True))
    os.unlink(copy)
    return result


def torch_main(folder, threads):
    import torch
    import torch.distributed as dist
    torch.set_num_threads(threads)
    dist.init_process_group("gloo", init_method="file://" + os.path.join(folder, "rendezvous"), rank=0, world_size=1)
    state = torch_state(folder)
    print(json.dumps({"torch": torch.__version__}), flush=True)
    for _ in sys.stdin:
        print(json.dumps(torch_round(state, folder, threads)), flush=True)
    dist.destroy_process_group()


# ---- the other side ----

def state_write(path, folder):
    """The values one after the other, and their names: what the other process needs no package for. Returns the bytes."""
    sys.path.insert(0, os.path.join(ROOT, "tests", "python"))
    import ckpt_reader
    checkpoint = ckpt_reader.Checkpoint(path)
    index = []
    with open(os.path.join(folder, "values"), "wb") as file:
        for kind in checkpoint.kinds:
            for name in checkpoint.names:
                values = checkpoint.tensor(kind, name)
                index.append((kind, name, values.shape))
                file.write(values.tobytes())
        size = file.tell()
    with open(os.path.join(folder, "index.json"), "w", encoding="ascii") as file:
        json.dump(index, file)
    return size


def trine_round(a, folder):
    text = subprocess.run([a.trine, "bench", "checkpoint", "--state", a.state, "--dir", folder, "--runs", "1", "--mb", "1000000",
                           "--threads", str(a.threads)], check=True, capture_output=True, text=True).stdout
    seconds = {line.split()[0]: float(line.split()[1]) for line in text.splitlines() if line.startswith(("save", "load"))}
    return {"save": seconds["save"], "load": seconds["load"], "bytes": bytes_of(a.state)}


def line_print(name, rounds, size):
    median = {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}
    text = f"{name:<11}"
    for key in ("save", "load"):
        text += f"  {key} {median[key]:8.3f} s {size * 1e-9 / median[key]:6.2f} GB/s" if key in median else " " * 28
    text += f"  {median['bytes'] / 1e6:9.1f} MB"
    if "blocked" in median:
        text += f"  the caller is blocked for {median['blocked']:.3f} s"
    print(text, flush=True)
    return median


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="a Python that has PyTorch")
    parser.add_argument("--state", required=True, help="a checkpoint's folder, step-N")
    parser.add_argument("--dir", default=".", help="folder on the disk to be measured")
    parser.add_argument("--trine", default=os.path.join(ROOT, "build", "trine"))
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5)
    a = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="checkpoint-rival-", dir=os.path.abspath(a.dir)) as folder:
        size = state_write(a.state, folder)
        child = subprocess.Popen([a.python, os.path.abspath(__file__), "--torch-process", folder, str(a.threads)],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        version = json.loads(child.stdout.readline())["torch"]
        rounds = {}
        for _ in range(a.rounds):
            child.stdin.write("round\n")
            child.stdin.flush()
            one = json.loads(child.stdout.readline())
            one["trine"] = trine_round(a, folder)
            for name, result in one.items():
                rounds.setdefault(name, []).append(result)
        child.stdin.close()
        child.wait()
    print(f"{size / 1e6:.1f} MB of fp32 values, {a.threads} threads, PyTorch {version}, medians of {a.rounds}")
    medians = {name: line_print(name, rounds[name], size) for name in ("trine", "torch.save", "dcp", "dcp async", "cp")}
    print(json.dumps({"torch": version, "state_bytes": size, "threads": a.threads, "rounds": a.rounds, **medians}))


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] == "--torch-process":
        torch_main(sys.argv[2], int(sys.argv[3]))
    else:
        main()
