"""A small model in memory and as a directory."""

import shutil
from pathlib import Path

import pytest

from stabledrl.backbones import NewPolicy, Policy
from stabledrl.export import export_policy


@pytest.fixture(scope="module")
def policy() -> Policy:
    return NewPolicy(
        hidden_size=16, num_layers=2, num_heads=2, intermediate_size=16, initializer_range=0.3, seed=1
    ).build()


@pytest.fixture(scope="module")
def saved(policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_policy(policy, tmp_path_factory.mktemp("models") / "saved")


@pytest.fixture
def directory(saved: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(saved, tmp_path / "model"))
