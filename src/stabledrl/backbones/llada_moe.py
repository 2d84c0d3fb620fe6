"""LLaDA-MoE-7B-A1B (arXiv:2509.24389): a bidirectional Qwen3 with experts whose router does not normalise."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from transformers import Qwen3MoeConfig

from stabledrl.backbones.key_names import split_experts
from stabledrl.backbones.translation import PublishedBackbone, fields, require, rope
from stabledrl.errors import UserInputError


class LladaMoe(PublishedBackbone):
    """LLaDA with experts."""

    family = "llada_moe"
    mask_token_id = 156895
    end_token_id = 156892
    end_of_turn = "<|role_end|>"

    def published(self, config: dict[str, Any]) -> bool:
        """Whether config.json is LLaDA-MoE's, under either of the two model types it was published with."""
        return config.get("model_type") in ("lladamoe", "llada") and "expert_intermediate_size" in config

    def native_config(self, config: dict[str, Any]) -> Qwen3MoeConfig:
        """Translates config.json; see `PublishedBackbone.native_config`."""
        require(
            config,
            {
                "attention_bias": False,
                "moe_router_enable_expert_bias": False,
                "moe_router_score_function": "softmax",
                "partial_rotary_factor": 1,
                "qk_layernorm": True,
                "shared_expert_intermediate_size": None,
            },
        )
        if not all(config.get("moe_layer_freq") or [1]):
            raise UserInputError(
                f"moe_layer_freq {config['moe_layer_freq']!r} is not supported, only experts throughout"
            )
        same = [
            "vocab_size",
            "hidden_size",
            "num_experts",
            "num_experts_per_tok",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "max_position_embeddings",
            "rms_norm_eps",
            "tie_word_embeddings",
        ]
        sizes = fields(config, [*same, "dense_intermediate_size", "expert_intermediate_size"])
        head: dict[str, Any] = {"head_dim": sizes["hidden_size"] // sizes["num_attention_heads"]}
        return Qwen3MoeConfig(
            **fields(config, same),
            intermediate_size=sizes["dense_intermediate_size"],
            moe_intermediate_size=sizes["expert_intermediate_size"],
            **head,
            hidden_act=config.get("hidden_act", "silu"),
            norm_topk_prob=False,
            decoder_sparse_step=1,
            mlp_only_layers=[],
            rope_parameters=rope(config),
            bos_token_id=None,
            pad_token_id=None,
        )

    def source_weights(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Weights under the published names: a matrix per expert."""
        return split_experts(weights)
