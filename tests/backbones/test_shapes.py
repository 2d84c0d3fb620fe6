"""Sizes of models, told before their weights are read."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tests.backbones.golden import GOLDEN, Golden

from stabledrl.backbones import NewPolicy, load_policy, loading, shapes
from stabledrl.backbones.shapes import known_configs, model_shape
from stabledrl.errors import UserInputError
from stabledrl.export import export_policy
from stabledrl.sharding import decoder_layers

CONFIGS = Path(__file__).parents[2] / "configs" / "backbone"
PUBLISHED = {
    "GSAI-ML/LLaDA-8B-Instruct": 8_015_581_184,
    "JetLM/SDAR-8B-Chat": 8_190_735_360,
    "Dream-org/Dream-v0-Instruct-7B": 7_615_616_512,
    "JetLM/SDAR-30B-A3B-Chat": 30_532_122_624,
}
ROUNDED = {"inclusionAI/LLaDA-MoE-7B-A1B-Instruct": 7, "inclusionAI/LLaDA2.0-mini": 16, "JetLM/SDAR-4B-Chat": 4}
"""Billions of parameters, as their names and model cards say."""


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture(params=GOLDEN)
def golden(request: pytest.FixtureRequest) -> Golden:
    return GOLDEN[request.param]


@pytest.mark.parametrize("hub_id", PUBLISHED)
def test_known_models_have_the_published_number_of_parameters(hub_id: str) -> None:
    assert model_shape(hub_id).parameters == PUBLISHED[hub_id]


@pytest.mark.parametrize("hub_id", ROUNDED)
def test_known_models_have_about_the_parameters_that_they_are_named_for(hub_id: str) -> None:
    assert int(model_shape(hub_id).parameters / 1e9) == ROUNDED[hub_id]


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.yaml")), ids=lambda file: file.stem)
def test_every_shipped_backbone_is_known_without_network(file: Path) -> None:
    policy = yaml.safe_load(file.read_text())["model"]["init_args"]["policy"]
    assert model_shape(policy).parameters > 1e9


def test_a_known_id_at_a_revision_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(shapes, "read_config", lambda *given: asked.append(given) or GOLDEN["llada"].config())
    assert model_shape("GSAI-ML/LLaDA-8B-Instruct", revision="abc").layers == 3
    assert asked == [("GSAI-ML/LLaDA-8B-Instruct", "abc")]


def test_the_shape_is_that_of_the_loaded_model(golden: Golden) -> None:
    shape, policy = model_shape(str(golden.path), golden.options.get("block_size")), golden.load()
    model: Any = policy.model
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    layers = [sum(parameter.numel() for parameter in layer.parameters()) for layer in decoder_layers(model)]
    assert (shape.layers, shape.layer_parameters) == (len(layers), max(layers))
    assert shape.outer_parameters == shape.parameters - sum(layers)
    assert (shape.family, shape.block_size) == (policy.family, policy.block_size)
    assert (shape.vocabulary, shape.hidden_size) == tuple(model.get_output_embeddings().weight.shape)
    cache = policy.new_cache()
    mask = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    policy.logits(torch.zeros(1, 4, dtype=torch.int64), mask, position_ids=torch.arange(4)[None], cache=cache)
    _, heads, _, width = cache.layers[0].keys.shape
    assert shape.key_width == heads * width


def test_saved_models_of_a_family_and_native_ones_have_the_same_shape(golden: Golden, tmp_path: Path) -> None:
    saved = export_policy(golden.load(), tmp_path / "saved")
    assert model_shape(str(saved)) == model_shape(str(golden.path), golden.options.get("block_size"))
    made = NewPolicy(hidden_size=16, num_layers=2, num_heads=2, intermediate_size=24, block_size=4).build()
    shape = model_shape(str(export_policy(made, tmp_path / "native")))
    assert (shape.family, shape.block_size, shape.dense_width) == ("native", 4, 24)
    assert shape.parameters == sum(parameter.numel() for parameter in made.parameters())


def test_no_weight_is_read(golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "load_model", lambda *_, **__: pytest.fail("weights were read"))
    (tmp_path / "config.json").write_text(json.dumps(golden.config()))
    assert model_shape(str(tmp_path)).parameters > 0


@pytest.mark.parametrize(
    ("path", "block_size", "told"),
    [
        ("some/model", None, "no model at 'some/model': expected a directory with a config.json"),
        ("absent", None, "no model at 'absent'"),
        ("GSAI-ML/LLaDA-8B-Instruct", 4, "full-attention model"),
        ("JetLM/SDAR-8B-Chat", 0, "block_size 0"),
    ],
)
def test_what_has_no_shape_is_refused(path: str, block_size: int | None, told: str) -> None:
    with pytest.raises(UserInputError, match=told):
        model_shape(path, block_size)


def test_an_unknown_family_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(UserInputError, match=r"not known before its weights are read \(model_type 'gpt2'\)"):
        model_shape(str(tmp_path))


def test_known_configs_are_those_that_loading_understands() -> None:
    for hub_id, config in known_configs().items():
        matching = [one for one in loading.available_backbones() if one.matches(config)]
        assert len(matching) == 1, hub_id


def test_linear_widths_count_every_matrix_but_the_head() -> None:
    policy = load_policy(GOLDEN["sdar"].path)
    head = policy.model.get_output_embeddings()
    linear = [part for part in policy.model.modules() if isinstance(part, torch.nn.Linear) and part is not head]
    widths = model_shape(str(GOLDEN["sdar"].path)).linear_widths
    assert sum(widths.values()) == sum(layer.in_features + layer.out_features for layer in linear)
    assert "lm_head" not in widths
