"""Bytes on each GPU, part by part, in the four moments of a run that can be the fullest.

`sample`: a denoising step of a rollout. `score`: an estimate without gradient. `loss`: the end of a micro-batch's
forward pass. `backward`: the backward pass of a layer. What persists from one moment to the next is in all of them:
Lightning keeps the gradients until the next update's first backward pass.

Not counted: what the allocator loses to fragmentation, CUDA's own memory, and communication buffers of NCCL.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from stabledrl.backbones.shapes import ModelShape
from stabledrl.chunked_cross_entropy import CHUNK_ON_DEVICE
from stabledrl.planning.activations import kept_per_token, passing_per_token
from stabledrl.planning.loads import Load, RowPass

Sharding = Literal["none", "ddp", "fsdp", "fsdp2"]
Moment = Literal["sample", "score", "loss", "backward"]
MOMENTS: tuple[Moment, ...] = ("sample", "score", "loss", "backward")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How a model is trained.

    Attributes:
        shape: The model.
        adapters: Parameters of LoRA's float32 matrices, trained in place of the model's; 0 trains the model's.
        sharding: `none` for one process, `ddp`, `fsdp` (SHARD_GRAD_OP) or `fsdp2`.
        shards: Processes that a copy of the weights is split over; 1 without sharding.
        weight_bytes: Of a parameter of the model and of its copy in the reference: 4 for float32 weights.
        compute_bytes: Of a number in forward and backward passes: 2 for bf16-mixed.
        state_bytes: Of the optimizer's state, per trainable parameter.
        checkpointing: Whether activations are computed anew in the backward pass.
        reference: Where the frozen copy of the weights is kept, if there is one.
        offload: Whether weights, gradients and optimizer state are kept on the CPU.
        bucket_copies: Whether DDP copies gradients into buckets of its own.
    """

    shape: ModelShape
    sharding: Sharding
    shards: int
    weight_bytes: int
    compute_bytes: int
    state_bytes: float
    checkpointing: bool
    adapters: int = 0
    reference: Literal["none", "gpu", "cpu"] = "none"
    offload: bool = False
    bucket_copies: bool = True

    @property
    def trainable(self) -> int:
        """Parameters with a gradient."""
        return self.adapters or self.shape.parameters

    @property
    def trained_bytes(self) -> int:
        """Of a parameter with a gradient, and of the gradient."""
        return 4 if self.adapters else self.weight_bytes

    @property
    def whole(self) -> bool:
        """Whether every process has all weights."""
        return self.sharding in ("none", "ddp")

    @property
    def stream_bytes(self) -> int:
        """Of a number in the residual stream: that of the embedding, which autocast leaves as it is."""
        return self.weight_bytes if self.whole else self.compute_bytes


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes per GPU.

    Attributes:
        parts: By part and moment.
        host: Bytes of memory of the machine per process while the weights are loaded.
    """

    parts: Mapping[str, Mapping[Moment, float]]
    host: float

    def total(self, moment: Moment) -> float:
        """Sum over the parts."""
        return sum(part[moment] for part in self.parts.values())

    @property
    def fullest(self) -> Moment:
        """The moment of the peak."""
        return max(MOMENTS, key=self.total)

    @property
    def peak(self) -> float:
        """The largest sum."""
        return self.total(self.fullest)


def plan_memory(setting: Setting, load: Load) -> Memory:
    """Adds up what a process holds.

    Args:
        setting: How the model is trained.
        load: What it is trained on.

    Returns:
        The parts; see the functions below for what each assumes.
    """
    copies = 1 if setting.reference == "none" else 2
    return Memory(
        parts={
            "weights": _steady(setting, setting.shape.parameters * setting.weight_bytes + setting.adapters * 4),
            "gradients": _steady(setting, setting.trainable * setting.trained_bytes),
            "optimizer": _steady(setting, setting.trainable * setting.state_bytes),
            "reference": _reference(setting),
            "weights in use": _gathered(setting),
            "gradient exchange": _exchange(setting),
            "activations": _activations(setting, load),
            "KV cache": _cache(setting, load),
            "logits": _logits(setting, load),
        },
        host=copies * setting.shape.parameters * setting.weight_bytes,
    )


def _moments(sample: float, score: float, loss: float, backward: float) -> dict[Moment, float]:
    return {"sample": sample, "score": score, "loss": loss, "backward": backward}


def _steady(setting: Setting, size: float) -> dict[Moment, float]:
    """Split over the shards, always there, unless it is kept on the CPU."""
    own = 0.0 if setting.offload else size / setting.shards
    return _moments(own, own, own, own)


def _reference(setting: Setting) -> dict[Moment, float]:
    """A copy of all weights in their precision, split like them. A whole one on the CPU comes over to score."""
    if setting.reference == "none":
        return _moments(0, 0, 0, 0)
    own = setting.shape.parameters * setting.weight_bytes / setting.shards
    if setting.reference == "gpu":
        return _moments(own, own, own, own)
    return _moments(0, own if setting.whole else 0, 0, 0)


def _gathered(setting: Setting) -> dict[Moment, float]:
    """Copies of the weights that passes compute with.

    Whole weights: autocast makes one of each matrix that is wider than its precision, and keeps it for the pass.
    Sharded ones are gathered once for sampling and once for scoring, policy or reference. In an update FSDP has them
    all until their layer's backward pass; FSDP2 the embedding, the head and two layers, the one at work and the next.
    """
    shape = setting.shape
    whole = float(shape.parameters * setting.compute_bytes)
    if setting.whole:
        whole = 0.0 if setting.weight_bytes <= setting.compute_bytes else whole
        return _moments(whole, whole, whole, whole)
    few = float((shape.outer_parameters + 2 * shape.layer_parameters) * setting.compute_bytes)
    update = whole if setting.sharding == "fsdp" else min(few, whole)
    return _moments(whole, whole, update, update)


def _exchange(setting: Setting) -> dict[Moment, float]:
    """Gradients on their way between processes.

    DDP has buckets for all of them, made once. FSDP and FSDP2 hold two layers' or, last, the embedding's and the head's
    whole gradients, in the precision of the pass and once more in float32, in which they are summed.
    """
    if setting.sharding == "none":
        return _moments(0, 0, 0, 0)
    if setting.sharding == "ddp":
        own = float(setting.trainable * setting.trained_bytes) if setting.bucket_copies else 0.0
        return _moments(own, own, own, own)
    most = max(setting.shape.outer_parameters, 2 * setting.shape.layer_parameters)
    return _moments(0, 0, 0, min(most, setting.trainable) * (setting.compute_bytes + 4))


def _activations(setting: Setting, load: Load) -> dict[Moment, float]:
    """What layers keep for the backward pass, or need while they run without one.

    With activation checkpointing a layer keeps the residual stream at its entry, and one layer at a time all the rest;
    without, every layer keeps all. In its backward pass a layer also holds gradients of its feed-forward part. With
    adapters, what frozen weights need not keep outweighs what adapters do.
    """
    shape, stream, compute = setting.shape, setting.stream_bytes, setting.compute_bytes
    passing = passing_per_token(shape, compute, stream)
    one = kept_per_token(shape, compute, stream, setting.weight_bytes if setting.whole else compute)
    tokens = load.update_rows * load.scoring.tokens
    mask = load.update_rows * load.scoring.mask
    layer = tokens * one + mask * compute
    kept = tokens * shape.hidden_size * stream if setting.checkpointing else layer
    # The last norm's copy in float32, its result, and the mask as it was made.
    end = tokens * shape.hidden_size * (4 + compute) + mask
    return _moments(
        _without_gradient(load.sampling, load.sampling_rows, passing, compute),
        _without_gradient(load.scoring, load.scoring_rows, passing, compute),
        shape.layers * kept + end,
        shape.layers * kept + mask + (layer if setting.checkpointing else 0) + tokens * passing,
    )


def _without_gradient(row: RowPass, rows: int, passing: float, compute: int) -> float:
    # A boolean mask, and the one that attention makes of it.
    return rows * (row.tokens * passing + row.mask * (1 + compute))


def _cache(setting: Setting, load: Load) -> dict[Moment, float]:
    """Keys and values of every layer, for all columns of the completions that are sampled together."""
    per_column = 2 * setting.shape.key_width * setting.shape.layers * setting.compute_bytes
    return _moments(load.sampling_rows * load.sampling.cached * per_column, 0, 0, 0)


def _logits(setting: Setting, load: Load) -> dict[Moment, float]:
    """Logits, in copies.

    Sampling: as computed, as candidates in float32, and as weights in float32; at the block's masked positions only.
    An estimate that asks for log-probabilities has one part of the vocabulary's at a time, `CHUNK_ON_DEVICE` logits,
    the hidden states of the scored tokens, and in the update their gradient in float32 and the head's.
    One that asks for logits (`keep_logits`) has them as computed and twice in float32, and at the loss three times in
    float32: the log-softmax, its gradient and that of the logits.
    """
    shape, compute = setting.shape, setting.compute_bytes
    sampled = load.sampling_rows * load.sampling.logits * shape.vocabulary * (compute + 8)
    head = shape.vocabulary * shape.hidden_size * compute if not setting.adapters else 0
    scored = load.scoring_rows * (load.scoring.logits + load.scoring.targets)
    if load.scoring.logits:
        at_loss = load.scored * shape.vocabulary * max(compute + 8, 12)
        return _moments(sampled, scored * shape.vocabulary * (compute + 8), at_loss + head, 0)
    part = CHUNK_ON_DEVICE * (4 + 2 * compute)
    hidden = shape.hidden_size * compute
    at_loss = load.scored * (hidden + shape.hidden_size * 4)
    return _moments(sampled, part + scored * hidden, part + at_loss + head, 0)
