"""What holds for every family: the direction of attention, padding, special ids, caches, saving, gradients."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.backbones.golden import BLOCK_CAUSAL, END, GOLDEN, MASK, Golden, other, random_tokens
from torch import Tensor

from stabledrl.backbones import NewPolicy, Policy, load_policy
from stabledrl.backbones.attention import SDPA_OR_FLEX
from stabledrl.checkpoints import POLICY_KEY, WEIGHTS_PREFIX
from stabledrl.errors import UserInputError
from stabledrl.export import Layout, export_checkpoint, export_policy

TOLERANCE = 2e-5
LENGTH = 16
BIDIRECTIONAL = [name for name in GOLDEN if name not in BLOCK_CAUSAL]


@pytest.fixture(scope="module")
def policies() -> dict[str, Policy]:
    return {name: golden.load() for name, golden in GOLDEN.items()}


@pytest.fixture(params=GOLDEN)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def golden(name: str) -> Golden:
    return GOLDEN[name]


@pytest.fixture
def policy(policies: dict[str, Policy], name: str) -> Policy:
    return policies[name]


def moved(policy: Policy, tokens: Tensor, position: int) -> Tensor:
    """How far each position's logits move when one token changes."""
    return (policy.logits(tokens) - policy.logits(other(tokens, position))).abs().amax((0, 2))


@pytest.mark.parametrize("name", BIDIRECTIONAL)
@torch.no_grad()
def test_last_token_moves_the_first_logits(policies: dict[str, Policy], name: str) -> None:
    assert policies[name].block_size is None
    assert (moved(policies[name], random_tokens(2, LENGTH), LENGTH - 1) > 0.01).all()


@pytest.mark.parametrize("name", BLOCK_CAUSAL)
@torch.no_grad()
def test_token_moves_all_of_its_block_and_nothing_before(policies: dict[str, Policy], name: str) -> None:
    block = policies[name].block_size
    assert block is not None
    for position in (2 * block - 1, block, block - 1):
        moves = moved(policies[name], random_tokens(2, LENGTH), position)
        first = position // block * block
        assert (moves[:first] < TOLERANCE).all()
        assert (moves[first:] > 0.001).all()


@torch.no_grad()
def test_left_padding_changes_no_logit(policy: Policy) -> None:
    tokens = random_tokens(2, LENGTH)
    padded = torch.cat([random_tokens(2, 5), tokens], dim=1)
    mask = torch.arange(LENGTH + 5).expand(2, -1) >= 5
    first = 1 if policy.shifted else 0  # what a shifted model has for the first token comes from padding
    got, alone = policy.logits(padded, mask)[:, 5:], policy.logits(tokens)
    torch.testing.assert_close(got[:, first:], alone[:, first:], atol=TOLERANCE, rtol=0)


@torch.no_grad()
def test_right_padding_changes_no_logit(policy: Policy) -> None:
    tokens = random_tokens(2, LENGTH)
    padded = torch.cat([tokens, random_tokens(2, 5)], dim=1)
    mask = torch.arange(LENGTH + 5).expand(2, -1) < LENGTH
    got = policy.logits(padded, mask)[:, :LENGTH]
    torch.testing.assert_close(got, policy.logits(tokens), atol=TOLERANCE, rtol=0)


@torch.no_grad()
def test_logits_are_of_the_position_that_they_stand_at(policy: Policy, name: str) -> None:
    tokens = random_tokens(2, LENGTH)
    own = policy.model(
        input_ids=tokens,
        attention_mask=torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool),
        position_ids=torch.arange(LENGTH).expand(2, -1),
        use_cache=False,
    ).logits
    everything = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool)
    got = policy.logits(tokens, everything, position_ids=torch.arange(LENGTH).expand(2, -1))
    assert policy.shifted is (name == "dream")
    assert torch.equal(got[:, 1:], own[:, :-1] if policy.shifted else own[:, 1:])


def test_special_ids_are_those_of_config_and_arguments(policy: Policy) -> None:
    vocabulary = policy.vocabulary
    assert (vocabulary.mask_token_id, vocabulary.pad_token_id) == (MASK, END)
    assert (vocabulary.end_token_ids, vocabulary.num_candidates) == ((END,), 512)


def test_model_in_memory_is_transformers_own(policy: Policy, golden: Golden) -> None:
    config = policy.model.config
    assert type(policy.model).__module__.startswith("transformers.models.")
    assert config.architectures == [type(policy.model).__name__]
    assert (config.pad_token_id, config.is_causal, config._attn_implementation) == (None, False, SDPA_OR_FLEX)
    assert {"model.embed_tokens.weight", "model.norm.weight"} <= policy.model.state_dict().keys()
    assert policy.family == golden.family


@pytest.mark.parametrize("name", BLOCK_CAUSAL)
@torch.no_grad()
def test_decoding_on_a_cache_equals_recomputing(policies: dict[str, Policy], name: str) -> None:
    policy = policies[name]
    block, cache = policy.block_size, policy.new_cache()
    assert block is not None
    tokens = random_tokens(2, 3 * block)

    def step(ids: Tensor, start: int) -> Tensor:
        positions = torch.arange(start, start + ids.shape[1]).expand(2, -1)
        mask = torch.ones(1, 1, ids.shape[1], start + ids.shape[1], dtype=torch.bool)
        return policy.logits(ids, mask, position_ids=positions, cache=cache)

    step(tokens[:, :block], 0)
    for start in (block, 2 * block):
        for masked in (range(block), range(block // 2)):
            noisy = tokens[:, start : start + block].clone()
            noisy[:, list(masked)] = MASK
            whole = policy.logits(torch.cat([tokens[:, :start], noisy], dim=1))
            torch.testing.assert_close(step(noisy, start), whole[:, start:], atol=TOLERANCE, rtol=0)
            cache.crop(-block)
        step(tokens[:, start : start + block], start)


def checkpoint(policy: Policy, directory: Path) -> Path:
    weights = {WEIGHTS_PREFIX + name: tensor for name, tensor in policy.model.state_dict().items()}
    torch.save({"state_dict": weights, POLICY_KEY: policy.describe()}, directory / "last.ckpt")
    return directory / "last.ckpt"


def same(first: Policy, second: Policy) -> None:
    assert first.fingerprint == second.fingerprint
    assert first.vocabulary == second.vocabulary
    weights, loaded = first.model.state_dict(), second.model.state_dict()
    assert weights.keys() == loaded.keys()
    assert all(torch.equal(weights[name], loaded[name]) for name in weights)
    tokens = random_tokens(2, LENGTH)
    with torch.no_grad():
        # Equal weights at other addresses in memory may be summed in another order.
        torch.testing.assert_close(first.logits(tokens), second.logits(tokens), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("layout", ["native", "source"])
def test_exported_policy_loads_as_what_it_was(policy: Policy, layout: Layout, tmp_path: Path) -> None:
    same(policy, load_policy(export_policy(policy, tmp_path / "model", layout=layout)))


@pytest.mark.parametrize("layout", ["native", "source"])
def test_layouts_can_follow_each_other(policy: Policy, layout: Layout, tmp_path: Path) -> None:
    first = load_policy(export_policy(policy, tmp_path / "first", layout="native"))
    same(policy, load_policy(export_policy(first, tmp_path / "second", layout=layout)))


@pytest.mark.parametrize("layout", ["native", "source"])
def test_checkpoint_and_policy_export_the_same(policy: Policy, layout: Layout, tmp_path: Path) -> None:
    first = export_policy(policy, tmp_path / "policy", layout=layout)
    second = export_checkpoint(checkpoint(policy, tmp_path), tmp_path / "checkpoint", layout=layout)
    for file in first.iterdir():
        assert file.read_bytes() == (second / file.name).read_bytes()


def test_plain_save_pretrained_loads_as_what_it_was(policy: Policy, tmp_path: Path) -> None:
    policy.model.save_pretrained(tmp_path)
    same(policy, load_policy(tmp_path))


def test_source_export_holds_the_published_names_and_values(policy: Policy, golden: Golden, tmp_path: Path) -> None:
    exported = load_file(export_policy(policy, tmp_path / "model", layout="source") / "model.safetensors")
    published = golden.weights()
    assert exported.keys() == published.keys()
    assert all(torch.equal(exported[name], published[name]) for name in published)


def test_source_export_holds_the_published_config(golden: Golden, tmp_path: Path) -> None:
    directory = export_policy(golden.load(dtype=torch.float16), tmp_path / "model", layout="source")
    published = golden.config()
    precision = "dtype" if "dtype" in published else "torch_dtype"
    written = json.loads((directory / "config.json").read_text())
    assert written == {**published, **golden.options, precision: "float16"}


def test_source_layout_of_a_model_without_one_is_refused(tmp_path: Path) -> None:
    policy = NewPolicy(hidden_size=8, num_layers=1, num_heads=2, intermediate_size=8).build()
    with pytest.raises(UserInputError, match=r"'llama' model has no source layout.*llada_moe"):
        export_policy(policy, tmp_path / "model", layout="source")
    assert not (tmp_path / "model").exists()


def test_text_without_a_tokenizer_is_refused_and_nothing_else_is(policy: Policy) -> None:
    with pytest.raises(UserInputError, match="no tokenizer beside the weights of"):
        _ = policy.tokenizer
    assert list(policy.description_files()) == ["config.json"]


def test_gradient_reaches_every_parameter(golden: Golden) -> None:
    policy = golden.load()
    tokens = random_tokens(8, 32)
    tokens[:, -1] = END
    policy(tokens).log_softmax(-1)[..., : END + 1].square().mean().backward()
    dead = [name for name, p in policy.named_parameters() if p.grad is None or not p.grad.abs().max() > 0]
    assert dead == []
    embedding = policy.model.get_input_embeddings().weight.grad
    assert embedding is not None
    assert embedding[END].abs().max() > 0
