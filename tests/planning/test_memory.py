"""The parts of the memory: against counts on the meta device, and against each other where one setting changes."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from stabledrl.backbones.llada import Llada
from stabledrl.backbones.sdar import Sdar
from stabledrl.backbones.shapes import known_configs, model_shape
from stabledrl.planning import Load, RowPass, Setting, plan_memory, state_bytes
from stabledrl.planning.memory import MOMENTS, Moment

LOAD = Load(
    sampling=RowPass(tokens=512, logits=32, mask=512**2),
    sampling_rows=32,
    scoring=RowPass(tokens=1024, targets=300, mask=2 * 512**2),
    scoring_rows=32,
    update_rows=16,
    scored=5000,
)
LLADA = model_shape("GSAI-ML/LLaDA-8B-Instruct")


def setting(**changed: Any) -> Setting:
    defaults: dict[str, Any] = {
        "shape": LLADA,
        "sharding": "fsdp2",
        "shards": 8,
        "weight_bytes": 4,
        "compute_bytes": 2,
        "state_bytes": 8.0,
        "checkpointing": True,
    }
    return Setting(**{**defaults, **changed})


def parts(load: Load = LOAD, **changed: Any) -> dict[str, dict[Moment, float]]:
    return {name: dict(part) for name, part in plan_memory(setting(**changed), load).parts.items()}


def differing(one: Any, other: Any) -> set[str]:
    return {name for name in one if one[name] != other[name]}


@pytest.mark.parametrize(
    ("hub_id", "backbone"), [("GSAI-ML/LLaDA-8B-Instruct", Llada()), ("JetLM/SDAR-8B-Chat", Sdar())]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_states_are_those_of_a_step_on_the_meta_device(hub_id: str, backbone: Any, dtype: torch.dtype) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(backbone.native_config(known_configs()[hub_id]), dtype=dtype)
    for parameter in model.parameters():
        parameter.grad = torch.empty_like(parameter)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    optimizer.step()
    states = sum(t.nbytes for state in optimizer.state.values() for t in state.values() if torch.is_tensor(t))
    counted = {
        "weights": sum(parameter.nbytes for parameter in model.parameters()),
        "gradients": sum(parameter.grad.nbytes for parameter in model.parameters() if parameter.grad is not None),
        "optimizer": states,
    }
    planned = parts(
        shape=model_shape(hub_id),
        sharding="none",
        shards=1,
        weight_bytes=dtype.itemsize,
        state_bytes=state_bytes(lambda own: torch.optim.AdamW(own, lr=1e-3), dtype),
    )
    for name, size in counted.items():
        assert planned[name]["loss"] == pytest.approx(size, rel=0.01), name


def test_sharding_divides_what_persists() -> None:
    for sharding in ("fsdp", "fsdp2"):
        one, eight = parts(sharding=sharding, shards=1), parts(sharding=sharding, shards=8)
        assert differing(one, eight) == {"weights", "gradients", "optimizer"}
        for name in ("weights", "gradients", "optimizer"):
            assert one[name]["sample"] == pytest.approx(8 * eight[name]["sample"])
            assert len(set(eight[name].values())) == 1


def test_whole_weights_take_18_bytes_a_parameter_and_gradient_buckets_4_more() -> None:
    steady = ("weights", "gradients", "optimizer", "weights in use", "gradient exchange")
    count = LLADA.parameters
    for changed, expected in (
        ({"sharding": "none"}, 18),
        ({"sharding": "ddp"}, 22),
        ({"sharding": "ddp", "bucket_copies": False}, 18),
        ({"sharding": "none", "weight_bytes": 2, "state_bytes": 4.0}, 8),
    ):
        found = parts(shards=1, **changed)
        assert {sum(found[name][moment] for name in steady) for moment in MOMENTS} == {expected * count}


def test_a_rollout_gathers_all_weights_and_only_fsdp2_frees_them_for_the_update() -> None:
    fsdp, fsdp2 = (parts(sharding=sharding)["weights in use"] for sharding in ("fsdp", "fsdp2"))
    assert set(fsdp.values()) == {2 * LLADA.parameters}
    assert (fsdp2["sample"], fsdp2["score"]) == (fsdp["sample"], fsdp["score"])
    assert fsdp2["loss"] == 2 * (LLADA.outer_parameters + 2 * LLADA.layer_parameters)
    assert parts(compute_bytes=4)["weights in use"]["sample"] == 4 * LLADA.parameters


def test_checkpointed_activations_are_a_stream_per_layer_and_one_whole_layer() -> None:
    kept, again = (parts(checkpointing=value)["activations"] for value in (False, True))
    assert (kept["sample"], kept["score"]) == (again["sample"], again["score"])
    assert kept["loss"] > 10 * again["loss"]
    tokens = 16 * 1024
    assert again["loss"] == pytest.approx(tokens * 4096 * 2 * LLADA.layers, rel=0.15)
    assert again["backward"] > again["loss"]


@pytest.mark.parametrize("sharding", ["none", "ddp", "fsdp", "fsdp2"])
def test_the_reference_is_a_copy_that_may_wait_on_the_cpu(sharding: Any) -> None:
    shards = 8 if sharding.startswith("fsdp") else 1
    found = {where: parts(sharding=sharding, shards=shards, reference=where) for where in ("none", "gpu", "cpu")}
    for where in ("gpu", "cpu"):
        assert differing(found["none"], found[where]) <= {"reference"}
    assert set(found["gpu"]["reference"].values()) == {4 * LLADA.parameters / shards}
    waiting = found["cpu"]["reference"]
    assert waiting["sample"] == waiting["loss"] == waiting["backward"] == 0
    assert waiting["score"] == (4 * LLADA.parameters if shards == 1 else 0)
    both = [plan_memory(setting(reference=where), LOAD).host for where in ("none", "gpu")]
    assert both[1] == 2 * both[0] == 8 * LLADA.parameters


def test_adapters_leave_the_model_without_gradients_and_states() -> None:
    rank, widths = 128, sum(LLADA.linear_widths.values())
    found = parts(sharding="none", shards=1, weight_bytes=2, adapters=rank * widths)
    assert found["weights"]["loss"] == 2 * LLADA.parameters + 4 * rank * widths
    assert found["gradients"]["loss"] == 4 * rank * widths
    assert found["optimizer"]["loss"] == 8 * rank * widths
    assert found["gradients"]["loss"] < 0.1 * parts(sharding="none", shards=1)["gradients"]["loss"]


def test_offloaded_states_are_not_on_the_gpu() -> None:
    found = parts(sharding="fsdp", offload=True)
    assert all(set(found[name].values()) == {0} for name in ("weights", "gradients", "optimizer"))
    assert differing(found, parts(sharding="fsdp")) == {"weights", "gradients", "optimizer"}


def test_the_cache_holds_keys_and_values_of_every_layer() -> None:
    shape = model_shape("JetLM/SDAR-8B-Chat")
    load = replace(LOAD, sampling=replace(LOAD.sampling, cached=768))
    found = parts(load, shape=shape)["KV cache"]
    assert found == {"sample": 32 * 768 * 36 * 2 * 1024 * 2, "score": 0, "loss": 0, "backward": 0}


def test_logits_of_the_whole_vocabulary_exist_only_where_asked_for() -> None:
    wanted = replace(LOAD, scoring=replace(LOAD.scoring, targets=0, logits=300))
    some, every = parts()["logits"], parts(wanted)["logits"]
    assert some["sample"] == every["sample"] == 32 * 32 * 126464 * 10
    head = 126464 * 4096 * 2
    assert every["score"] == 32 * 300 * 126464 * 10
    assert every["loss"] == 5000 * 126464 * 12 + head
    assert some["score"] < every["score"] / 20
    assert some["loss"] - head < (every["loss"] - head) / 10
    half = parts(replace(wanted, scored=2500))["logits"]["loss"] - head
    assert half == (every["loss"] - head) / 2


def test_the_peak_is_the_largest_sum_of_a_moment() -> None:
    memory = plan_memory(setting(), LOAD)
    sums = {moment: sum(part[moment] for part in memory.parts.values()) for moment in MOMENTS}
    assert memory.peak == max(sums.values())
    assert sums[memory.fullest] == memory.peak
