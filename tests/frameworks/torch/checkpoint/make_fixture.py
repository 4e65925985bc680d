#!/usr/bin/env python3
"""Writes python.safetensors, which tests read: made once, with PyPI's safetensors (0.8.0).

    python3 make_fixture.py python.safetensors
"""
import sys

import torch
from safetensors.torch import save_file

tensors = {
    "conv1.weight": torch.arange(24, dtype=torch.float32).reshape(2, 3, 2, 2) / 8,
    "bn1.num_batches_tracked": torch.tensor(7),
    "bn1.running_mean": torch.tensor([0.5, -2.0], dtype=torch.float64),
    "half": torch.tensor([1.5, -0.25], dtype=torch.float16),
    "bfloat": torch.tensor([1.5, -3.0, 65536.0], dtype=torch.bfloat16),
    "bytes": torch.tensor([0, 255, 7], dtype=torch.uint8),
    "flags": torch.tensor([[True], [False]]),
    "empty": torch.zeros(0, 3),
    "Grösse": torch.tensor([-5, 6], dtype=torch.int32),
}
save_file(tensors, sys.argv[1], metadata={"format": "pt"})
