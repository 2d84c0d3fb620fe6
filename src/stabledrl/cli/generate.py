"""`stabledrl generate`: a prompt in, text out."""

import math
from typing import Literal

import torch
from torch import Tensor

from stabledrl.backbones import Policy
from stabledrl.cli.parsing import call
from stabledrl.data.encoding import encode_prompt
from stabledrl.diffusion import check_attention
from stabledrl.errors import UserInputError
from stabledrl.export import load_any_policy
from stabledrl.protocols import Sampler
from stabledrl.randomness import row_keys
from stabledrl.samplers import BlockDiffusionSampler, SemiAutoregressiveSampler


def generate(
    model: str,
    prompt: str,
    *,
    chat: bool = False,
    completion_length: int = 128,
    block_size: int | None = None,
    denoising_steps: int | None = None,
    temperature: float = 0.0,
    remasking: Literal["low_confidence", "random"] = "low_confidence",
    samples: int = 1,
    seed: int = 0,
    device: str = "cpu",
    num_threads: int | None = None,
) -> None:
    """Completes a prompt with a model directory, a hub id, or a .ckpt file that training wrote.

    Args:
        model: Model directory, hub id or checkpoint.
        prompt: The prompt.
        chat: Put the prompt through the model's chat template, as a user's message.
        completion_length: Tokens to generate at most.
        block_size: Tokens decoded together; by default 32, or the completion length if shorter. A block-causal model
            has its own.
        denoising_steps: Forward passes over the whole completion; by default one per token.
        temperature: 0 takes the most likely token.
        remasking: Which positions are decided first.
        samples: How many completions.
        seed: Seed of the draws.
        device: Where to run.
        num_threads: Threads of CPU operations; null leaves torch's choice, 1 is fastest for tiny models.
    """
    _check(prompt, samples, temperature, num_threads)
    steps = completion_length if denoising_steps is None else denoising_steps
    size = min(32, completion_length) if block_size is None else block_size
    # Made before the model is loaded, so that values no sampler takes are refused at once.
    sampler: Sampler = SemiAutoregressiveSampler(completion_length, size, steps, remasking)
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    _check_device(device)
    policy = load_any_policy(model).to(device)
    if policy.block_size is not None:
        own = policy.block_size if block_size is None else block_size
        sampler = BlockDiffusionSampler(completion_length, own, steps, remasking)
    check_attention(policy.block_size, sampler)
    messages = [{"role": "user", "content": prompt}] if chat else prompt
    ids = torch.tensor([encode_prompt(policy.tokenizer, messages)] * samples, device=device)
    for text in _complete(policy, sampler, ids, temperature, seed):
        print(text)


def _check(prompt: str, samples: int, temperature: float, num_threads: int | None) -> None:
    if samples < 1:
        raise UserInputError(f"samples {samples} must be at least 1")
    if not 0 <= temperature < math.inf:
        raise UserInputError(f"temperature {temperature} must be 0 (greedy) or a positive finite number")
    if not prompt:
        raise UserInputError("the prompt is empty; expected text")
    if num_threads is not None and num_threads < 1:
        raise UserInputError(f"num_threads {num_threads} must be at least 1")


def _complete(policy: Policy, sampler: Sampler, prompt_ids: Tensor, temperature: float, seed: int) -> list[str]:
    index = torch.arange(len(prompt_ids), device=prompt_ids.device)
    completions = sampler(
        policy,
        prompt_ids,
        torch.ones_like(prompt_ids, dtype=torch.bool),
        vocabulary=policy.vocabulary,
        row_keys=row_keys(seed, 0, torch.zeros_like(index), index),
        temperature=temperature,
    )
    rows = zip(completions.token_ids, completions.completion_mask)
    return [str(policy.tokenizer.decode(row[mask].tolist(), skip_special_tokens=True)) for row, mask in rows]


def _check_device(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserInputError(f"device {device!r} cannot be used: {reason}; cpu always can") from error


def run_generate(options: list[str]) -> int:
    """Runs the command."""
    call(generate, options, "stabledrl generate")
    return 0
