"""Small tokenizers: a character-level one, and a byte-level BPE whose merges cross from template into message."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message.role }}\n{{ message.content | trim }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
SPECIAL = ["<|end|>", "<|mask|>", "<|start|>"]


def make_character_tokenizer(declare_mask: bool = True) -> PreTrainedTokenizerFast:
    characters = [chr(code) for code in range(32, 127)] + ["\n"]
    tokenizer = Tokenizer(models.WordLevel({token: index for index, token in enumerate([*SPECIAL, *characters])}))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return _finish(tokenizer, declare_mask)


def make_bpe_tokenizer(declare_mask: bool = True) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["user\nsolve 0123= assistant\nsystem\nsolve this"] * 50, trainer)
    return _finish(tokenizer, declare_mask)


def _finish(tokenizer: Tokenizer, declare_mask: bool) -> PreTrainedTokenizerFast:
    special: dict[str, Any] = {
        "eos_token": "<|end|>",
        "pad_token": "<|end|>",
        "additional_special_tokens": ["<|start|>"],
    }
    if declare_mask:
        special["mask_token"] = "<|mask|>"
    else:
        tokenizer.add_tokens([AddedToken("<|mask|>", special=False, normalized=False)])
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **special)
    made.chat_template = TEMPLATE
    return made


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    return make_character_tokenizer()


@pytest.fixture
def undeclaring_tokenizer() -> PreTrainedTokenizerFast:
    """Does not say that its mask token is special, as LLaDA's does not."""
    return make_character_tokenizer(declare_mask=False)


@pytest.fixture(params=["characters", "characters, mask undeclared", "bpe", "bpe, mask undeclared"])
def any_tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerFast:
    make = make_bpe_tokenizer if request.param.startswith("bpe") else make_character_tokenizer
    return make(declare_mask="undeclared" not in request.param)


FILES = Path(__file__).parent / "files"
"""Data sets of a few rows in the layout of the public ones."""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `datasets` prepares is neither kept nor shared."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
