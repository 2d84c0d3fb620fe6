"""LLaDA2.0-mini and LLaDA2.1-mini (arXiv:2512.15745): block-causal Ling models, which are GLM-4 with experts."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import SarvamMoEConfig

from stabledrl.backbones.key_names import rename, split_experts
from stabledrl.backbones.translation import PublishedBackbone, fields, require, rope

_LAYER = "model.layers.{}."
_NAMES = {
    "model.embed_tokens.weight": "model.word_embeddings.weight",
    _LAYER + "self_attn.o_proj.weight": _LAYER + "attention.dense.weight",
    _LAYER + "self_attn.q_norm.weight": _LAYER + "attention.query_layernorm.weight",
    _LAYER + "self_attn.k_norm.weight": _LAYER + "attention.key_layernorm.weight",
    _LAYER + "mlp.gate.e_score_correction_bias": _LAYER + "mlp.gate.expert_bias",
}


class Llada2(PublishedBackbone):
    """LLaDA 2 with experts.

    transformers knows the Ling layout under the name of Sarvam, and renames and splits its tensors when it loads them;
    only the way back is here.
    """

    family = "llada2"
    mask_token_id = 156895
    end_token_id = 156892
    end_of_turn = "<|role_end|>"
    block_size = 32

    def published(self, config: dict[str, Any]) -> bool:
        """Whether config.json is that of LLaDA 2."""
        return config.get("model_type") == "llada2_moe"

    def native_config(self, config: dict[str, Any]) -> SarvamMoEConfig:
        """Translates config.json; see `PublishedBackbone.native_config`."""
        require(
            config,
            {
                "moe_router_enable_expert_bias": True,
                "norm_head": False,
                "score_function": "sigmoid",
                "use_bias": False,
                "use_qk_norm": True,
                "use_qkv_bias": False,
                "use_rmsnorm": True,
                "use_sliding_window": False,
            },
        )
        same = [
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "moe_intermediate_size",
            "num_experts_per_tok",
            "norm_topk_prob",
            "n_group",
            "topk_group",
            "first_k_dense_replace",
            "routed_scaling_factor",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "hidden_act",
            "max_position_embeddings",
            "rms_norm_eps",
            "tie_word_embeddings",
        ]
        experts = fields(config, ["num_experts", "num_shared_experts"])
        rotary = config.get("partial_rotary_factor", 1.0)
        return SarvamMoEConfig(
            **fields(config, same),
            n_routed_experts=experts["num_experts"],
            n_shared_experts=experts["num_shared_experts"],
            use_qk_norm=True,
            attention_bias=False,
            rope_parameters=rope(config, partial_rotary_factor=rotary),
            bos_token_id=None,
            pad_token_id=None,
        )

    def source_weights(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Weights under the published names: a matrix per expert; queries, keys and values in one."""
        found: dict[str, Tensor] = {}
        for name, tensor in split_experts(rename(weights, _NAMES)).items():
            stem, projection, _ = name.rpartition("self_attn.q_proj.weight")
            if projection:
                parts = [weights[f"{stem}self_attn.{part}_proj.weight"] for part in "qkv"]
                found[f"{stem}attention.query_key_value.weight"] = torch.cat(parts)
            elif not name.endswith(("self_attn.k_proj.weight", "self_attn.v_proj.weight")):
                found[name] = tensor
        return found
