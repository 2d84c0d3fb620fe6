"""Settings for all tests: no hub access, one thread, a fixed seed for what uses global state."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
# How long an example takes says more about what else the machine does than about the code.
settings.register_profile("stabledrl", deadline=None)
settings.load_profile("stabledrl")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
