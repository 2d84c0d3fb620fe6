"""configs/backbone: each file names a model and nothing else, so that it layers over any other file."""

from pathlib import Path

import pytest
import yaml
from huggingface_hub.utils import validate_repo_id

FILES = sorted((Path(__file__).parents[2] / "configs" / "backbone").glob("*.yaml"))


def test_there_are_files() -> None:
    assert FILES


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_file_names_a_hub_id_and_nothing_else(file: Path) -> None:
    content = yaml.safe_load(file.read_text())
    policy = content["model"]["init_args"]["policy"]
    assert content == {"model": {"init_args": {"policy": policy}}}
    assert policy.count("/") == 1
    validate_repo_id(policy)
    assert f"-c configs/backbone/{file.name}" in file.read_text()
