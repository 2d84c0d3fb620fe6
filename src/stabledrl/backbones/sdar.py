"""SDAR (1.7B, 4B, 8B; arXiv:2510.06303) and TraDo, its reinforcement-learned models: a block-causal Qwen3."""

from typing import Any

from transformers import Qwen3Config

from stabledrl.backbones.translation import PublishedBackbone, fields, require, rope


class Sdar(PublishedBackbone):
    """SDAR with dense layers."""

    family = "sdar"
    mask_token_id = 151669  # <|MASK|>
    end_token_id = 151643  # <|endoftext|>
    end_of_turn = "<|im_end|>"
    block_size = 4

    def published(self, config: dict[str, Any]) -> bool:
        """Whether config.json is SDAR's."""
        return config.get("model_type") == "sdar"

    def native_config(self, config: dict[str, Any]) -> Qwen3Config:
        """Translates config.json; see `PublishedBackbone.native_config`."""
        require(config, {"use_sliding_window": False})
        same = [
            "vocab_size",
            "hidden_size",
            "intermediate_size",
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
        return Qwen3Config(**fields(config, same), rope_parameters=rope(config), bos_token_id=None, pad_token_id=None)
