"""Settings for all tests: no hub access, one thread, a fixed seed for what uses global state."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
