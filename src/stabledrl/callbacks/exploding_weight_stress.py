"""The stress test: inflates the noise of importance ratios during training."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

from stabledrl.callbacks.alarm import alarm
from stabledrl.errors import UserInputError
from stabledrl.module import DiffusionPolicyModule
from stabledrl.stress import LogRatioNoise, NoiseLaw, StressedObjective, stress


class ExplodingWeightStress(Callback):
    """Adds noise to the log-ratios that the objective sees (arXiv 2603.06743, "Exploding Weight Stress Test").

    Neither rewards nor the model nor what the drift monitor compares are touched. The law is our own, the paper's is
    not published; see `stabledrl.stress`. Curves named `train/log_ratio_*` and `train/ratio_*` show the ratios with it.

    Args:
        law: `gaussian` or `student_t`.
        mean: Added to every draw.
        scale: Standard deviation of the Gaussian; factor of the Student-t variable.
        degrees_of_freedom: Of the Student-t law.
        share: Probability that a completion (or group) gets noise at all.
        shared_by_group: One draw for all completions of a prompt.
        from_step: Optimizer steps before the noise begins.
        seed: Seed of the noise.

    Raises:
        UserInputError: A value is out of range; at the start of training, the objective has no importance ratio.

    Example:
        >>> stress = ExplodingWeightStress(law="student_t", scale=2.0, degrees_of_freedom=2, share=0.25)
    """

    requires_rollouts = True

    def __init__(
        self,
        law: NoiseLaw = "gaussian",
        mean: float = 0.0,
        scale: float = 3.0,
        degrees_of_freedom: int = 3,
        share: float = 1.0,
        shared_by_group: bool = False,
        from_step: int = 0,
        seed: int = 0,
    ) -> None:
        if from_step < 0:
            raise UserInputError(f"from_step {from_step} must be at least 0")
        self.noise = LogRatioNoise(
            law=law,
            mean=mean,
            scale=scale,
            degrees_of_freedom=degrees_of_freedom,
            share=share,
            shared_by_group=shared_by_group,
            seed=seed,
        )
        self.from_step = from_step

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        if not isinstance(pl_module, DiffusionPolicyModule):
            raise UserInputError(
                f"ExplodingWeightStress needs a DiffusionPolicyModule, not a {type(pl_module).__name__}"
            )
        pl_module.objective = stress(
            pl_module.objective, self.noise, lambda: trainer.global_step, from_step=self.from_step
        )

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        alarm(f"stress test: importance ratios are inflated from step {self.from_step} on, {self.noise}")

    @override
    def teardown(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        if stage == "fit" and isinstance(pl_module.objective, StressedObjective):
            pl_module.objective = pl_module.objective.objective
