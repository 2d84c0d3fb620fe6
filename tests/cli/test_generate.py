"""generate: a prompt in, text out."""

from pathlib import Path

import pytest
from tests.cli.runs import MODEL, error_of

from stabledrl import backbones
from stabledrl.cli import main
from stabledrl.export import export_policy

BLOCK_MODEL = f"{MODEL}-block"
PROMPT = "0012300412343410="
SHORT = ["--completion_length", "16"]


def text_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    assert main(["generate", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def test_prints_a_completion_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = text_of([MODEL, PROMPT, *SHORT], capsys)
    assert len(line) == 16
    assert set(line) <= set("1234")


def test_greedy_samples_agree_and_warm_ones_differ(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(set(text_of([MODEL, PROMPT, *SHORT, "--samples=4"], capsys))) == 1
    warm = [MODEL, PROMPT, *SHORT, "--samples=4", "--temperature=2"]
    first = text_of(warm, capsys)
    assert len(set(first)) > 1
    assert text_of(warm, capsys) == first
    assert text_of([*warm, "--seed=1"], capsys) != first


def test_a_block_causal_model_is_decoded_in_its_own_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = text_of([BLOCK_MODEL, PROMPT, *SHORT], capsys)
    assert len(line) == 16
    assert set(line) <= set("1234")
    assert text_of([BLOCK_MODEL, PROMPT, *SHORT, "--block_size=4"], capsys) == [line]
    told = error_of(["generate", BLOCK_MODEL, PROMPT, *SHORT, "--block_size=8"], capsys)
    assert "BlockDiffusionSampler has block_size 8" in told
    assert "use block_size 4" in told


def test_leading_zeros_of_a_prompt_count(capsys: pytest.CaptureFixture[str]) -> None:
    assert text_of([MODEL, "00=", *SHORT], capsys) != text_of([MODEL, "0=", *SHORT], capsys)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([MODEL, PROMPT, "--completion_length=0"], ["completion_length 0"]),
        ([MODEL, PROMPT, *SHORT, "--block_size=5"], ["block_size 5", "15 or 20"]),
        ([MODEL, PROMPT, *SHORT, "--block_size=0"], ["block_size 0"]),
        ([MODEL, PROMPT, *SHORT, "--denoising_steps=0"], ["denoising_steps 0"]),
        ([MODEL, PROMPT, *SHORT, "--denoising_steps=17"], ["denoising_steps 17", "16"]),
        ([MODEL, PROMPT, "--samples=0"], ["samples 0", "at least 1"]),
        ([MODEL, PROMPT, "--temperature=-1"], ["temperature -1.0"]),
        ([MODEL, PROMPT, "--temperature=nan"], ["temperature", "nan"]),
        ([MODEL, PROMPT, "--remasking=lowest"], ["remasking", "low_confidence, random", "'lowest'"]),
        ([MODEL, PROMPT, "--device=gpuu"], ["'gpuu'", "cpu"]),
        ([MODEL, PROMPT, "--sampels=2"], ["--sampels", "did you mean --samples?"]),
        ([MODEL, ""], ["prompt is empty"]),
        ([MODEL], ["prompt"]),
        ([], ["model, prompt"]),
    ],
    ids=str,
)
def test_mistakes_are_told_before_the_model_is_loaded(
    arguments: list[str],
    parts: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backbones.loading, "load_model", lambda *_: pytest.fail("the model was loaded"))
    error = error_of(["generate", *arguments], capsys)
    assert [part for part in parts if part not in error] == [], error


def test_a_chat_goes_through_the_models_template(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no chat template" in error_of(["generate", MODEL, PROMPT, *SHORT, "--chat=true"], capsys)
    policy = backbones.load_policy(MODEL)
    policy.tokenizer.chat_template = "{% for message in messages %}{{ message.content }}={% endfor %}"
    model = str(export_policy(policy, tmp_path / "chat"))
    assert text_of([model, PROMPT[:-1], *SHORT, "--chat=true"], capsys) == text_of([MODEL, PROMPT, *SHORT], capsys)


@pytest.mark.parametrize("prompt", ["Ж", "12Q"])
def test_a_character_the_tokenizer_lacks(prompt: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert repr(prompt) in error_of(["generate", MODEL, prompt, *SHORT], capsys)


@pytest.mark.parametrize("name", ["missing", "missing.ckpt", "empty"])
def test_a_model_that_is_not_there(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert repr(str(tmp_path / name)) in error_of(["generate", str(tmp_path / name), PROMPT], capsys)
