"""R1, R2, R5, R6: whole rollouts."""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from benchmarks.speed import plain
from benchmarks.speed.comparison import Comparison
from benchmarks.speed.models import EndingAt, make_keys, make_policy, make_prompts
from stabledrl.backbones import Policy
from stabledrl.protocols import Denoiser, Sampler
from stabledrl.samplers import BlockDiffusionSampler, SemiAutoregressiveSampler
from stabledrl.types import Completions

TEMPERATURE = 0.9


def _sample(forward: Denoiser, policy: Policy, sampler: Sampler, prompts: Tensor, keys: Tensor) -> Completions:
    return sampler(
        forward,
        prompts,
        torch.ones_like(prompts, dtype=torch.bool),
        vocabulary=policy.vocabulary,
        row_keys=keys,
        temperature=TEMPERATURE,
    )


def assert_same(found: Completions, expected: Completions) -> None:
    """The same tokens, decided at the same steps."""
    for name in ("token_ids", "completion_mask", "step_map"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), f"{name} differ"


def _against_plain(
    name: str,
    case: str,
    forward: Denoiser,
    policy: Policy,
    sampler: SemiAutoregressiveSampler | BlockDiffusionSampler,
    prompts: Tensor,
    **bounds: float,
) -> Comparison:
    """A sampler against the plain loop: checked on the same uniform numbers, timed with the loop's Gumbel noise."""
    keys = make_keys(len(prompts))
    ours = partial(_sample, forward, policy, sampler, prompts, keys)
    loop = partial(
        plain.decode,
        forward,
        prompts,
        policy.vocabulary,
        completion_length=sampler.completion_length,
        block_size=sampler.block_size,
        denoising_steps=sampler.denoising_steps,
    )

    def check() -> None:
        assert_same(ours(), loop(plain.inverse_cdf_draw(keys, prompts.shape[1], TEMPERATURE)))

    baseline = partial(loop, plain.gumbel_draw(TEMPERATURE))
    return Comparison(id=name, case=case, ours=ours, baseline=baseline, check=check, **bounds)  # type: ignore[arg-type]


def r1(*, rows: int = 8, prompt: int = 36, completion: int = 64, steps: int = 32) -> list[Comparison]:
    """A rollout against a loop that computes the whole sequence's logits and noise at every step; no row ends."""
    policy = make_policy(ends=False)
    sampler = SemiAutoregressiveSampler(completion, completion // 4, steps)
    prompts = make_prompts(policy, rows, prompt)
    return [_against_plain("R1", "no end tokens", policy, policy, sampler, prompts, gate=1.1, goal=1.3)]


def r2(*, rows: int = 8, prompt: int = 36, completion: int = 64, steps: int = 32) -> list[Comparison]:
    """The same where every row ends after a quarter or half of the completion, which the loop does not look at."""
    policy = make_policy()
    sampler = SemiAutoregressiveSampler(completion, completion // 8, steps)
    prompts = make_prompts(policy, rows, prompt)
    found = []
    for share, gate in ((0.25, 1.8), (0.5, 1.4)):
        place = torch.full((policy.vocabulary.num_candidates,), prompt + int(share * completion) - 1)
        ending = EndingAt(policy=policy, ends=place)
        found.append(_against_plain("R2", f"end tokens at {share:.0%}", ending, policy, sampler, prompts, gate=gate))
    return found


def r5(
    *, rows: int = 8, prompt: int = 64, completion: int = 256, steps_per_block: tuple[int, int] = (2, 16)
) -> list[Comparison]:
    """A block-causal model on its cache against the loop over the whole sequence. Prompts are whole blocks."""
    found = []
    for block_size, steps, gate, goal in ((4, steps_per_block[0], 8.0, 12.0), (32, steps_per_block[1], 6.0, 8.0)):
        policy = make_policy(layers=1, block_size=block_size, ends=False)
        sampler = BlockDiffusionSampler(completion, block_size, steps * completion // block_size)
        prompts = make_prompts(policy, rows, prompt)
        case = f"blocks of {block_size}, {steps} steps each"
        found.append(_against_plain("R5", case, policy, policy, sampler, prompts, gate=gate, goal=goal))
    return [replace(comparison, rounds=2) for comparison in found]


def r6(*, rows: int = 8, prompt: int = 36, completion: int = 64, steps: int = 32) -> list[Comparison]:
    """A group in one batch against one completion after the other."""
    policy = make_policy(ends=False)
    sampler = SemiAutoregressiveSampler(completion, completion // 4, steps)
    prompts, keys = make_prompts(policy, rows, prompt), make_keys(rows)

    def loop() -> Completions:
        one = [slice(row, row + 1) for row in range(rows)]
        return Completions.cat([_sample(policy, policy, sampler, prompts[row], keys[row]) for row in one])

    ours = partial(_sample, policy, policy, sampler, prompts, keys)
    case = f"{rows} rows in one batch"
    return [Comparison(id="R6", case=case, ours=ours, baseline=loop, check=lambda: assert_same(ours(), loop()))]
