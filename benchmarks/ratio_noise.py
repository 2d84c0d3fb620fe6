"""Measures how noisy importance ratios are under every masking law: a JSON line each, and a table.

python benchmarks/ratio_noise.py > benchmarks/results/ratio_noise.jsonl

Completions are the shipped model's on training puzzles; the current policy is that model after some updates of the
quickstart's loss on them. A completion is scored many times, each time with masks of its own, by both policies. What
varies between these times is noise: the standard deviation within a completion, squared, averaged over completions.
Ratios and bounds are of whole completions, in nats. A forward is one pass over one completion; an estimate of either
policy takes as many as there are draws. Noise of independent estimates falls with the square root of the forwards, so
the noise of a single forward, `sd_log_ratio_of_one`, compares laws that take different numbers.
"""

import argparse
import copy
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from stabledrl.backbones import Policy, load_policy
from stabledrl.data import Sudoku
from stabledrl.data.encoding import encode_rows
from stabledrl.data.prompt_loader import collate
from stabledrl.errors import UserInputError
from stabledrl.experience import ExperienceCollector
from stabledrl.group_sampling import GroupSampler
from stabledrl.likelihoods import MonteCarloElbo
from stabledrl.likelihoods.mask_laws import MASK_LAWS, Masking, check_mask_law
from stabledrl.objectives import StableDRL
from stabledrl.randomness import fold
from stabledrl.samplers import SemiAutoregressiveSampler
from stabledrl.types import RolloutBatch, Sequences

BLOCK_SIZE = 4
"""Of `block_random`, so that a completion of 16 tokens has blocks."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """What is measured of a law with a number of draws."""

    law: str
    shares_masks: bool
    forwards: int
    sd_log_ratio: float
    sd_log_ratio_of_one: float
    mean_log_ratio: float
    sd_elbo: float
    mean_elbo: float
    unbiased: bool


def sample(policy: Policy, prompts: int, seed: int) -> RolloutBatch:
    """Eight graded completions for each of some training puzzles, as the quickstart takes them."""
    task = Sudoku(train_size=prompts)
    encoded = encode_rows(task.rows("train"), policy.tokenizer, task.name)
    groups = GroupSampler(
        sampler=SemiAutoregressiveSampler(completion_length=16, block_size=16, denoising_steps=16),
        tasks={task.name: task},
        tokenizer=policy.tokenizer,
        vocabulary=policy.vocabulary,
        group_size=8,
        temperature=0.9,
        seed=seed,
    )
    likelihood = MonteCarloElbo(masking="complementary", eubo_beta=None)
    collector = ExperienceCollector(groups=groups, likelihood=likelihood, baseline="standardize")
    batch = {**collate(encoded, policy.vocabulary.pad_token_id), "rollout_index": torch.tensor(0)}
    return collector.collect(batch, policy).rollouts


def updated(policy: Policy, rollouts: RolloutBatch, updates: int) -> Policy:
    """The policy after some of the quickstart's updates on the rollouts."""
    policy = copy.deepcopy(policy)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=2e-4, betas=(0.9, 0.99), weight_decay=0.01)
    objective = StableDRL(eps_low=0.2, eps_high=0.2, surrogate="elbo")
    measure = MonteCarloElbo(masking="complementary", eubo_beta=None)
    for update in range(updates):
        corruption = measure.corrupt(rollouts.sequences, update=update)
        current = measure(policy, rollouts.sequences, corruption, vocabulary=policy.vocabulary)
        optimizer.zero_grad()
        objective(current, rollouts).loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
    return policy


@torch.no_grad()
def bounds(policy: Policy, measure: MonteCarloElbo, rows: Sequences, times: int, update: int | None) -> Tensor:
    """(N, times) bounds of whole completions, every time with masks of its own."""
    found = []
    for time in range(times):
        keyed = replace(rows, row_keys=fold(rows.row_keys, time))
        corruption = measure.corrupt(keyed, update=update)
        found.append(measure(policy, keyed, corruption, vocabulary=policy.vocabulary).elbo)
    return torch.stack(found, dim=1).double()


def measure_law(law: Masking, forwards: int, old: Policy, new: Policy, rows: Sequences, times: int) -> Iterator[Noise]:
    """The noise with masks drawn anew for the current policy, and with the old policy's."""
    measure = MonteCarloElbo(draws=forwards, masking=law, reduction="sum", eubo_beta=None, block_size=BLOCK_SIZE)
    before = bounds(old, measure, rows, times, None)
    for shares_masks in (False, True):
        log_ratio = bounds(new, measure, rows, times, None if shares_masks else 0) - before
        yield Noise(
            law=law,
            shares_masks=shares_masks,
            forwards=forwards,
            sd_log_ratio=_noise(log_ratio),
            sd_log_ratio_of_one=_noise(log_ratio) * forwards**0.5,
            mean_log_ratio=float(log_ratio.mean()),
            sd_elbo=_noise(before),
            mean_elbo=float(before.mean()),
            unbiased=measure.unbiased,
        )


def _noise(values: Tensor) -> float:
    return float(values.var(dim=1).mean().sqrt())


def table(results: list[Noise]) -> str:
    """The results, laws with equal numbers of forwards side by side."""
    columns = "| {} | {} | {} | {} | {} | {} | {} | {} |"
    lines = [
        columns.format(
            "forwards", "law", "masks", "sd log ratio", "of one forward", "sd ELBO", "mean ELBO", "unbiased"
        ),
        columns.format(*["---"] * 8),
    ]
    for found in sorted(results, key=lambda one: (one.forwards, one.shares_masks, one.sd_log_ratio)):
        numbers = (found.sd_log_ratio, found.sd_log_ratio_of_one, found.sd_elbo, found.mean_elbo)
        masks, unbiased = "shared" if found.shares_masks else "anew", "yes" if found.unbiased else "no"
        lines.append(columns.format(found.forwards, found.law, masks, *(f"{n:.3g}" for n in numbers), unbiased))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="checkpoints/tiny-sudoku")
    parser.add_argument("--prompts", type=int, default=4, help="with 8 completions each")
    parser.add_argument("--times", type=int, default=40, help="how often a completion is scored")
    parser.add_argument("--forwards", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--updates", type=int, default=2, help="between old and current policy")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    old = load_policy(options.model)
    rollouts = sample(old, options.prompts, options.seed)
    new = updated(old, rollouts, options.updates)
    results = []
    for forwards in options.forwards:
        for law in MASK_LAWS:
            try:
                check_mask_law(law, forwards)
            except UserInputError:
                continue  # a law over pairs, with a number that makes none
            for found in measure_law(law, forwards, old, new, rollouts.sequences, options.times):
                results.append(found)
                print(json.dumps(asdict(found)), flush=True)
    print(table(results), file=sys.stderr)


if __name__ == "__main__":
    main()
