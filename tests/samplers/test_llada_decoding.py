"""Decoding against the method's public release, token for token."""

import pytest
import torch
from tests.samplers.llada_golden import golden_vocabulary, load_golden, load_llada

from stabledrl.backbones import Policy
from stabledrl.samplers import SemiAutoregressiveSampler


@pytest.fixture(scope="module")
def denoiser() -> Policy:
    return load_llada()


@pytest.mark.parametrize("padding", [0, 4])
@pytest.mark.parametrize(("length", "block_size", "steps"), [(24, 24, 12), (32, 8, 16), (32, 8, 32)])
def test_greedy_decoding_reproduces_the_release(
    denoiser: Policy, length: int, block_size: int, steps: int, padding: int
) -> None:
    golden, vocabulary = load_golden(), golden_vocabulary()
    prompts = golden[f"generate_{length}_{block_size}_{steps}.prompt"]
    tokens = golden[f"generate_{length}_{block_size}_{steps}.tokens"]
    padded = torch.nn.functional.pad(prompts, (padding, 0), value=vocabulary.pad_token_id)
    completions = SemiAutoregressiveSampler(length, block_size, steps)(
        denoiser,
        padded,
        torch.arange(padded.shape[1]).expand_as(padded) >= padding,
        vocabulary=vocabulary,
        row_keys=torch.arange(len(prompts)),
        temperature=0.0,
    )
    assert torch.equal(completions.token_ids, tokens[:, prompts.shape[1] :])
    assert completions.completion_mask.all()


@pytest.mark.parametrize("remasking", ["low_confidence", "random"])
def test_transformer_samples_do_not_depend_on_their_batch(denoiser: Policy, remasking: str) -> None:
    prompts = torch.randint(0, 500, (6, 9))
    sampler = SemiAutoregressiveSampler(16, 8, 8, remasking)  # type: ignore[arg-type]
    keys = torch.arange(6) + 40

    def sample(rows: list[int]) -> torch.Tensor:
        return sampler(
            denoiser,
            prompts[rows],
            torch.ones(len(rows), 9, dtype=torch.bool),
            vocabulary=golden_vocabulary(),
            row_keys=keys[rows],
            temperature=0.9,
        ).token_ids

    together = sample([0, 1, 2, 3, 4, 5])
    assert len({tuple(row) for row in together.tolist()}) == 6
    assert torch.equal(sample([5, 3, 0]), together[[5, 3, 0]])
    for row in range(6):
        assert torch.equal(sample([row]), together[[row]])
