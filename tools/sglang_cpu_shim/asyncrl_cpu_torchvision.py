"""Lets SGLang import torchvision where there is no GPU.

PyPI's torchvision is built for CUDA, its extension can't be loaded beside a CPU build of torch, and then two operator schemas are missing
that its import looks for. They are declared just before torchvision is imported; nothing here calls them.
"""

from __future__ import annotations

import sys
from typing import Any

kept: list[Any] = []  # the library ends with its last reference


class _DeclareOperators:
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name != "torchvision":
            return
        sys.meta_path.remove(self)
        import torch

        library = torch.library.Library("torchvision", "FRAGMENT")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        kept.append(library)


sys.meta_path.insert(0, _DeclareOperators())
