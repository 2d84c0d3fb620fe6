"""Dream-7B (arXiv:2508.15487) and DiffuCoder (arXiv:2506.20639): a bidirectional Qwen2 that predicts the next token."""

from typing import Any

from transformers import Qwen2Config, Qwen2Tokenizer

from stabledrl.backbones.translation import PublishedBackbone, fields, require, rope


class Dream(PublishedBackbone):
    """Dream: made from an autoregressive model, it kept that model's shift: its logits at i are of token i + 1."""

    family = "dream"
    mask_token_id = 151666  # <|mask|>
    end_token_id = 151643  # <|endoftext|>
    end_of_turn = "<|im_end|>"
    shifted = True
    # The published tokenizer_config.json asks for remote code; this class reads the same files.
    tokenizer_class = Qwen2Tokenizer

    def published(self, config: dict[str, Any]) -> bool:
        """Whether config.json is Dream's."""
        return config.get("model_type") == "Dream"

    def native_config(self, config: dict[str, Any]) -> Qwen2Config:
        """Translates config.json; see `PublishedBackbone.native_config`."""
        require(config, {"use_sliding_window": False, "use_mrope": False})
        same = [
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "hidden_act",
            "max_position_embeddings",
            "rms_norm_eps",
            "tie_word_embeddings",
        ]
        return Qwen2Config(**fields(config, same), rope_parameters=rope(config), bos_token_id=None, pad_token_id=None)
