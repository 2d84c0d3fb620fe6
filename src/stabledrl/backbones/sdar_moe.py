"""SDAR-30B-A3B (arXiv:2510.06303): a block-causal Qwen3 with experts."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from transformers import Qwen3MoeConfig

from stabledrl.backbones.key_names import split_experts
from stabledrl.backbones.translation import PublishedBackbone, fields, require, rope


class SdarMoe(PublishedBackbone):
    """SDAR with experts. Its config.json names no mask token."""

    family = "sdar_moe"
    mask_token_id = 151669  # <|MASK|>
    end_token_id = 151643  # <|endoftext|>
    end_of_turn = "<|im_end|>"
    block_size = 4

    def published(self, config: dict[str, Any]) -> bool:
        """Whether config.json is that of SDAR with experts."""
        return config.get("model_type") == "sdar_moe"

    def native_config(self, config: dict[str, Any]) -> Qwen3MoeConfig:
        """Translates config.json; see `PublishedBackbone.native_config`."""
        require(config, {"use_sliding_window": False})
        same = [
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "moe_intermediate_size",
            "num_experts",
            "num_experts_per_tok",
            "norm_topk_prob",
            "decoder_sparse_step",
            "mlp_only_layers",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "hidden_act",
            "max_position_embeddings",
            "rms_norm_eps",
            "tie_word_embeddings",
            "attention_bias",
        ]
        return Qwen3MoeConfig(
            **fields(config, same), rope_parameters=rope(config), bos_token_id=None, pad_token_id=None
        )

    def source_weights(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Weights under the published names: a matrix per expert."""
        return split_experts(weights)
