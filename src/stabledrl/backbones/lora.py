"""Low-rank adapters (LoRA, Hu et al., arXiv 2106.09685) on a policy, through peft: training for one small GPU.

The weights of the model stay as they are, so the policy without its adapters is the frozen reference, and a checkpoint
holds the adapters alone.
"""

import importlib.util
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from stabledrl.backbones.policy import Policy
from stabledrl.errors import UserInputError
from stabledrl.randomness import Purpose, fold, uniforms

_ADAPTER = "default"
"""peft's name of a model's only adapter."""


@dataclass(frozen=True, kw_only=True)
class LoRA:
    """Adds adapters to linear layers: their output becomes W x + alpha / rank B A x, and only A and B are trained.

    Attributes:
        rank: Rows of A. 128 with alpha 64 in d1 (arXiv 2504.12216) and ESPO (arXiv 2512.03759).
        alpha: Scale of the adapters, times rank.
        dropout: Share of an adapter's input features that training passes leave out, drawn anew for every optimizer
            step; old-policy and reference estimates, samples and evaluations leave out none.
        target_modules: Names of the layers, such as `q_proj`; None takes every linear layer of attention and
            feed-forward blocks. The experts of a mixture and the head are none.
        seed: Seed of the first adapters and of dropout.

    Raises:
        UserInputError: peft is not installed, or a value is out of range.
    """

    rank: int = 128
    alpha: int = 64
    dropout: float = 0.0
    target_modules: list[str] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if importlib.util.find_spec("peft") is None:
            raise UserInputError("lora needs the package peft: pip install 'stabledrl[lora]'")
        for name in ("rank", "alpha"):
            if getattr(self, name) < 1:
                raise UserInputError(f"lora.{name} {getattr(self, name)} must be at least 1")
        if not 0 <= self.dropout < 1:
            raise UserInputError(f"lora.dropout {self.dropout} must be at least 0 and below 1")

    @classmethod
    def of_fingerprint(cls, fingerprint: Mapping[str, Any]) -> "LoRA | None":
        """The adapters that a `Policy.fingerprint` tells of, without their dropout; None if it tells of none."""
        if "lora_rank" not in fingerprint:
            return None
        return cls(
            rank=fingerprint["lora_rank"],
            alpha=fingerprint["lora_alpha"],
            target_modules=fingerprint["lora_target_modules"],
        )

    def add_to(self, policy: Policy) -> None:
        """Adds adapters that change nothing yet, in float32, and freezes everything else; once, in place.

        Raises:
            UserInputError: A target is no linear layer of the model, or it has other adapters already.
        """
        targets = self._targets(policy)
        settings = {"lora_rank": self.rank, "lora_alpha": self.alpha, "lora_target_modules": targets}
        if policy.adapters:
            if not settings.items() <= policy.adapters.items():
                raise UserInputError(f"lora {settings}: the policy has other adapters already, {policy.adapters}")
            return
        base = {"base_dtype": str(policy.model.dtype).removeprefix("torch."), "base_weights": _digest(policy.model)}
        self._inject(policy.model, targets)
        for name, parameter in policy.model.named_parameters():
            if is_adapter(name):
                # peft takes the model's precision: in bfloat16, small steps would be lost.
                parameter.data = parameter.data.float()
        policy.adapters = {**settings, **base}

    def _targets(self, policy: Policy) -> list[str]:
        head = policy.model.get_output_embeddings()
        linear = {
            name.removesuffix(".base_layer").rpartition(".")[2]
            for name, layer in policy.model.named_modules()
            if isinstance(layer, nn.Linear) and layer is not head and not is_adapter(name)
        }
        targets = linear if self.target_modules is None else set(self.target_modules)
        if unknown := sorted(targets - linear):
            raise UserInputError(f"lora.target_modules {unknown[0]!r} is not one of {', '.join(sorted(linear))}")
        if not targets:
            raise UserInputError(f"lora.target_modules {self.target_modules} names no layer")
        return sorted(targets)

    def _inject(self, model: nn.Module, targets: list[str]) -> None:
        from peft import LoraConfig, inject_adapter_in_model

        config = LoraConfig(r=self.rank, lora_alpha=self.alpha, target_modules=targets)
        # Not torch.manual_seed, which would seed every GPU's generator too.
        with torch.device("cpu"), torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.seed)
            inject_adapter_in_model(config, model)
        if self.dropout:
            for number, (_, layer) in enumerate(_adapted_layers(model)):
                layer.lora_dropout[_ADAPTER] = FeatureDropout(self.dropout, self.seed, number)


class FeatureDropout(nn.Module):
    """Leaves out input features of an adapter in passes with gradient, and scales the others up.

    The same ones for all tokens of an optimizer step: so the gradient depends neither on micro-batches nor on
    processes, a layer that is computed again in the backward pass repeats itself, and so does a resumed run.

    Args:
        share: Probability of a feature to be left out.
        seed: Seed of the draws.
        number: Which of the model's adapters it is.
    """

    def __init__(self, share: float, seed: int, number: int) -> None:
        super().__init__()
        self.share, self.seed, self.number = share, seed, number
        self.step = 0
        self.without_gradient = False

    @override
    def forward(self, features: Tensor) -> Tensor:
        if not (torch.is_grad_enabled() or self.without_gradient):
            return features
        key = fold(torch.full((1,), self.seed, dtype=torch.int64, device=features.device), self.number)
        kept = uniforms(key, Purpose.ADAPTER_DROPOUT, self.step, features.shape[-1])[0] >= self.share
        return features * (kept / (1 - self.share)).to(features.dtype)


def set_dropout_step(model: nn.Module, step: int) -> None:
    """Has passes with gradient leave out what an optimizer step leaves out; without dropout, does nothing."""
    for dropout in _dropouts(model):
        dropout.step = step


@contextmanager
def dropout_without_gradient(model: nn.Module, step: int) -> Iterator[None]:
    """Has passes without gradient, too, leave out what an optimizer step leaves out."""
    set_dropout_step(model, step)
    for dropout in _dropouts(model):
        dropout.without_gradient = True
    try:
        yield
    finally:
        for dropout in _dropouts(model):
            dropout.without_gradient = False


def _dropouts(model: nn.Module) -> list[FeatureDropout]:
    return [part for part in model.modules() if isinstance(part, FeatureDropout)]


@dataclass(frozen=True)
class WithoutAdapters:
    """A policy as it was before it had adapters, without a copy of its weights: a `stabledrl.protocols.Denoiser`.

    Attributes:
        model: The policy, or what a strategy wraps around it.
    """

    model: nn.Module

    @torch.no_grad()
    def __call__(self, *arguments: Any, **options: Any) -> Tensor:
        """Computes what the policy without adapters would, without gradient."""
        layers = [layer for _, layer in _adapted_layers(self.model)]
        for layer in layers:
            layer.enable_adapters(False)
        try:
            result: Tensor = self.model(*arguments, **options)
        finally:
            for layer in layers:
                layer.enable_adapters(True)
        return result


def is_adapter(name: str) -> bool:
    """Whether a tensor of a model with adapters is one of an adapter, by its name."""
    return ".lora_" in name


def load_adapters(policy: Policy, weights: Mapping[str, Tensor]) -> None:
    """Puts trained adapters in the place of a policy's own.

    Args:
        policy: Has adapters of the same settings.
        weights: By name within `policy.model`.

    Raises:
        UserInputError: Some are missing, or do not belong there.
    """
    own = {name for name in policy.model.state_dict() if is_adapter(name)}
    if wrong := sorted(own ^ weights.keys()):
        raise UserInputError(f"the adapters do not fit the model: {len(wrong)} differ (first: {wrong[0]})")
    policy.model.load_state_dict(dict(weights), strict=False)


def merge(policy: Policy) -> Policy:
    """Adds a policy's adapters to its weights and takes them away, in place.

    In float32, which the whole model becomes: bfloat16 would round away much of what adapters have learnt.

    Returns:
        The policy, now one without adapters.
    """
    policy.float()
    policy.model.config.dtype = torch.float32
    for name, layer in _adapted_layers(policy.model):
        layer.merge()
        policy.model.set_submodule(name, layer.get_base_layer())
    delattr(policy.model, "peft_config")
    policy.adapters = {}
    return policy


def _adapted_layers(model: nn.Module) -> list[tuple[str, Any]]:
    from peft.tuners.lora import LoraLayer

    return [(name, layer) for name, layer in model.named_modules() if isinstance(layer, LoraLayer)]


def _digest(model: nn.Module) -> str:
    """Tells weights of one model from those of another of the same shape, by a few numbers of each tensor."""
    total = 0
    for name, parameter in model.named_parameters():
        flat = parameter.detach().flatten()
        few = flat[:: max(1, len(flat) // 64)].float().cpu()
        total = zlib.crc32(few.numpy().tobytes(), zlib.crc32(name.encode(), total))
    return f"{total:08x}"
