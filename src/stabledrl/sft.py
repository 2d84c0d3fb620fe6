"""Supervised masked-diffusion training on demonstrations: makes the model that reinforcement learning starts from."""

from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor
from typing_extensions import override

from stabledrl.backbones import NewPolicy, Policy, load_policy
from stabledrl.checkpoints import POLICY_KEY, check_fingerprint
from stabledrl.diffusion import check_attention
from stabledrl.protocols import LikelihoodEstimator
from stabledrl.randomness import row_keys
from stabledrl.types import Sequences, Vocabulary


class SupervisedModule(LightningModule):
    """Minimises the negative ELBO of demonstrations (Nie et al., "Large Language Diffusion Models", arXiv 2502.09992).

    Batches come from `stabledrl.data.DemonstrationDataModule`.

    Args:
        policy: Model directory or hub id to go on from, a policy in memory, or the shape of a new one.
        likelihood: The estimator whose ELBO is raised. Usual: one draw of uniform masks, length-normalised.
        optimizer: Makes the optimizer from the parameters.
        lr_scheduler: Makes the learning-rate schedule, stepped once per optimizer step; None keeps the rate.
        seed: Seed of the masks.
    """

    def __init__(
        self,
        policy: str | NewPolicy | Policy,
        likelihood: LikelihoodEstimator,
        optimizer: OptimizerCallable = torch.optim.AdamW,
        lr_scheduler: LRSchedulerCallable | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.likelihood = likelihood
        self.seed = seed
        self._make_optimizer = optimizer
        self._make_scheduler = lr_scheduler
        self._source = policy
        self.policy: Policy | None = policy if isinstance(policy, Policy) else None

    @override
    def configure_model(self) -> None:
        if self.policy is None:
            source = self._source
            assert not isinstance(source, Policy)
            self.policy = source.build() if isinstance(source, NewPolicy) else load_policy(source)
        check_attention(self.policy.block_size, self.likelihood)

    @property
    def loaded_policy(self) -> Policy:
        """The policy; only after `configure_model`."""
        assert self.policy is not None, "the policy is loaded in configure_model"
        return self.policy

    @property
    def tokenizer(self) -> Any:
        """The policy's tokenizer."""
        return self.loaded_policy.tokenizer

    @property
    def vocabulary(self) -> Vocabulary:
        """The policy's special ids and candidates."""
        return self.loaded_policy.vocabulary

    @override
    def forward(self, *arguments: Any, **options: Any) -> Tensor:
        """Logits of the policy, see `stabledrl.protocols.Denoiser`."""
        logits: Tensor = self.loaded_policy(*arguments, **options)
        return logits

    @override
    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        keys = row_keys(self.seed, int(batch["step"]), batch["prompt_id"], batch["sample_index"])
        sequences = Sequences(
            token_ids=batch["token_ids"],
            attention_mask=batch["attention_mask"],
            completion_mask=batch["completion_mask"],
            row_keys=keys,
        )
        corruption = self.likelihood.corrupt(sequences, update=None)
        estimate = self.likelihood(self, sequences, corruption, vocabulary=self.vocabulary)
        loss = -estimate.elbo.mean()
        self.log("train/loss", loss, prog_bar=True)
        return loss

    @override
    def configure_optimizers(self) -> OptimizerLRScheduler:
        optimizer = self._make_optimizer([p for p in self.parameters() if p.requires_grad])
        if self._make_scheduler is None:
            return {"optimizer": optimizer}
        scheduler = self._make_scheduler(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    @override
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint[POLICY_KEY] = self.loaded_policy.describe()

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        check_fingerprint(checkpoint.get(POLICY_KEY, {}).get("fingerprint", {}), self.loaded_policy.fingerprint)
