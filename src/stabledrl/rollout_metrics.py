"""What a rollout's numbers are."""

from torch import Tensor

from stabledrl.advantages import zero_variance_groups
from stabledrl.types import RolloutBatch, Sample


def rollout_metrics(rollouts: RolloutBatch, samples: list[Sample], seconds: float) -> dict[str, float]:
    """Summarises a rollout.

    Args:
        rollouts: The rollout's tensors.
        samples: Its texts.
        seconds: Wall-clock time the sampling took.

    Returns:
        Metrics under their fixed names. Rewards are over graded completions; accuracy counts no verdict as wrong.
    """
    rewards = rollouts.rewards[rollouts.graded]
    flat = zero_variance_groups(rollouts.rewards, rollouts.graded, rollouts.group_index, rollouts.totals.groups)
    return {
        "rollout/reward_mean": rewards.mean().item(),
        # Not std(), which warns where no completion is graded: NaN says it.
        "rollout/reward_std": (rewards - rewards.mean()).square().mean().sqrt().item(),
        "rollout/accuracy": sum(sample.correct is True for sample in samples) / len(samples),
        "rollout/zero_variance_groups": flat.float().mean().item(),
        "rollout/identical_groups": identical_groups(samples, rollouts.group_index),
        "rollout/ungraded": 1 - rollouts.graded.float().mean().item(),
        "rollout/completion_length": rollouts.sequences.lengths.float().mean().item(),
        "rollout/tokens_per_second": rollouts.totals.tokens / seconds,
    }


def identical_groups(samples: list[Sample], group_index: Tensor) -> float:
    """Share of the groups whose completions are all the same text."""
    texts: dict[int, set[str]] = {}
    for sample, group in zip(samples, group_index.tolist()):
        texts.setdefault(group, set()).add(sample.completion)
    return sum(len(group) == 1 for group in texts.values()) / len(texts)
