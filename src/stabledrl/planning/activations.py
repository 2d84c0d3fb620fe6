"""Bytes per token that transformers' decoder layers take, with sdpa attention and gated feed-forward parts.

The formula is that of what autograd saves, which tests count on small models of each kind; per layer
    norms      two, each its input in float32 and its normalised input; of queries and keys too, where there are
    inputs     of the matrix products: the two norms' results, copied once per product where autocast casts them
    attention  query, key and value of every head, and the result
    dense      gate, its activation, up, and the product of both
    experts    the same for each expert that sees the token, and its input and output, in the precision of the weights
"""

from stabledrl.backbones.shapes import ModelShape


def kept_per_token(shape: ModelShape, compute: int, stream: int, expert: int) -> float:
    """What one layer keeps for its backward pass.

    Args:
        shape: The model.
        compute: Bytes of a number in matrix products.
        stream: Bytes of a number in the residual stream.
        expert: Bytes of a number in experts, whose grouped products autocast does not cast.

    Returns:
        Bytes, the attention mask aside.
    """
    products = 2 if stream == compute else 5  # q, k, v and gate, up
    norms = 2 * (4 + stream) * shape.hidden_size
    if shape.normalizes_queries:
        norms += (4 + compute) * (shape.query_width + shape.key_width)
    inputs = products * compute * shape.hidden_size
    return norms + inputs + 4 * compute * shape.query_width + _feed_forward(shape, compute, expert)


def _feed_forward(shape: ModelShape, compute: int, expert: int) -> float:
    dense = 4 * compute * shape.dense_width
    routed = shape.experts_per_token * (4 * shape.expert_width + 2 * shape.hidden_size) * expert
    return max(dense, routed + 4 * compute * shape.shared_width if shape.expert_width else 0)


def passing_per_token(shape: ModelShape, compute: int, stream: int) -> float:
    """What a layer holds at once while it keeps nothing: the residual stream, a norm in float32, and either attention's
    or the feed-forward part's widest three tensors and their input. About what a backward pass adds to what was kept.

    Args:
        shape: The model.
        compute: Bytes of a number in matrix products.
        stream: Bytes of a number in the residual stream.

    Returns:
        Bytes.
    """
    experts = shape.experts_per_token * (shape.expert_width + shape.hidden_size) + shape.shared_width
    widest = max(4 * shape.query_width, 3 * shape.dense_width, 3 * experts if shape.expert_width else 0)
    return (stream + 4) * shape.hidden_size + compute * (shape.hidden_size + widest)
