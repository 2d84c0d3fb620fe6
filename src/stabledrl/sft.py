"""Supervised masked-diffusion training on demonstrations: makes the model that reinforcement learning starts from."""

from typing import Any

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor
from typing_extensions import override

from stabledrl.backbones import NewPolicy, Policy
from stabledrl.diffusion import check_attention
from stabledrl.policy_module import PolicyModule
from stabledrl.protocols import LikelihoodEstimator
from stabledrl.randomness import row_keys
from stabledrl.types import Sequences


class SupervisedModule(PolicyModule):
    """Minimises the negative ELBO of demonstrations (Nie et al., "Large Language Diffusion Models", arXiv 2502.09992).

    Batches come from `stabledrl.data.DemonstrationDataModule`.

    Args:
        policy: Model directory or hub id to go on from, a policy in memory, or the shape of a new one.
        likelihood: The estimator whose ELBO is raised. Usual: one draw of uniform masks, length-normalised.
        optimizer: Makes the optimizer from the parameters.
        lr_scheduler: Makes the learning-rate schedule, stepped once per optimizer step; None keeps the rate.
        seed: Seed of the masks.
        block_size: Tokens per block of a block-causal model; None takes what its config.json or its family says.
        mask_token_id: The mask token; None takes what config.json or the family says.
        revision: Branch, tag or commit of a hub id; None takes its main branch.

    Raises:
        UserInputError: One of the last three cannot be right, or is given for a policy that is not read from anywhere.
    """

    def __init__(
        self,
        policy: str | NewPolicy | Policy,
        likelihood: LikelihoodEstimator,
        optimizer: OptimizerCallable = torch.optim.AdamW,
        lr_scheduler: LRSchedulerCallable | None = None,
        seed: int = 0,
        *,
        block_size: int | None = None,
        mask_token_id: int | None = None,
        revision: str | None = None,
    ) -> None:
        reading: dict[str, Any] = {"block_size": block_size, "mask_token_id": mask_token_id, "revision": revision}
        super().__init__(policy, optimizer, lr_scheduler, **reading)
        self.likelihood = likelihood
        self.seed = seed

    @override
    def configure_model(self) -> None:
        super().configure_model()
        check_attention(self.loaded_policy.block_size, self.likelihood)

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
        # Processes have as many rows each, so the mean of their means is that of all rows, for gradients too.
        self.log("train/loss", loss, prog_bar=True, sync_dist=True)
        return loss
