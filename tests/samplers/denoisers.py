"""Small denoisers for decoding tests, and the plain decoding loop that the sampler is compared with."""

from typing import Any

import torch
from torch import Tensor

from stabledrl.diffusion.attention import positions_from_mask
from stabledrl.protocols import Denoiser
from stabledrl.randomness import Purpose, uniforms
from stabledrl.samplers import SemiAutoregressiveSampler
from stabledrl.types import Completions, Vocabulary

VOCABULARY = Vocabulary(mask_token_id=3, pad_token_id=5, end_token_ids=(5, 7), num_candidates=36)
EMBEDDING_ROWS = 40


class ContextDenoiser:
    """Random logits that depend on every visible token and its position, but not on padding.

    Mask token, unused embedding rows and end tokens are all likely, so that wrong candidates and stops would show.
    """

    def __init__(self, seed: int = 0, end_bias: float = 0.0) -> None:
        generator = torch.Generator().manual_seed(seed)

        def table(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        self.embedding, self.places, self.head = table(EMBEDDING_ROWS, 16), table(64, 16), table(16, EMBEDDING_ROWS)
        self.bias = torch.zeros(EMBEDDING_ROWS, dtype=torch.float64)
        self.bias[[VOCABULARY.mask_token_id, 37, 39]] = 3.0
        self.bias[list(VOCABULARY.end_token_ids)] = end_bias

    def __call__(
        self, token_ids: Tensor, attention_mask: Tensor | None = None, *, keep: Tensor | None = None, **_: Any
    ) -> Tensor:
        real = torch.ones_like(token_ids, dtype=torch.bool) if attention_mask is None else attention_mask
        places = self.places[positions_from_mask(real)]
        visible = (self.embedding[token_ids] * places * real[..., None]).sum(dim=1, keepdim=True)
        logits = torch.tanh(0.3 * visible + places) @ self.head + self.bias
        if keep is not None:
            logits = logits.gather(1, keep[..., None].expand(-1, -1, EMBEDDING_ROWS))
        return logits.float()


class ScriptedDenoiser:
    """Makes each row end at a position of its own, named by its first prompt token; counts what it is asked for."""

    def __init__(self, completion_length: int, end: int = VOCABULARY.end_token_ids[0]) -> None:
        self.completion_length = completion_length
        self.end = end
        self.rows: list[int] = []

    def __call__(
        self, token_ids: Tensor, attention_mask: Tensor | None = None, *, keep: Tensor | None = None, **_: Any
    ) -> Tensor:
        assert keep is not None
        self.rows.append(len(token_ids))
        positions = keep - (token_ids.shape[1] - self.completion_length)
        token = torch.where(positions == token_ids[:, :1] - 100, self.end, 10 + positions % 10)
        return 20.0 * torch.nn.functional.one_hot(token, EMBEDDING_ROWS)


def random_prompts(rows: int, length: int = 5, seed: int = 1) -> tuple[Tensor, Tensor]:
    prompts = torch.randint(8, 36, (rows, length), generator=torch.Generator().manual_seed(seed))
    return prompts, torch.ones_like(prompts, dtype=torch.bool)


def decode(
    sampler: SemiAutoregressiveSampler,
    forward: Denoiser,
    prompts: Tensor,
    mask: Tensor | None = None,
    *,
    keys: Tensor | None = None,
    temperature: float = 1.0,
    vocabulary: Vocabulary = VOCABULARY,
) -> Completions:
    return sampler(
        forward,
        prompts,
        torch.ones_like(prompts, dtype=torch.bool) if mask is None else mask,
        vocabulary=vocabulary,
        row_keys=torch.arange(len(prompts)) if keys is None else keys,
        temperature=temperature,
    )


def plain_decoding(
    forward: Denoiser,
    prompt: Tensor,
    key: Tensor,
    *,
    length: int,
    block_size: int,
    steps: int,
    remasking: str,
    temperature: float,
    vocabulary: Vocabulary = VOCABULARY,
) -> tuple[list[int], list[int]]:
    """One row, logits everywhere, Python loops, no early stop: tokens and steps of the whole completion."""
    ids = torch.cat([prompt, torch.full((length,), vocabulary.mask_token_id)])
    steps_of = [-1] * length
    per_block = steps * block_size // length
    for step in range(steps):
        start = step // per_block * block_size
        draws = uniforms(key[None], Purpose.TOKEN, step, length)[0].tolist()
        scores = uniforms(key[None], Purpose.REMASKING, step, length)[0].tolist()
        logits = forward(ids[None])[0, len(prompt) :].double()
        found = []
        for position in range(start, start + block_size):
            if steps_of[position] >= 0:
                continue
            allowed = [t for t in range(vocabulary.num_candidates) if t != vocabulary.mask_token_id]
            token = _plain_draw(logits[position, allowed], draws[position], temperature)
            probability = float(logits[position, allowed].softmax(0)[token])
            score = probability if remasking == "low_confidence" else scores[position]
            found.append((-score, position, allowed[token]))
        remainder = block_size % per_block
        count = block_size // per_block + (1 if step % per_block < remainder else 0)
        for _, position, token in sorted(found)[:count]:
            ids[len(prompt) + position] = token
            steps_of[position] = step
    return ids[len(prompt) :].tolist(), steps_of


def _plain_draw(logits: Tensor, uniform: float, temperature: float) -> int:
    if temperature == 0:
        return int(logits.argmax())
    passed = 0.0
    for token, probability in enumerate((logits / temperature).softmax(0).tolist()):
        passed += probability
        if passed > uniform:
            return token
    raise AssertionError("the probabilities do not add up to 1")


def cut(tokens: list[int], steps: list[int], vocabulary: Vocabulary = VOCABULARY) -> tuple[list[int], list[int], int]:
    """What is left of a completion once everything after its first end token is taken back, and its length."""
    ends = [position for position, token in enumerate(tokens) if token in vocabulary.end_token_ids]
    kept = ends[0] + 1 if ends else len(tokens)
    dropped = len(tokens) - kept
    return tokens[:kept] + [vocabulary.mask_token_id] * dropped, steps[:kept] + [-1] * dropped, kept


def same(first: Completions, second: Completions) -> bool:
    return (
        torch.equal(first.token_ids, second.token_ids)
        and torch.equal(first.completion_mask, second.completion_mask)
        and torch.equal(first.step_map, second.step_map)
    )
