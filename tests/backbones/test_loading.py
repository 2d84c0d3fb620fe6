import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from stabledrl.backbones import NewPolicy, Policy, load_policy
from stabledrl.backbones.loading import available_backbones, find_backbone
from stabledrl.backbones.native import Native
from stabledrl.errors import UserInputError
from stabledrl.export import export_policy
from stabledrl.protocols import Backbone


@pytest.fixture(scope="module")
def policy() -> Policy:
    return NewPolicy(
        hidden_size=16, num_layers=2, num_heads=2, intermediate_size=16, initializer_range=0.3, seed=1
    ).build()


@pytest.fixture(scope="module")
def saved(policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_policy(policy, tmp_path_factory.mktemp("models") / "saved")


@pytest.fixture
def directory(saved: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(saved, tmp_path / "model"))


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


def test_second_round_trip_writes_the_same_files(saved: Path, tmp_path: Path) -> None:
    again = export_policy(load_policy(saved), tmp_path / "again")
    names = sorted(file.name for file in saved.iterdir())
    assert sorted(file.name for file in again.iterdir()) == names
    for name in {*names} - {"model.safetensors", "config.json"}:
        assert (again / name).read_bytes() == (saved / name).read_bytes()
    configs = [json.loads((one / "config.json").read_text()) for one in (again, saved)]
    configs[0].pop("dtype", None)
    assert configs[0] == configs[1]


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
    gradient = loaded.model.get_input_embeddings().weight.grad
    assert gradient is not None
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
    change_config(directory, model_type="clip_vision_model")
    refused(directory, "")


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
    load_policy(saved)
    assert logging.is_progress_bar_enabled()
    assert logging.get_verbosity() == before


def test_refusal_prints_nothing_else(directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    change_weights(directory, lambda weights: weights.pop("model.norm.weight"))
    refused(directory, "missing")
    assert capfd.readouterr() == ("", "")


@pytest.fixture(scope="module")
def users_backbones() -> Iterator[tuple[type[Backbone], type[Backbone]]]:
    class Abstract(Backbone):
        """Without `load`, so not a family."""

        family = "abstract"

        def matches(self, config: dict[str, Any]) -> bool:
            raise AssertionError("an abstract class is no family")

    class Mine(Abstract):
        family = "mine"

        def matches(self, config: dict[str, Any]) -> bool:
            return config.get("model_type") == "mine"

        def load(self, path: str, *, dtype: torch.dtype, mask_token_id: int | None, block_size: int | None) -> Any:
            made = NewPolicy(characters="ab", hidden_size=8, num_heads=2, num_layers=1).build()
            return Policy(made.model, made.tokenizer, made.vocabulary, family=f"mine-{block_size}", source=path)

    class Refined(Native):
        family = "refined"

        def matches(self, config: dict[str, Any]) -> bool:
            return super().matches(config) and config.get("refined") is True

    yield Mine, Refined


def test_users_backbone_loads(tmp_path: Path, users_backbones: tuple[type[Backbone], ...]) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mine"}')
    loaded = load_policy(tmp_path, block_size=8)
    assert loaded.family == "mine-8"
    assert not loaded.training


def test_backbone_derived_from_another_is_asked_first(
    directory: Path, users_backbones: tuple[type[Backbone], ...]
) -> None:
    assert type(find_backbone(str(directory))) is Native
    change_config(directory, refined=True)
    assert type(find_backbone(str(directory))) is users_backbones[1]


def test_every_backbone_is_listed_once(users_backbones: tuple[type[Backbone], ...]) -> None:
    found = [type(backbone) for backbone in available_backbones()]
    assert {Native, *users_backbones} <= set(found)
    assert len(found) == len(set(found))
