"""Writes safetensors files tensor by tensor, so that no second copy of a model is ever in memory.

The format: the header's length as uint64 little endian, a JSON header {name: {dtype, shape, data_offsets}}, then the raw bytes in order.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Layout:
    """Which tensor goes into which file. `files` maps a file's name to its tensors, in the order in which they are written."""

    files: Mapping[str, tuple[str, ...]]
    num_bytes: int

    @classmethod
    def of(cls, shapes: Shapes, dtype: torch.dtype, shard_bytes: int) -> Layout:
        """Cut a model into files of at most `shard_bytes` (a larger tensor has a file of its own), named as Hugging Face names them."""
        parts: list[list[str]] = [[]]
        filled = total = 0
        for name, shape in shapes.items():
            size = math.prod(shape) * dtype.itemsize
            if parts[-1] and filled + size > shard_bytes:
                parts.append([])
                filled = 0
            parts[-1].append(name)
            filled += size
            total += size
        if len(parts) == 1:
            return cls({"model.safetensors": tuple(parts[0])}, total)
        names = [f"model-{index:05d}-of-{len(parts):05d}.safetensors" for index in range(1, len(parts) + 1)]
        return cls({name: tuple(part) for name, part in zip(names, parts, strict=True)}, total)

    def index(self) -> bytes:
        """Return the content of `model.safetensors.index.json`."""
        weight_map = {tensor: file for file, tensors in self.files.items() for tensor in tensors}
        return json.dumps({"metadata": {"total_size": self.num_bytes}, "weight_map": weight_map}, indent=2).encode()


def header(names: tuple[str, ...], shapes: Shapes, dtype: torch.dtype) -> bytes:
    """Return a file's header with its length in front, padded to 8 bytes."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        start, end = end, end + math.prod(shapes[name]) * dtype.itemsize
        entries[name] = {"dtype": _DTYPES[dtype], "shape": list(shapes[name]), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write_file(path: Path, names: tuple[str, ...], shapes: Shapes, dtype: torch.dtype, tensors: Iterator[Tensor]) -> None:
    """Write one file, taking from `tensors` as many as it has names. Raises OSError."""
    with path.open("wb") as file:
        file.write(header(names, shapes, dtype))
        for _ in names:
            _write(file, next(tensors))


def _write(file: BinaryIO, tensor: Tensor) -> None:
    if tensor.numel():
        file.write(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
