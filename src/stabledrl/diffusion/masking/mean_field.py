"""The law of the mean-field likelihood: the model predicts every token of a completion at once."""

import torch

from stabledrl.diffusion.masking.draws import per_draw, weigh_by_share
from stabledrl.randomness import Purpose
from stabledrl.types import Corruption, Sequences


def mean_field(sequences: Sequences, draws: int, step: int, prompt_rate: float) -> Corruption:
    """Masks all of the completion, and each prompt token with probability `prompt_rate` (d1, arXiv 2504.12216).

    Draws differ by the prompt's masks only. Every token has weight 1: the weighted sum takes the tokens for independent
    of each other, a proxy for the ELBO.

    Args:
        sequences: N rows.
        draws: K.
        step: Counter that sets apart repeated uses of the same rows.
        prompt_rate: Probability that a token of the prompt is masked; padding never is.

    Returns:
        The corruption.
    """
    length = sequences.prompt_length
    # Keyed from the prompt's end, so that padding changes nothing.
    positions = torch.arange(-length, 0, device=sequences.token_ids.device)
    prompt = per_draw(sequences, Purpose.MASK_CONTEXT, draws, step, positions) < prompt_rate
    completion = sequences.completion_mask[:, None].expand(-1, draws, -1)
    return weigh_by_share(sequences, completion, prompt & sequences.attention_mask[:, None, :length])
