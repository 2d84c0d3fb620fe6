"""Which of transformers' attention functions a pass runs: the one that its mask is made for.

The mask decides, not a switch: an activation-checkpointed layer runs again in the backward pass, with the mask of its
own forward pass, when a switch could stand otherwise.
"""

from typing import Any

from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask
from transformers import AttentionInterface, AttentionMaskInterface

SDPA_OR_FLEX = "sdpa_or_flex"
"""Name under which transformers knows the function. It is never saved: config.json does not hold it."""


def sdpa_or_flex(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | BlockMask | None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attends by flex_attention where the mask is a `BlockMask`, else by sdpa; arguments are transformers' own."""
    name = "flex_attention" if isinstance(attention_mask, BlockMask) else "sdpa"
    result: tuple[Tensor, Tensor | None] = AttentionInterface()[name](
        module, query, key, value, attention_mask, **options
    )
    return result


AttentionInterface.register(SDPA_OR_FLEX, sdpa_or_flex)
# 4D masks and block masks pass through; without a mask, the model makes sdpa's.
AttentionMaskInterface.register(SDPA_OR_FLEX, AttentionMaskInterface()["sdpa"])
