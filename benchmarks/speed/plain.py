"""The same computations written plainly, as they stand in papers and their releases: what ours is compared with."""

from collections.abc import Callable

import torch
from torch import Tensor

from stabledrl.protocols import Denoiser
from stabledrl.randomness import Purpose, uniforms
from stabledrl.samplers.remasking import transfer_schedule
from stabledrl.types import Completions, Corruption, Sequences, Vocabulary

Draw = Callable[[Tensor, int], tuple[Tensor, Tensor]]
"""From logits (N, T, V) and the step to tokens (N, T) and their probabilities (N, T)."""


def gumbel_draw(temperature: float) -> Draw:
    """Gumbel-max sampling with a float64 number of noise for every candidate of every position."""

    def draw(logits: Tensor, step: int) -> tuple[Tensor, Tensor]:
        exact = logits.double()
        noise = (-torch.log(torch.rand_like(exact))) ** temperature
        tokens = (exact.exp() / noise).argmax(dim=-1)
        return tokens, torch.softmax(exact, dim=-1).gather(-1, tokens[..., None]).squeeze(-1)

    return draw


def inverse_cdf_draw(row_keys: Tensor, prompt_length: int, temperature: float) -> Draw:
    """What the package's samplers draw, by a float64 cumulative sum over the vocabulary at every position."""

    def draw(logits: Tensor, step: int) -> tuple[Tensor, Tensor]:
        places = torch.arange(logits.shape[1]) - prompt_length
        target = uniforms(row_keys, Purpose.TOKEN, step, places)[..., None]
        exact = logits.double()
        tokens = torch.searchsorted((exact / temperature).softmax(dim=-1).cumsum(dim=-1), target, right=True)
        return tokens.squeeze(-1), exact.softmax(dim=-1).gather(-1, tokens).squeeze(-1)

    return draw


def select_per_row(confidence: Tensor, count: int) -> Tensor:
    """(N, T) bool, the `count` most confident positions of each row, row by row."""
    chosen = torch.zeros_like(confidence, dtype=torch.bool)
    counts = torch.full((len(confidence),), count)
    for row in range(len(confidence)):
        index = torch.topk(confidence[row], k=int(counts[row].item())).indices
        chosen[row, index] = True
    return chosen


@torch.no_grad()
def decode(
    forward: Denoiser,
    prompt_ids: Tensor,
    vocabulary: Vocabulary,
    draw: Draw,
    *,
    completion_length: int,
    block_size: int,
    denoising_steps: int,
) -> Completions:
    """Semi-autoregressive decoding that computes all logits of the whole sequence at every step, up to the last one."""
    rows, prompt_length = prompt_ids.shape
    answer = prompt_ids.new_full((rows, completion_length), vocabulary.mask_token_id)
    ids, steps_of = torch.cat([prompt_ids, answer], dim=1), torch.full_like(answer, -1)
    blocks = completion_length // block_size
    for block in range(blocks):
        end = prompt_length + (block + 1) * block_size
        steps = denoising_steps // blocks
        for step, count in enumerate(transfer_schedule(block_size, steps), start=block * steps):
            logits = forward(ids, torch.ones_like(ids, dtype=torch.bool)).clone()
            logits[..., vocabulary.mask_token_id] = -torch.inf
            tokens, confidence = draw(logits, step)
            masked = ids == vocabulary.mask_token_id
            confidence = torch.where(masked, confidence, -torch.inf)
            confidence[:, end:] = -torch.inf
            chosen = select_per_row(confidence, count)
            ids = torch.where(chosen, tokens, ids)
            steps_of = steps_of.masked_fill(chosen[:, prompt_length:], step)
    return _cut(ids[:, prompt_length:], steps_of, vocabulary)


def _cut(token_ids: Tensor, steps: Tensor, vocabulary: Vocabulary) -> Completions:
    mask = torch.ones_like(token_ids, dtype=torch.bool)
    for row, tokens in enumerate(token_ids.tolist()):
        ends = [place for place, token in enumerate(tokens) if token in vocabulary.end_token_ids]
        if ends:
            mask[row, ends[0] + 1 :] = False
    return Completions(
        token_ids=token_ids.masked_fill(~mask, vocabulary.mask_token_id),
        completion_mask=mask,
        step_map=steps.masked_fill(~mask, -1),
    )


def token_log_probs(forward: Denoiser, sequences: Sequences, corruption: Corruption, vocabulary: Vocabulary) -> Tensor:
    """(N, K, C) log-probabilities of scored tokens, 0 elsewhere, from all logits of the whole sequences."""
    draws, prompt_length = corruption.masked.shape[1], sequences.prompt_length
    views = sequences.token_ids[:, None].masked_fill(corruption.masked, vocabulary.mask_token_id)
    attention = sequences.attention_mask.repeat_interleave(draws, dim=0)
    log_probs = forward(views.flatten(0, 1), attention).float().log_softmax(dim=-1).unflatten(0, (-1, draws))
    targets = sequences.token_ids[:, None, :, None].expand(-1, draws, -1, 1)
    own = log_probs.gather(-1, targets).squeeze(-1)[:, :, prompt_length:]
    return own.masked_fill(~corruption.scored(sequences), 0.0)


def elbo(log_probs: Tensor, corruption: Corruption, sequences: Sequences) -> Tensor:
    """(N,) mean over draws of the weighted log-probabilities, per token."""
    return (log_probs * corruption.weight).sum(dim=2).mean(dim=1) / sequences.lengths


def block_loop_log_probs(
    forward: Denoiser, sequences: Sequences, corruption: Corruption, vocabulary: Vocabulary, block_size: int
) -> Tensor:
    """(N, K, C) log-probabilities of scored tokens, 0 elsewhere: a pass per draw and block over all before it.

    Prompts are not padded, and their length and the completions' are multiples of the block size.
    """
    start, whole = sequences.prompt_length, sequences.token_ids
    found = []
    for draw in range(corruption.masked.shape[1]):
        shown = whole.masked_fill(corruption.masked[:, draw], vocabulary.mask_token_id)
        parts = []
        for first in range(start, whole.shape[1], block_size):
            block = slice(first, first + block_size)
            view = torch.cat([whole[:, :first], shown[:, block]], dim=1)
            keep = torch.arange(first, first + block_size).repeat(len(whole), 1)
            log_probs = forward(view, torch.ones_like(view, dtype=torch.bool), keep=keep).log_softmax(dim=-1)
            parts.append(log_probs.gather(-1, whole[:, block, None]).squeeze(-1))
        found.append(torch.cat(parts, dim=1))
    return torch.stack(found, dim=1).masked_fill(~corruption.scored(sequences), 0.0)
