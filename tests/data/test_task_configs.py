"""The shipped tasks that need the hub, a chat template or a user's file run over the quickstart, as they are."""

import string
from pathlib import Path

import pytest
from tests.cli.conftest import _process_state  # noqa: F401  # A command changes things of the whole process.
from tests.cli.runs import CONFIGS, QUICKSTART, write
from tests.training import events

from stabledrl.backbones import NewPolicy
from stabledrl.cli import main
from stabledrl.export import export_policy

FILES = Path(__file__).parent / "files"
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}\n"
CHARACTERS = string.ascii_letters + string.digits + string.punctuation + " \n"
HUB = {
    "openai/gsm8k": "gsm8k",
    "EleutherAI/hendrycks_math": "hendrycks_math",
    "HuggingFaceH4/MATH-500": "math_500",
    "HuggingFaceH4/aime_2024": "aime_2024",
    "math-ai/aime25": "aime25",
}
SMALL = """
model:
  init_args:
    policy: policy
data:
  init_args: {prompts_per_rollout: 2}
rollout: {group_size: 2}
trainer: {max_steps: 1, enable_progress_bar: false}
"""
TRAINED = {
    "gsm8k": "gsm8k",
    "math": "math",
    "aime": "sudoku",
    "countdown_chat": "countdown",
    "sudoku_chat": "sudoku",
    "reasoning_gym": "chain_sum",
    "table": "table",
}
EVALUATED = {"aime": "aime"}


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory in which the hub's ids are paths of our files, with a model that knows every character."""
    for hub_id, name in HUB.items():
        (tmp_path / hub_id).parent.mkdir(exist_ok=True)
        (tmp_path / hub_id).symlink_to(FILES / name)
    write(tmp_path, "my_prompts.jsonl", "".join(f'{{"prompt": "{n}+1", "answer": "{n + 1}"}}\n' for n in range(60)))
    write(tmp_path, "small.yaml", SMALL)
    policy = NewPolicy(characters=CHARACTERS, hidden_size=16, num_layers=1, num_heads=2, max_length=1024).build()
    policy.tokenizer.chat_template = TEMPLATE
    export_policy(policy, tmp_path / "policy")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", TRAINED)
def test_a_task_layered_over_the_quickstart_trains_and_is_evaluated(name: str, directory: Path) -> None:
    if name == "reasoning_gym":
        pytest.importorskip("reasoning_gym")
    layers = ["-c", QUICKSTART, "-c", str(CONFIGS / "task" / f"{name}.yaml"), "-c", "small.yaml"]
    sizes = (
        {"train_size": 60, "evaluation_size": 8} if name in ("countdown_chat", "sudoku_chat", "reasoning_gym") else {}
    )
    shorter = [f"--data.init_args.tasks.init_args.{size}={value}" for size, value in sizes.items()]
    shorter += ["--model.init_args.sampler.init_args.completion_length=16"]
    shorter += ["--model.init_args.sampler.init_args.denoising_steps=4", "--evaluation.at_start=false"]
    assert main(["fit", *layers, *shorter]) == 0
    logged = events(directory / "logs/quickstart/version_0")
    assert {f"val/{task}/accuracy" for task in (TRAINED[name], EVALUATED.get(name, TRAINED[name]))} <= logged.keys()
