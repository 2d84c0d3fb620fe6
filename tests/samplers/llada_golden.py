"""The tiny LLaDA checkpoint and what was recorded from the method's public release on it."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from stabledrl.diffusion.attention import bidirectional_mask, positions_from_mask
from stabledrl.types import Vocabulary

_CASES = Path(__file__).parents[1] / "cases"
_KEYS = {
    r"^model\.transformer\.wte": "model.embed_tokens",
    r"^model\.transformer\.ln_f": "model.norm",
    r"^model\.transformer\.ff_out": "lm_head",
    r"^model\.transformer\.blocks": "model.layers",
    "attn_norm": "input_layernorm",
    "ff_norm": "post_attention_layernorm",
    r"\.q_proj": ".self_attn.q_proj",
    r"\.k_proj": ".self_attn.k_proj",
    r"\.v_proj": ".self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    r"\.ff_proj": ".mlp.gate_proj",
    r"\.up_proj": ".mlp.up_proj",
    r"\.ff_out": ".mlp.down_proj",
}


def load_golden() -> dict[str, Tensor]:
    return load_file(_CASES / "llada_training" / "cases.safetensors")


def golden_vocabulary() -> Vocabulary:
    meta = json.loads((_CASES / "llada_training" / "meta.json").read_text())
    return Vocabulary(
        mask_token_id=meta["mask_token_id"],
        pad_token_id=meta["eos_token_id"],
        end_token_ids=(meta["eos_token_id"],),
        num_candidates=512,
    )


def load_llada() -> LlamaForCausalLM:
    path = _CASES / "backbones" / "llada"
    config = json.loads((path / "config.json").read_text())
    native = LlamaConfig(
        vocab_size=config["embedding_size"],
        hidden_size=config["d_model"],
        intermediate_size=config["mlp_hidden_size"],
        num_hidden_layers=config["n_layers"],
        num_attention_heads=config["n_heads"],
        num_key_value_heads=config["n_kv_heads"],
        max_position_embeddings=config["max_sequence_length"],
        rms_norm_eps=config["rms_norm_eps"],
        rope_parameters={"rope_type": "default", "rope_theta": config["rope_theta"]},
        tie_word_embeddings=config["weight_tying"],
        pad_token_id=None,
    )
    loaded: Any = LlamaForCausalLM.from_pretrained(
        path,
        config=native,
        key_mapping=_KEYS,
        dtype=torch.float32,
        attn_implementation="sdpa",
        output_loading_info=True,
    )
    model, info = loaded
    assert not any(info.values()), info
    model.eval()
    return model


class LladaDenoiser:
    """Bidirectional forward pass of a transformers Llama."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        self.model = model

    def __call__(
        self, token_ids: Tensor, attention_mask: Tensor | None = None, *, keep: Tensor | None = None, **_: Any
    ) -> Tensor:
        if attention_mask is None:
            attention_mask = torch.ones_like(token_ids, dtype=torch.bool)
        return self.model(
            input_ids=token_ids,
            attention_mask=bidirectional_mask(attention_mask),
            position_ids=positions_from_mask(attention_mask),
            use_cache=False,
            logits_to_keep=0 if keep is None else keep,
        ).logits
