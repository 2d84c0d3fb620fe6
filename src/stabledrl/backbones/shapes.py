"""The size of a model, before any weight is read: from its config.json, or from what is known of published ones.

`published_shapes.json` holds the architecture fields of the config.json of public models, so that the size of a run can
be told without a network. Their parameter counts are the published ones (tests/backbones/test_shapes.py).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from stabledrl.backbones.loading import available_backbones, load_config, read_config
from stabledrl.backbones.native import Native
from stabledrl.backbones.translation import PublishedBackbone
from stabledrl.errors import UserInputError
from stabledrl.protocols import Backbone
from stabledrl.sharding import decoder_layers


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """What the memory of a model depends on. Numbers of parameters are counted on the model, on the meta device.

    Attributes:
        family: Name of the backbone family.
        block_size: Tokens per block of a block-causal model; None for bidirectional attention.
        parameters: All of them.
        layer_parameters: Those of the largest layer.
        outer_parameters: Those of no layer: embedding, last norm, head.
        layers: Decoder layers.
        hidden_size: Width of the residual stream.
        query_width: Heads times width of a head.
        key_width: Width of the keys, and of the values, that a cache holds: their heads times width of a head.
        normalizes_queries: Whether queries and keys are normalised.
        dense_width: Width of the feed-forward layers without experts; 0 where all have experts.
        expert_width: Width of an expert; 0 without.
        experts_per_token: How many experts see a token.
        shared_width: Width of the experts that see every token, together.
        vocabulary: Rows of the head.
        linear_widths: Inputs plus outputs of the layers' matrices, all that have one name together.
    """

    family: str
    block_size: int | None
    parameters: int
    layer_parameters: int
    outer_parameters: int
    layers: int
    hidden_size: int
    query_width: int
    key_width: int
    normalizes_queries: bool
    dense_width: int
    expert_width: int
    experts_per_token: int
    shared_width: int
    vocabulary: int
    linear_widths: Mapping[str, int]


def model_shape(path: str, block_size: int | None = None, revision: str | None = None) -> ModelShape:
    """Reads the shape of a model. No weight is read, and no network is needed for a directory or a known hub id.

    Args:
        path: Model directory or hub id.
        block_size: Tokens per block of a block-causal model; None takes the model's own.
        revision: Branch, tag or commit of a hub id.

    Returns:
        The shape.

    Raises:
        UserInputError: There is no such model, its family is unknown, or its config.json cannot be used.
    """
    known = None if revision is not None else known_configs().get(path)
    config = read_config(path, revision) if known is None else known
    backbone = next((found for found in available_backbones() if found.matches(config)), None)
    native, blocks = _native(backbone, path, config, block_size)
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(native, attn_implementation="sdpa", trust_remote_code=False)
    except Exception as error:
        raise UserInputError(f"cannot use config.json of {path!r}: {' '.join(str(error).split())[:300]}") from error
    assert backbone is not None
    return _measure(model, backbone.family, blocks)


def known_configs() -> dict[str, dict[str, Any]]:
    """Architecture fields of public models' config.json by hub id."""
    text = (resources.files("stabledrl.backbones") / "published_shapes.json").read_text(encoding="utf-8")
    entries: list[dict[str, Any]] = json.loads(text)["models"]
    return {hub_id: entry["config"] for entry in entries for hub_id in entry["hub_ids"]}


def _native(
    backbone: Backbone | None, path: str, config: dict[str, Any], block_size: int | None
) -> tuple[PreTrainedConfig, int | None]:
    """The config of transformers' class and the size of a block."""
    if isinstance(backbone, PublishedBackbone):
        return backbone.config_of(path, config), backbone.block_size_of(path, config, block_size)
    if isinstance(backbone, Native):
        return load_config(path), config.get("block_length")
    kind = f"family {backbone.family!r}" if backbone else f"model_type {config.get('model_type')!r}"
    raise UserInputError(f"the shape of {path!r} is not known before its weights are read ({kind})")


def _measure(model: PreTrainedModel, family: str, block_size: int | None) -> ModelShape:
    config: Any = model.config
    layers = decoder_layers(model)
    sizes = [sum(parameter.numel() for parameter in layer.parameters()) for layer in layers]
    total = sum(parameter.numel() for parameter in model.parameters())
    with_experts = [hasattr(layer.mlp, "experts") for layer in layers]
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    expert_width = config.moe_intermediate_size if any(with_experts) else 0
    return ModelShape(
        family=family,
        block_size=block_size,
        parameters=total,
        layer_parameters=max(sizes),
        outer_parameters=total - sum(sizes),
        layers=len(layers),
        hidden_size=config.hidden_size,
        query_width=config.num_attention_heads * head_dim,
        key_width=(config.num_key_value_heads or config.num_attention_heads) * head_dim,
        normalizes_queries=any(hasattr(layer.self_attn, "q_norm") for layer in layers),
        dense_width=0 if all(with_experts) else config.intermediate_size,
        expert_width=expert_width,
        experts_per_token=config.num_experts_per_tok if expert_width else 0,
        shared_width=expert_width * (getattr(config, "n_shared_experts", None) or 0),
        vocabulary=config.vocab_size,
        linear_widths=_linear_widths(model),
    )


def _linear_widths(model: PreTrainedModel) -> dict[str, int]:
    widths: dict[str, int] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear) and layer is not model.get_output_embeddings():
            short = name.rpartition(".")[2]
            widths[short] = widths.get(short, 0) + layer.in_features + layer.out_features
    return widths
