"""plan: what a run takes, told without weights, GPU or network; and the recipes of models too large to run here."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.backbones.golden import CASES
from tests.cli.runs import CONFIGS, QUICKSTART, ROOT, error_of, write

from stabledrl.backbones import loading
from stabledrl.cli import main
from stabledrl.cli.training import TrainingCLI
from stabledrl.module import DiffusionPolicyModule

RECIPES = sorted((CONFIGS / "recipe").glob("*_8b_*.yaml"))
GSM8K = str(CONFIGS / "recipe" / "llada_8b_gsm8k.yaml")
SDAR = str(CONFIGS / "recipe" / "sdar_8b_gsm8k.yaml")
FILES = ROOT / "tests" / "data" / "files"
LOCAL = {
    "GSAI-ML/LLaDA-8B-Instruct": CASES / "llada",
    "JetLM/SDAR-8B-Chat": CASES / "sdar",
    "openai/gsm8k": FILES / "gsm8k",
    "EleutherAI/hendrycks_math": FILES / "hendrycks_math",
    "HuggingFaceH4/MATH-500": FILES / "math_500",
    "HuggingFaceH4/aime_2024": FILES / "aime_2024",
    "math-ai/aime25": FILES / "aime25",
}


@pytest.fixture(autouse=True)
def _nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "load_model", lambda *_, **__: pytest.fail("weights were read"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(ROOT)


def plan(capsys: pytest.CaptureFixture[str], *options: str, code: int = 0) -> str:
    capsys.readouterr()
    assert main(["plan", *options]) == code
    return capsys.readouterr().out


def peak(report: str) -> float:
    (found,) = re.findall(r"^peak +([\d.]+) GiB per GPU", report, re.M)
    return float(found)


def row(report: str, part: str) -> list[float]:
    (line,) = [line for line in report.splitlines() if line.startswith(part.ljust(18))]
    return [float(number) for number in line[18:].split()]


def name(file: Path) -> str:
    return file.stem


def test_there_are_recipes_of_two_models_and_four_tasks() -> None:
    tasks = ("countdown", "gsm8k", "math", "sudoku")
    assert [file.stem for file in RECIPES] == [f"{model}_8b_{task}" for model in ("llada", "sdar") for task in tasks]


@pytest.mark.parametrize("file", RECIPES, ids=name)
def test_a_recipe_fits_and_states_the_memory_that_is_planned(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = file.read_text()
    (stated,) = re.findall(r"^# Memory: ([\d.]+) GiB per GPU", text, re.M)
    (command,) = re.findall(r"^#   stabledrl plan (.*)", text, re.M)
    report = plan(capsys, *command.split())
    assert peak(report) == float(stated)
    assert "fits into" in report
    assert "32 prompts x 16 = 512 completions, 64 per GPU" in report
    assert "4 micro-batches of 16 completions" in report


@pytest.mark.parametrize("file", RECIPES, ids=name)
def test_a_recipe_gives_every_published_value_its_source(file: Path) -> None:
    lines = file.read_text().splitlines()
    for field in ("eps_high", "draws", "lr", "betas", "weight_decay", "group_size", "temperature", "gradient_clip_val"):
        (line,) = [line for line in lines if line.strip().startswith(f"{field}:")]
        assert re.search(r"# .*(paper|release|ours|SDAR)", line), line


@pytest.mark.parametrize("file", RECIPES, ids=name)
def test_a_recipe_makes_its_classes(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the weights: the hub's ids are paths of small models and of samples of the data."""
    for hub_id, source in LOCAL.items():
        (tmp_path / hub_id).parent.mkdir(exist_ok=True)
        (tmp_path / hub_id).symlink_to(source)
    monkeypatch.chdir(tmp_path)
    made: list[TrainingCLI] = []
    monkeypatch.setattr(TrainingCLI, "_run_subcommand", lambda cli, _: made.append(cli))
    monkeypatch.setattr("stabledrl.cli.training._signal_of", lambda _: None)
    assert main(["fit", "-c", str(file), "--trainer.accelerator=cpu"]) == 0
    (cli,) = made
    module, stated = cli.model, yaml.safe_load(file.read_text())
    assert isinstance(module, DiffusionPolicyModule)
    assert module.policy is None
    optimizer = stated["model"]["init_args"]["optimizer"]["init_args"]
    made_optimizer = module._make_optimizer([_weight()])
    assert {key: made_optimizer.defaults[key] for key in optimizer} == {**optimizer, "betas": (0.9, 0.99)}
    assert cli.trainer.max_steps == 2000
    assert cli.trainer.world_size == 8
    assert cli.trainer.accumulate_grad_batches == 4
    monitored = stated["checkpoint"]["monitor"]
    assert monitored in {f"val/{task.name}/accuracy" for task in cli.datamodule.tasks}
    every = {
        stated[section][key]
        for section, key in (("checkpoint", "every_n_train_steps"), ("evaluation", "every_n_steps"))
    }
    assert len(every) == 1, "a checkpoint is judged by the evaluation of its own step"


def _weight() -> Any:
    import torch

    return torch.nn.Parameter(torch.zeros(1))


def test_the_parts_add_up_and_are_divided_by_the_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    parts = ("weights", "gradients", "optimizer", "reference", "weights in use", "gradient exchange")
    for world_size in (8, 4):
        found = plan(capsys, "-c", GSM8K, f"--world_size={world_size}")
        rows = [row(found, part) for part in (*parts, "activations", "KV cache", "logits")]
        assert row(found, "sum") == pytest.approx([sum(column) for column in zip(*rows)], abs=0.5)
        assert peak(found) == max(row(found, "sum"))
        assert row(found, "optimizer")[0] == pytest.approx(8 * 8.0156e9 / 2**30 / world_size, abs=0.06)
    assert "8,015,581,184 parameters, all trained" in found
    assert "128 per GPU" in found


@pytest.mark.parametrize(
    ("layers", "options", "words", "code"),
    [
        (["single_gpu"], [], ["one process on 1 x 80 GiB", "512 per GPU"], 1),
        (["ddp"], ["--world_size=8"], ["DDP on 8 x 80 GiB"], 1),
        (["fsdp"], ["--world_size=8"], ["FSDP on 8 x 80 GiB"], 0),
        (["fsdp2", "multi_node"], ["--trainer.accumulate_grad_batches=2"], ["FSDP2 on 16 x 80", "32 per GPU"], 0),
        (
            ["single_gpu_lora"],
            ["--trainer.accumulate_grad_batches=64"],
            ["335,544,320 trained", "2 bytes per weight"],
            0,
        ),
    ],
    ids=str,
)
def test_every_way_to_train_is_planned(
    layers: list[str], options: list[str], words: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [part for layer in layers for part in ("-c", str(CONFIGS / "trainer" / f"{layer}.yaml"))]
    # A new class of strategy keeps the arguments of the one before, where it has them too.
    found = plan(capsys, "-c", GSM8K, *files, "--data.init_args.evaluation_batch_size=16", *options, code=code)
    assert [word for word in words if word not in found] == []


def test_a_smaller_gpu_is_told_from_one_that_is_large_enough(capsys: pytest.CaptureFixture[str]) -> None:
    needed = peak(plan(capsys, "-c", GSM8K))
    assert "does not fit into" in plan(capsys, "-c", GSM8K, f"--gpu_memory={needed / 0.9 - 0.2}", code=1)
    assert ": fits into" in plan(capsys, "-c", GSM8K, f"--gpu_memory={needed / 0.9 + 0.2}")


def test_what_the_settings_change_shows(capsys: pytest.CaptureFixture[str]) -> None:
    before = plan(capsys, "-c", GSM8K)
    assert row(before, "reference") == row(before, "KV cache") == [0, 0, 0, 0]
    for option, part in (
        ("--model.init_args.activation_checkpointing=false", "activations"),
        ("--prompt_length=1024", "activations"),
        ("--model.init_args.kl_coefficient=0.1", "reference"),
        ("--trainer.callbacks=stabledrl.callbacks.PolicyDriftMonitor", "reference"),
        ("--model.init_args.likelihood.init_args.keep_logits=true", "logits"),
    ):
        after = plan(capsys, "-c", GSM8K, option, code=1 if "checkpointing" in option else 0)
        assert max(row(after, part)) > max(row(before, part)), option
    less = plan(capsys, "-c", GSM8K, "--model.init_args.optimizer=torch.optim.SGD")
    assert row(less, "optimizer")[0] == 0
    half = ("--trainer.precision=bf16-true", "--model.init_args.optimizer.init_args.lr=1e-4")
    halved = plan(capsys, "-c", GSM8K, *half)
    for part in ("weights", "optimizer"):
        assert row(halved, part)[0] == pytest.approx(row(before, part)[0] / 2, abs=0.06)
    assert row(plan(capsys, "-c", SDAR), "KV cache")[0] > 1


def test_a_local_model_and_an_unbounded_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(capsys, "-c", QUICKSTART)
    assert "checkpoints/tiny-sudoku (native, full attention): 126,912 parameters" in found
    assert "prompts of up to 512 tokens (assumed" in found
    assert "prompts of up to 16 tokens\n" in plan(capsys, "-c", QUICKSTART, "--prompt_length=16")


def test_help_needs_no_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--gpu_memory" in plan(capsys, "--help")


MISTAKES = [
    (["--world_size=7"], ["cannot be shared evenly by 7 processes"]),
    (["--trainer.accumulate_grad_batches=3"], ["accumulate_grad_batches 3"]),
    (["--world_size=0"], ["world_size 0 must be at least 1"]),
    (["--prompt_length=-1"], ["prompt_length -1 must be at least 1"]),
    (["--gpu_memory=0"], ["gpu_memory 0", "above 0"]),
    (["--gpu_memory=big"], ["gpu_memory", "a number", "'big'"]),
    (["--trainer.devices=auto"], ["trainer.devices 'auto'", "--world_size"]),
    (["--trainer.strategy=deepspeed"], ["strategy 'deepspeed'", "FSDP2"]),
    (["--trainer.precision=64-true"], ["trainer.precision '64-true'", "bf16-mixed"]),
    (["--model.init_args.policy=some/model"], ["no model at 'some/model'", "expected a directory with a config.json"]),
    (["--model.init_args.policy=JetLM/SDAR-8B-Chat"], ["BlockDiffusionSampler and StaircaseElbo"]),
    (["--model.init_args.block_size=4"], ["block_size 4 given", "full-attention model"]),
    (["--model.init_args.objective=TraceRL"], ["TraceRL needs shared_masks"]),
    (["--model.init_args.sampler.init_args.denoising_steps=7"], ["denoising_steps 7"]),
    (["--model.init_args.dtype=bfloat16"], ["learning rate 2e-06 is lost on bfloat16 weights"]),
    (["--model.lora.target_modules=[head]"], ["lora.target_modules 'head'", "q_proj"]),
    (["--rollout.group_sizes=3"], ["group_sizes"]),
    (["-c", str(CONFIGS / "recipe" / "tiny_sft.yaml")], ["SupervisedModule cannot be planned"]),
]


@pytest.mark.parametrize(("options", "parts"), MISTAKES, ids=lambda value: " ".join(value)[:50])
def test_a_run_that_could_not_start_is_refused(
    options: list[str], parts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    files = [] if options[0] == "-c" else ["-c", GSM8K]
    error = error_of(["plan", *files, *options], capsys)
    assert [part for part in parts if part not in error] == [], error


def test_without_a_model_there_is_nothing_to_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, "empty.yaml", "trainer: {devices: 1}")
    assert "model" in error_of(["plan", "-c", file], capsys)
