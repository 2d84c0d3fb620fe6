"""The norm of a model's gradient."""

import torch
from torch import Tensor, nn


def gradient_norm(module: nn.Module) -> Tensor:
    """Euclidean norm over all gradients, summed in float32.

    Args:
        module: Any module; parameters without gradient are passed over.

    Returns:
        Scalar float32; 0 if no parameter has a gradient, not finite if one entry is not.
    """
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    if not gradients:
        return torch.zeros(())
    norms = [torch.linalg.vector_norm(gradient, dtype=torch.float32) for gradient in gradients]
    return torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))
