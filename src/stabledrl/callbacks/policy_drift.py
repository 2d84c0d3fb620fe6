"""Measures how far the policy has moved from where it started."""

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from typing_extensions import override

from stabledrl.callbacks.log_once import log_once
from stabledrl.errors import UserInputError
from stabledrl.module import DiffusionPolicyModule
from stabledrl.objectives.kl import kl_penalty
from stabledrl.processes import Processes
from stabledrl.types import RolloutBatch


class PolicyDriftMonitor(Callback):
    """Logs `train/drift_kl`: KL divergence of the sampling policy from the frozen reference, on its own samples.

    The loop that collapses a run, noisy ratios -> gradient spikes -> drift -> noisier ratios, is then one page of
    TensorBoard's Custom Scalars tab (`stabledrl.callbacks.Dashboard`): the objective logs the spread of the ratios
    before any clip, `GradientSpikeMonitor` the gradient norm.

    It compares the old policy's estimate with the reference's, on the same masks, with the k3 estimator. It makes the
    reference necessary, also at KL coefficient 0: one more copy of the weights (none where adapters are trained), and
    one more pass per rollout.

    Args:
        every_n_rollouts: How often to log.

    Raises:
        UserInputError: `every_n_rollouts` is below 1.

    Example:
        >>> monitor = PolicyDriftMonitor()
    """

    requires_rollouts = True

    def __init__(self, every_n_rollouts: int = 1) -> None:
        if every_n_rollouts < 1:
            raise UserInputError(f"every_n_rollouts {every_n_rollouts} must be at least 1")
        self.every_n_rollouts = every_n_rollouts
        self._seen = 0
        self._parts: list[Tensor] = []

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        if not isinstance(pl_module, DiffusionPolicyModule):
            raise UserInputError(f"PolicyDriftMonitor needs a DiffusionPolicyModule, not a {type(pl_module).__name__}")
        pl_module.needs_reference = True

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: dict[str, Any], batch_idx: int
    ) -> None:
        if batch["update"] > 0:
            return
        rollouts: RolloutBatch = batch["rollouts"]
        assert rollouts.reference is not None
        self._parts.append(kl_penalty(rollouts.old.elbo, rollouts.reference.elbo, "k3"))
        if int(batch["slot"]) + 1 < trainer.accumulate_grad_batches:
            return
        if self._seen % self.every_n_rollouts == 0:
            everyone = Processes.of_run().exchange(torch.cat(self._parts).mean().item())
            log_once(trainer, {"train/drift_kl": sum(everyone) / len(everyone)}, batch["step"])
        self._seen += 1
        self._parts.clear()

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"seen": self._seen}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._seen = state_dict["seen"]
