import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from stabledrl.backbones import Policy, load_policy, loading
from stabledrl.errors import UserInputError
from stabledrl.export import export_policy


def change_config(directory: Path, **values: Any) -> None:
    file = directory / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def change_weights(directory: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    file = directory / "model.safetensors"
    weights = {name: tensor.clone() for name, tensor in load_file(file).items()}
    change(weights)
    save_file(weights, file, metadata={"format": "pt"})


def refused(path: str | Path, match: str, **options: Any) -> None:
    with pytest.raises(UserInputError, match=match) as caught:
        load_policy(path, **options)
    assert "\n" not in str(caught.value)


def test_round_trip_is_exact(policy: Policy, saved: Path) -> None:
    loaded = load_policy(saved)
    tokens = torch.randint(2, policy.vocabulary.num_candidates, (2, 9))
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0, :4] = False
    assert torch.equal(loaded.logits(tokens, mask), policy.logits(tokens, mask))
    assert loaded.vocabulary == policy.vocabulary
    assert loaded.fingerprint == policy.fingerprint
    assert loaded.source == str(saved)
    assert not loaded.training
    assert loaded.state_dict().keys() == policy.state_dict().keys()


def test_repeated_round_trips_change_no_file(saved: Path, tmp_path: Path) -> None:
    # Loading adds fields of its own (precision, local files): from the second directory on, nothing changes.
    second = export_policy(load_policy(saved), tmp_path / "second")
    third = export_policy(load_policy(second), tmp_path / "third")
    assert {file.name for file in third.iterdir()} == {file.name for file in saved.iterdir()}
    for file in third.iterdir():
        assert file.read_bytes() == (second / file.name).read_bytes()
    assert (third / "model.safetensors").read_bytes() == (saved / "model.safetensors").read_bytes()
    assert (third / "tokenizer.json").read_bytes() == (saved / "tokenizer.json").read_bytes()


@torch.no_grad()
def test_plain_transformers_gives_the_same_logits(policy: Policy, saved: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(saved)
    tokens = torch.randint(2, policy.vocabulary.num_candidates, (2, 9))
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0, :4] = False
    torch.testing.assert_close(model(tokens).logits, policy.logits(tokens), atol=1e-5, rtol=0)
    padded = model(tokens, attention_mask=mask.long()).logits
    torch.testing.assert_close(padded[mask], policy.logits(tokens, mask)[mask], atol=1e-5, rtol=0)


def test_config_names_its_class(saved: Path) -> None:
    assert json.loads((saved / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]


def test_weights_take_the_precision_asked_for(saved: Path) -> None:
    assert {p.dtype for p in load_policy(saved, dtype=torch.bfloat16).parameters()} == {torch.bfloat16}
    assert {p.dtype for p in load_policy(saved).parameters()} == {torch.float32}


def test_mask_token_can_be_named(saved: Path) -> None:
    assert load_policy(saved, mask_token_id=5).vocabulary.mask_token_id == 5


@pytest.mark.parametrize("mask", [-1, 28, 10_000])
def test_mask_token_outside_the_vocabulary_is_refused(saved: Path, mask: int) -> None:
    refused(saved, f"mask_token_id {mask} .* vocabulary of 28", mask_token_id=mask)


@pytest.mark.parametrize("mask", [None, "x", 28])
def test_unusable_mask_token_in_the_config_is_refused(directory: Path, mask: Any) -> None:
    change_config(directory, mask_token_id=mask)
    refused(directory, "mask_token_id")


def test_mask_token_that_is_the_end_token_is_refused(saved: Path) -> None:
    refused(saved, "end token", mask_token_id=0)


def test_block_size_is_refused_for_full_attention(saved: Path) -> None:
    refused(saved, "block_size 4", block_size=4)


def test_end_token_learns_although_the_config_pads_with_it(directory: Path) -> None:
    change_config(directory, pad_token_id=0)
    loaded = load_policy(directory)
    loaded(torch.tensor([[3, 0, 4]])).square().sum().backward()
    gradient: Any = loaded.model.get_input_embeddings().weight.grad
    assert gradient[0].abs().max() > 0


@pytest.mark.parametrize("path", ["/absent/model", "absent", "absent/model", "too/many/parts", "no spaces allowed"])
def test_absent_model_is_one_clear_error(path: str) -> None:
    refused(path, f"no model at {path!r}")


def test_file_instead_of_a_directory_is_refused(saved: Path) -> None:
    refused(saved / "config.json", "no config.json in")


def test_directory_without_config_is_refused(directory: Path) -> None:
    (directory / "config.json").unlink()
    refused(directory, "no config.json in")


@pytest.mark.parametrize("content", [b"", b'{"model_type"', b"nul", b"\xff\xfe{}"])
def test_config_that_is_not_json_is_refused(directory: Path, content: bytes) -> None:
    (directory / "config.json").write_bytes(content)
    refused(directory, "not valid JSON")


@pytest.mark.parametrize("content", ["[]", "3", '"text"', "null"])
def test_config_that_is_no_object_is_refused(directory: Path, content: str) -> None:
    (directory / "config.json").write_text(content)
    refused(directory, "not a JSON object")


def test_unknown_family_names_the_known_ones(directory: Path) -> None:
    change_config(directory, is_causal=True, model_type="gpt2")
    refused(directory, r"model_type 'gpt2'.*known families: .*native")


@pytest.mark.parametrize(
    "values",
    [{"model_type": "no-such-type"}, {"hidden_size": "wide"}, {"num_attention_heads": 3}, {"model_type": None}],
)
def test_config_that_transformers_refuses_is_told(directory: Path, values: dict[str, Any]) -> None:
    change_config(directory, **values)
    refused(directory, "cannot use config.json")


def test_model_type_without_a_language_model_is_refused(directory: Path) -> None:
    change_config(directory, model_type="vit")
    refused(directory, "vit")


def test_missing_weights_are_refused(directory: Path) -> None:
    change_weights(directory, lambda weights: weights.pop("model.norm.weight"))
    refused(directory, r"1 missing keys \(first: model.norm.weight\)")


def test_unexpected_weights_are_refused(directory: Path) -> None:
    change_weights(directory, lambda weights: weights.update({"model.extra.weight": torch.zeros(2)}))
    refused(directory, r"1 unexpected keys \(first: model.extra.weight\)")


def test_weights_of_another_shape_are_refused(directory: Path) -> None:
    change_weights(directory, lambda weights: weights.update({"lm_head.weight": torch.zeros(30, 16)}))
    refused(directory, r"1 mismatched keys \(first: .*lm_head.weight")


def test_fewer_layers_than_weights_are_refused(directory: Path) -> None:
    change_config(directory, num_hidden_layers=1)
    refused(directory, r"9 unexpected keys")


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.99])
def test_truncated_weights_are_refused(directory: Path, share: float) -> None:
    file = directory / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])
    refused(directory, "cannot read the weights")


def test_absent_weights_are_refused(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    refused(directory, "cannot read the weights")


def test_absent_tokenizer_is_refused(directory: Path) -> None:
    (directory / "tokenizer.json").unlink()
    refused(directory, "cannot load the tokenizer")


def test_corrupt_tokenizer_is_refused(directory: Path) -> None:
    (directory / "tokenizer.json").write_text('{"version"')
    refused(directory, "cannot load the tokenizer")


def test_tokenizer_without_end_token_is_refused(directory: Path) -> None:
    file = directory / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    del settings["eos_token"]
    file.write_text(json.dumps(settings))
    refused(directory, "no end token")


def test_loading_leaves_transformers_logging_as_it_was(saved: Path) -> None:
    logging.enable_progress_bar()
    before = logging.get_verbosity()
    logging.set_verbosity_info()
    try:
        load_policy(saved)
        assert logging.is_progress_bar_enabled()
        assert logging.get_verbosity() == logging.INFO
    finally:
        logging.set_verbosity(before)


def test_refusal_prints_nothing_else(directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    change_weights(directory, lambda weights: weights.pop("model.norm.weight"))
    refused(directory, "missing")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("path", ["nope", "checkpoints/nope", "./org/name", "/abs/name", "a/b/c", "tests/nope"])
def test_paths_that_are_no_hub_ids_ask_no_hub(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(*arguments: Any, **options: Any) -> None:
        raise AssertionError("the hub was asked")

    monkeypatch.setattr(loading, "cached_file", fetch)
    refused(path, "seen from")


def test_a_hub_id_is_told_from_a_path() -> None:
    assert loading.looks_like_hub_id("GSAI-ML/LLaDA-8B-Instruct")
