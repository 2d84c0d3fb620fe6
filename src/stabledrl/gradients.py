"""The norm of a model's gradient, and whether the weights can take the steps it makes."""

import torch
from torch import Tensor, distributed, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from stabledrl.errors import UserInputError
from stabledrl.sharding import shard_group

MIN_BFLOAT16_LR = 1e-5
"""Below it AdamW's steps are mostly rounded away: at 1e-6 2 % of the weights moved in 200 steps."""


def gradient_norm(module: nn.Module) -> Tensor:
    """Euclidean norm over all gradients, summed in float32; the same on all processes, which call it together.

    Args:
        module: Any module, as a strategy has it: where its weights are sharded, the norm is over all shards. Parameters
            without gradient are passed over.

    Returns:
        Scalar float32; 0 if no parameter has a gradient, not finite if one entry is not.
    """
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    local = [gradient.to_local() if isinstance(gradient, DTensor) else gradient for gradient in gradients]
    parts = [torch.linalg.vector_norm(gradient, dtype=torch.float32) for gradient in local]
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    norm = torch.linalg.vector_norm(
        torch.stack([part.to(device) for part in parts] or [torch.zeros((), device=device)])
    )
    if not (distributed.is_available() and distributed.is_initialized()):
        return norm
    group = shard_group(module)
    everyone = [torch.empty_like(norm) for _ in range(distributed.get_world_size(group))]
    distributed.all_gather(everyone, norm, group=group)
    norms = torch.stack(everyone)
    # Gradients that are whole have been averaged: their norms agree but for rounding, or a broken device.
    return norms.max() if group is None else torch.linalg.vector_norm(norms)


def check_update_precision(optimizer: Optimizer) -> None:
    """Refuses steps that bfloat16 weights, with their 8 significant bits, would mostly round away.

    Args:
        optimizer: Before a schedule has changed its learning rates. One that rounds stochastically says so by a true
            `bf16_stochastic_round`, as torchao's do.

    Raises:
        UserInputError: A bfloat16 parameter has a learning rate below `MIN_BFLOAT16_LR`.
    """
    if getattr(optimizer, "bf16_stochastic_round", False):
        return
    for group in optimizer.param_groups:
        if group["lr"] < MIN_BFLOAT16_LR and any(p.dtype == torch.bfloat16 for p in group["params"]):
            raise UserInputError(
                f"learning rate {float(group['lr']):g} is lost on bfloat16 weights; use at least "
                f"{MIN_BFLOAT16_LR:g}, or float32 weights (dtype float32 with precision bf16-mixed), or an optimizer "
                f"with bf16_stochastic_round"
            )
