"""LLaDA (LLaDA-8B, LLaDA-1.5; arXiv:2502.09992): a bidirectional Llama under OLMo's names."""

from typing import Any

from transformers import LlamaConfig

from stabledrl.backbones.translation import PublishedBackbone, fields, require, rope

_BLOCK, _LAYER = "model.transformer.blocks.{}.", "model.layers.{}."


class Llada(PublishedBackbone):
    """LLaDA with dense layers. The embedding has more rows than the tokenizer has tokens."""

    family = "llada"
    mask_token_id = 126336  # <|mdm_mask|>
    end_token_id = 126081  # <|endoftext|>
    end_of_turn = "<|eot_id|>"
    names = {
        "model.embed_tokens.weight": "model.transformer.wte.weight",
        "model.norm.weight": "model.transformer.ln_f.weight",
        "lm_head.weight": "model.transformer.ff_out.weight",
        _LAYER + "input_layernorm.weight": _BLOCK + "attn_norm.weight",
        _LAYER + "self_attn.q_proj.weight": _BLOCK + "q_proj.weight",
        _LAYER + "self_attn.k_proj.weight": _BLOCK + "k_proj.weight",
        _LAYER + "self_attn.v_proj.weight": _BLOCK + "v_proj.weight",
        _LAYER + "self_attn.o_proj.weight": _BLOCK + "attn_out.weight",
        _LAYER + "post_attention_layernorm.weight": _BLOCK + "ff_norm.weight",
        _LAYER + "mlp.gate_proj.weight": _BLOCK + "ff_proj.weight",
        _LAYER + "mlp.up_proj.weight": _BLOCK + "up_proj.weight",
        _LAYER + "mlp.down_proj.weight": _BLOCK + "ff_out.weight",
    }

    def published(self, config: dict[str, Any]) -> bool:
        """Whether config.json is LLaDA's: LLaDA-MoE has the same model type but not `d_model`."""
        return config.get("model_type") == "llada" and "d_model" in config

    def native_config(self, config: dict[str, Any]) -> LlamaConfig:
        """Translates config.json; see `PublishedBackbone.native_config`."""
        require(
            config,
            {
                "activation_type": "silu",
                "alibi": False,
                "attention_layer_norm": False,
                "block_type": "llama",
                "include_bias": False,
                "include_qkv_bias": False,
                "input_emb_norm": False,
                "layer_norm_type": "rms",
                "rope": True,
                "scale_logits": False,
            },
        )
        sizes = fields(config, ["d_model", "mlp_hidden_size", "n_heads", "n_layers", "embedding_size", "rms_norm_eps"])
        return LlamaConfig(
            vocab_size=sizes["embedding_size"],
            hidden_size=sizes["d_model"],
            intermediate_size=sizes["mlp_hidden_size"],
            num_hidden_layers=sizes["n_layers"],
            num_attention_heads=sizes["n_heads"],
            num_key_value_heads=config.get("n_kv_heads") or sizes["n_heads"],
            max_position_embeddings=fields(config, ["max_sequence_length"])["max_sequence_length"],
            rms_norm_eps=sizes["rms_norm_eps"],
            rope_parameters=rope(config),
            tie_word_embeddings=config.get("weight_tying", False),
            attention_bias=False,
            bos_token_id=None,
            pad_token_id=None,
        )
