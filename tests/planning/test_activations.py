"""The bytes that layers keep are what autograd saves, counted on small models of each kind."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from tests.backbones.golden import GOLDEN
from tests.training import tiny_policy
from torch import Tensor, nn

from stabledrl.backbones import Policy
from stabledrl.backbones.lora import LoRA
from stabledrl.backbones.shapes import ModelShape, model_shape
from stabledrl.export import export_policy
from stabledrl.likelihoods import MonteCarloElbo
from stabledrl.planning import Setting, measure_load, plan_memory
from stabledrl.planning.activations import kept_per_token
from stabledrl.samplers import SemiAutoregressiveSampler
from stabledrl.sharding import checkpoint_activations
from stabledrl.types import Sequences

ROWS, LENGTH, PROMPT = 2, 50, 16
FLOAT, HALF = torch.float32, torch.bfloat16


class Saved:
    """Bytes of the storages that autograd saves, parameters and casts of parameters aside."""

    def __init__(self, model: nn.Module, *inputs: Tensor) -> None:
        self.own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *inputs)}
        self.matrices = {tuple(p.shape) for p in model.parameters() if p.ndim == 2}
        self.matrices |= {shape[::-1] for shape in self.matrices}
        self.found: dict[int, tuple[int, Tensor]] = {}

    def __call__(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.own and tuple(tensor.shape) not in self.matrices:
            # The tensor is held: a freed one's place could be taken by another.
            self.found[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    @property
    def total(self) -> int:
        return sum(size for size, _ in self.found.values())


def saved_by(model: nn.Module, run: Any, *inputs: Tensor, autocast: bool) -> int:
    saved = Saved(model, *inputs)
    context = torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext()
    with torch.autograd.graph.saved_tensors_hooks(saved, lambda tensor: tensor), context:
        kept = run()  # the graph stays alive until it is counted
    assert kept is not None
    return saved.total


def per_layer_token(policy: Policy, dtype: torch.dtype, *, autocast: bool) -> float:
    """What one more layer keeps, per token: the last layer is run again on its own input."""
    policy.to(dtype)
    layers: Any = policy.model.model.layers
    inputs: dict[str, Any] = {}

    def note(module: nn.Module, arguments: Any, options: Any) -> None:
        inputs.update(arguments=arguments, options=options)

    hook = layers[-1].register_forward_pre_hook(note, with_kwargs=True)
    whole = torch.ones(ROWS, 1, LENGTH, LENGTH, dtype=torch.bool)
    ids = torch.randint(0, policy.vocabulary.num_candidates, (ROWS, LENGTH))
    with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
        policy.logits(ids, whole, position_ids=torch.arange(LENGTH).expand(ROWS, -1))
    hook.remove()
    hidden = inputs["arguments"][0].detach().requires_grad_()
    rest = {name: value for name, value in inputs["options"].items() if name != "cache"}
    # All layers share the tables of rotary positions.
    tables = rest["position_embeddings"]
    total = saved_by(layers[-1], lambda: layers[-1](hidden, **rest), *tables, autocast=autocast)
    mask = ROWS * LENGTH * LENGTH * (2 if autocast or dtype == HALF else 4)
    return (total - mask) / (ROWS * LENGTH)


@pytest.mark.parametrize("name", ["llada", "dream", "sdar", "sdar_moe", "llada_moe", "llada2_moe"])
@pytest.mark.parametrize(("dtype", "autocast"), [(FLOAT, False), (HALF, True), (HALF, False), (FLOAT, True)])
def test_a_layer_keeps_what_the_formula_says(name: str, dtype: torch.dtype, autocast: bool) -> None:
    golden = GOLDEN[name]
    shape = model_shape(str(golden.path), golden.options.get("block_size"))
    compute, stream = 2 if autocast or dtype == HALF else 4, dtype.itemsize
    expected = kept_per_token(shape, compute, stream, stream)
    counted = per_layer_token(golden.load(), dtype, autocast=autocast)
    # Routing, and numbers per token and head, which weigh more in a model that narrow.
    assert counted == pytest.approx(expected, rel=0.2 if shape.expert_width else 0.03)


def test_adapters_keep_no_more_than_trained_weights() -> None:
    golden = GOLDEN["llada"]
    policy, shape = golden.load(), model_shape(str(golden.path))
    LoRA(rank=4).add_to(policy)
    expected = kept_per_token(shape, 2, 2, 2)
    assert 0.6 * expected < per_layer_token(policy, HALF, autocast=True) < 1.02 * expected


@pytest.mark.parametrize("checkpointing", [False, True])
def test_an_update_keeps_what_is_planned_for_it(checkpointing: bool, tmp_path: Any) -> None:
    policy = tiny_policy(hidden_size=32, num_layers=4, intermediate_size=96)
    shape = model_shape(str(export_policy(policy, tmp_path / "model")))
    estimator = MonteCarloElbo(draws=2, block_size=10)
    if checkpointing:
        checkpoint_activations(policy)
    load = measure_load(
        SemiAutoregressiveSampler(LENGTH, 10, LENGTH),
        estimator,
        prompt_length=PROMPT,
        rollout_rows=ROWS,
        micro_batches=1,
        rows_per_forward=None,
    )
    planned = plan_memory(setting(shape, checkpointing=checkpointing), load).parts["activations"]["loss"]
    sequences = full_sequences(policy)
    corruption = estimator.corrupt(sequences, update=0)
    counted = saved_by(
        policy, lambda: estimator(policy, sequences, corruption, vocabulary=policy.vocabulary), autocast=False
    )
    assert counted == pytest.approx(planned, rel=0.15)


def full_sequences(policy: Policy) -> Sequences:
    ids = torch.full((ROWS, PROMPT + LENGTH), policy.vocabulary.num_candidates - 1)
    whole = torch.ones_like(ids, dtype=torch.bool)
    return Sequences(
        token_ids=ids, attention_mask=whole, completion_mask=whole[:, PROMPT:], row_keys=torch.arange(ROWS)
    )


def setting(shape: ModelShape, *, checkpointing: bool) -> Setting:
    return Setting(
        shape=shape,
        sharding="none",
        shards=1,
        weight_bytes=4,
        compute_bytes=4,
        state_bytes=8,
        checkpointing=checkpointing,
    )
