#!/usr/bin/env python3
"""A second reader of Trine's checkpoints, written from docs/checkpoint-format.md alone: what that page says is enough.

    ckpt_reader.py hash STEP_DIR                 lines KIND NAME HASH as `trine ckpt show --hash` prints them
    ckpt_reader.py values STEP_DIR KIND NAME     the tensor's fp32 values, row-major, little-endian, to stdout

Everything that the page promises is checked on the way: sizes, zeros, hashes, places, and that every element of every
tensor is there exactly once. Ends with 1 and a line on stderr when something is wrong. As a module: Checkpoint(folder).
"""

import json
import os
import re
import struct
import sys

import numpy
import xxhash
import zstandard

KINDS = ("master", "m", "v")
MOST_CHUNK = 67108864


class Damaged(Exception):
    pass


def require(condition, where, what):
    if not condition:
        raise Damaged(f"{where}: {what}")


def digest(data):
    """Binary hash: the low 64 bits first, each half little-endian; the library gives the high half first, big-endian."""
    return xxhash.xxh3_128_digest(data)[::-1]


def digest_text(data):
    return xxhash.xxh3_128_hexdigest(data)


def planes_decode(stored, num_values, where):
    require(len(stored) >= 16, where, "a chunk too short for its sizes")
    sizes = struct.unpack_from("<4I", stored)
    planes, at = [], 16
    for size in sizes:
        plane = stored[at:at + size]
        require(len(plane) == size and size <= num_values, where, "a plane of impossible size")
        if size < num_values:
            plane = zstandard.ZstdDecompressor().decompress(plane, max_output_size=num_values)
        require(len(plane) == num_values, where, "a plane of another size than its chunk")
        planes.append(numpy.frombuffer(plane, numpy.uint8).astype(numpy.uint32))
        at += size
    require(at == len(stored), where, "bytes behind the last plane")
    bits = planes[0] << 24 | planes[1] << 16 | planes[2] << 8 | planes[3]
    return (bits >> 1 | bits << 31).view(numpy.float32)


class Box:
    def __init__(self, row, where):
        self.tensor, self.kind, dims, element = struct.unpack_from("<IBBH", row)
        start, extent = struct.unpack_from("<3Q", row, 8), struct.unpack_from("<3Q", row, 32)
        self.first_chunk, self.num_chunks = struct.unpack_from("<2I", row, 56)
        require(self.kind < 3 and dims in (1, 2) and element == 1, where, "a box of unknown kind")
        require(not any(start[dims:]) and not any(extent[dims:]) and all(extent[:dims]), where, "a box of impossible size")
        self.slices = tuple(slice(s, s + e) for s, e in zip(start[:dims], extent[:dims]))
        self.shape = extent[:dims]
        self.volume = 1
        for e in self.shape:
            self.volume *= e


class Shard:
    """One shard-NNNNN.bin, held in memory."""

    def __init__(self, path, entry):
        self.path = path
        with open(path, "rb") as file:
            self.data = data = file.read()
        require(len(data) == entry["bytes"], path, "another size than in the manifest")
        require(digest_text(data) == entry["hash"], path, "the hash of the file differs")
        header, trailer = data[:64], data[-64:]
        require(header[:8] == b"TRSHARD\n" and trailer[:8] == b"TRSHEND\n", path, "no shard")
        version, num_boxes, num_chunks, self.chunk_bytes = struct.unpack_from("<4I", header, 8)
        require(version == 1 and not any(header[24:]), path, "another version")
        require(0 < self.chunk_bytes <= MOST_CHUNK and self.chunk_bytes % 4 == 0, path, "impossible chunk size")
        table, table_bytes, file_bytes, raw_bytes, zero = struct.unpack_from("<5Q", trailer, 8)
        require(table_bytes == 64 * num_boxes + 40 * num_chunks and file_bytes == len(data) and zero == 0 and
                table + table_bytes + 64 == len(data), path, "trailer and file do not agree")
        tables = data[table:table + table_bytes]
        table_hash = digest(header + tables + trailer[:48])
        require(trailer[48:] == table_hash and table_hash[::-1].hex() == entry["table_hash"], path,
                "the hash of the tables differs")
        self.boxes = [Box(tables[64 * i:64 * i + 64], path) for i in range(num_boxes)]
        self.chunks = [struct.unpack_from("<Q4I16s", tables, 64 * num_boxes + 40 * i) for i in range(num_chunks)]
        self.check(table, raw_bytes)

    def check(self, table, raw_bytes):
        next_chunk, offset, raw_sum = 0, 64, 0
        for box in self.boxes:
            require(box.first_chunk == next_chunk and box.num_chunks == -(-4 * box.volume // self.chunk_bytes), self.path,
                    "a box with other chunks than its size needs")
            left = 4 * box.volume
            for place, raw, stored, codec, zero, _ in self.chunks[next_chunk:next_chunk + box.num_chunks]:
                require(place == offset and raw == min(left, self.chunk_bytes) and zero == 0, self.path, "a chunk out of place")
                require(stored == raw if codec == 0 else codec == 1 and 0 < stored < raw, self.path, "a chunk of unknown codec")
                offset, left, raw_sum = offset + stored, left - raw, raw_sum + raw
            next_chunk += box.num_chunks
        require(next_chunk == len(self.chunks) and offset == table and raw_sum == raw_bytes, self.path,
                "boxes, chunks and file do not agree")

    def values(self, box):
        parts = []
        for place, raw, stored, codec, _, recorded in self.chunks[box.first_chunk:box.first_chunk + box.num_chunks]:
            data = self.data[place:place + stored]
            require(digest(data) == recorded, self.path, f"the hash of the chunk at byte {place} differs")
            parts.append(planes_decode(data, raw // 4, self.path) if codec == 1 else numpy.frombuffer(data, "<f4"))
        return numpy.concatenate(parts).reshape(box.shape)


class Checkpoint:
    """manifest: the document. tensor(kind, name): its values. kinds, names: what there is, without tied tensors."""

    def __init__(self, folder):
        path = os.path.join(folder, "manifest.json")
        with open(path, "rb") as file:
            data = file.read()
        require(re.fullmatch(rb"[0-9a-f]{32}\n", data[-33:]), path, "the last line is no hash")
        require(digest_text(data[:-33]).encode() == data[-33:-1], path, "the hash in its last line differs")
        self.manifest = json.loads(data[:-33])
        require(self.manifest["format"] == "trine checkpoint" and self.manifest["version"] == 1, path, "another format")
        self.kinds = [k for k in KINDS if k in self.manifest["kinds"]]
        self.params = self.manifest["params"]
        self.names = [p["name"] for p in self.params if "tied_to" not in p]
        self.boxes = {}
        last = (0, "")
        for entry in self.manifest["files"]:
            name = entry["name"]
            require(re.fullmatch(r"shard-[0-9]{5,}\.bin", name) and (len(name), name) > last, path, "names of files")
            last = (len(name), name)
            shard = Shard(os.path.join(folder, name), entry)
            for box in shard.boxes:
                require(box.tensor < len(self.params), shard.path, "a box of no tensor")
                self.boxes.setdefault((box.tensor, KINDS[box.kind]), []).append((shard, box))
        known = {(i, kind) for i, p in enumerate(self.params) if "tied_to" not in p for kind in self.kinds}
        require(set(self.boxes) == known, folder, "the tensors in the files are not those of the manifest")

    def tensor(self, kind, name):
        index = [p["name"] for p in self.params].index(name)
        values = numpy.zeros(self.params[index]["shape"], numpy.float32)
        seen = numpy.zeros(values.shape, numpy.uint8)
        for shard, box in self.boxes[index, kind]:
            require(len(box.slices) == values.ndim and seen[box.slices].shape == tuple(box.shape), shard.path,
                    f"a box that is not inside {name}")
            values[box.slices] = shard.values(box)
            seen[box.slices] += 1
        require((seen == 1).all(), name, "some elements are not there exactly once")
        return values


def main(arguments):
    if len(arguments) == 2 and arguments[0] == "hash":
        checkpoint = Checkpoint(arguments[1])
        for kind in sorted(checkpoint.kinds):
            for name in sorted(checkpoint.names):
                print(kind, name, digest_text(checkpoint.tensor(kind, name).tobytes()))
    elif len(arguments) == 4 and arguments[0] == "values":
        sys.stdout.buffer.write(Checkpoint(arguments[1]).tensor(*arguments[2:]).tobytes())
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (Damaged, OSError, zstandard.ZstdError) as error:
        sys.exit(f"error: {error}")
