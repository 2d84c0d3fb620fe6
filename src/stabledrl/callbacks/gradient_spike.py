"""Watches the gradient norm before clipping: logs it, finds spikes, keeps broken gradients out of the weights."""

import math
import statistics
from collections import deque
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from stabledrl.callbacks.alarm import TrainingStoppedError, alarm
from stabledrl.errors import UserInputError
from stabledrl.gradients import gradient_norm


class GradientSpikeMonitor(Callback):
    """Logs `train/grad_norm`, counts spikes and non-finite gradients, and skips updates on request.

    A spike is a norm above `factor` times the running median of the last `window` healthy norms: the median is a scale
    that spikes themselves do not move. An update whose gradient is not finite is always skipped and counted.

    Args:
        factor: How many running medians make a spike.
        window: Healthy norms the median is taken over.
        min_history: Healthy norms needed before a spike can be called.
        skip: Skip the update on a spike.
        stop_after: End the run after this many spikes in a row; None never does.
        stop_after_nonfinite: End the run after this many non-finite gradients in a row; None never does.

    Raises:
        UserInputError: A value is out of range.

    Example:
        >>> monitor = GradientSpikeMonitor(factor=10.0, skip=True, stop_after=5)
    """

    def __init__(
        self,
        factor: float = 10.0,
        window: int = 50,
        min_history: int = 5,
        skip: bool = False,
        stop_after: int | None = None,
        stop_after_nonfinite: int | None = 10,
    ) -> None:
        if not (math.isfinite(factor) and factor > 1):
            raise UserInputError(f"factor {factor} must be a finite number above 1")
        if not 1 <= min_history <= window:
            raise UserInputError(f"min_history {min_history} must lie between 1 and window {window}")
        for name, value in (("stop_after", stop_after), ("stop_after_nonfinite", stop_after_nonfinite)):
            if value is not None and value < 1:
                raise UserInputError(f"{name} {value} must be at least 1, or null for never")
        self.factor, self.window, self.min_history = factor, window, min_history
        self.skip, self.stop_after, self.stop_after_nonfinite = skip, stop_after, stop_after_nonfinite
        self.spikes = self.nonfinite_updates = self.skipped_updates = 0
        self._spikes_in_row = self._nonfinite_in_row = 0
        self._history: deque[float] = deque(maxlen=window)

    @property
    def running_median(self) -> float | None:
        """Median of the last healthy norms; None while there are too few."""
        return statistics.median(self._history) if len(self._history) >= self.min_history else None

    @override
    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        norm_tensor: Tensor = gradient_norm(trainer.model or pl_module)
        norm = norm_tensor.item()
        finite = math.isfinite(norm)
        median = self.running_median
        spike = finite and median is not None and norm > self.factor * median
        self._count(norm, finite, spike)
        if not finite or (spike and self.skip):
            self.skipped_updates += 1
            optimizer.zero_grad(set_to_none=True)
        pl_module.log_dict(
            {
                "train/grad_norm": norm,
                "train/spikes": float(self.spikes),
                "train/nonfinite_updates": float(self.nonfinite_updates),
                "train/skipped_updates": float(self.skipped_updates),
            },
            batch_size=1,
        )
        if spike or not finite:
            self._tell(trainer, norm, median, skipped=not finite or self.skip)

    def _count(self, norm: float, finite: bool, spike: bool) -> None:
        self.nonfinite_updates += not finite
        self._nonfinite_in_row = 0 if finite else self._nonfinite_in_row + 1
        self.spikes += spike
        self._spikes_in_row = self._spikes_in_row + 1 if spike else 0
        # A rollout whose groups are all flat has no gradient: it says nothing about the scale.
        if finite and not spike and norm > 0:
            self._history.append(norm)

    def _tell(self, trainer: Trainer, norm: float, median: float | None, *, skipped: bool) -> None:
        scale = "" if median is None else f", {norm / median:.1f} times the running median {median:.3g}"
        what = "update skipped" if skipped else "update made"
        message = f"step {trainer.global_step}: gradient norm {norm:.3g}{scale}; {what}"
        for count, limit, kind in (
            (self._spikes_in_row, self.stop_after, "spikes"),
            (self._nonfinite_in_row, self.stop_after_nonfinite, "non-finite gradients"),
        ):
            if limit is not None and count >= limit:
                raise TrainingStoppedError(
                    f"{message}. {count} {kind} in a row: stopped. Try a smaller learning rate, gradient_clip_val, "
                    f"length-normalised likelihoods or the StableDRL objective"
                )
        alarm(message)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {
            "spikes": self.spikes,
            "nonfinite_updates": self.nonfinite_updates,
            "skipped_updates": self.skipped_updates,
            "spikes_in_row": self._spikes_in_row,
            "nonfinite_in_row": self._nonfinite_in_row,
            "history": list(self._history),
        }

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.spikes = state_dict["spikes"]
        self.nonfinite_updates = state_dict["nonfinite_updates"]
        self.skipped_updates = state_dict["skipped_updates"]
        self._spikes_in_row = state_dict["spikes_in_row"]
        self._nonfinite_in_row = state_dict["nonfinite_in_row"]
        self._history = deque(state_dict["history"], maxlen=self.window)
