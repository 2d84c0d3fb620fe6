"""docs/paper_index.md leads to what it names, and leaves out no paper and no objective."""

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from stabledrl import objectives
from stabledrl.protocols import Objective

ROOT = Path(__file__).parent.parent
INDEX = (ROOT / "docs" / "paper_index.md").read_text(encoding="utf-8")
CITATION = re.compile(r"arXiv[:\s]\s*(\d{4}\.\d{5})")
NAMES = sorted(set(re.findall(r"`(stabledrl(?:\.\w+)+)`", INDEX)))
FILES = sorted(set(re.findall(r"`(configs/[\w/.]+)`", INDEX)))


def cited(text: str) -> set[str]:
    """The arXiv ids in a text, also where a line ends between the word and the number."""
    return set(CITATION.findall(text))


def resolve(name: str) -> Any:
    """What a dotted name means: an attribute before a module, as a function of the module's name shadows it."""
    found: Any = importlib.import_module(name.split(".", maxsplit=1)[0])
    path = found.__name__
    for part in name.split(".")[1:]:
        path += f".{part}"
        found = getattr(found, part) if hasattr(found, part) else importlib.import_module(path)
    return found


def test_citations_are_found_in_every_form() -> None:
    text = "arXiv 2603.06743; (arXiv:2508.15487) arXiv\n    2402.03300, equation 3"
    assert cited(text) == {"2603.06743", "2508.15487", "2402.03300"}


def test_every_paper_that_code_or_configurations_cite_is_in_the_index_and_no_other() -> None:
    sources = [*ROOT.glob("src/**/*.py"), *ROOT.glob("configs/**/*.yaml"), ROOT / "README.md"]
    by_file = {str(file.relative_to(ROOT)): cited(file.read_text(encoding="utf-8")) for file in sources}
    indexed = cited(INDEX)
    missing = {name: ids - indexed for name, ids in by_file.items() if ids - indexed}
    assert missing == {}
    assert indexed - set().union(*by_file.values()) == set()


@pytest.mark.parametrize("name", NAMES)
def test_every_name_in_the_index_means_something(name: str) -> None:
    assert resolve(name) is not None


@pytest.mark.parametrize("file", FILES)
def test_every_configuration_in_the_index_exists(file: str) -> None:
    assert (ROOT / file).is_file()


def test_no_objective_and_no_configuration_of_one_is_left_out() -> None:
    shipped = {name for name in objectives.__all__ if issubclass(getattr(objectives, name), Objective)}
    assert {f"stabledrl.objectives.{name}" for name in shipped} <= set(NAMES)
    assert {f"configs/objective/{file.name}" for file in ROOT.glob("configs/objective/*.yaml")} <= set(FILES)
    assert {f"configs/backbone/{file.name}" for file in ROOT.glob("configs/backbone/*.yaml")} <= set(FILES)


def test_links_lead_to_the_paper_they_name() -> None:
    links = re.findall(r"\[arXiv (\S+)\]\((\S+)\)", INDEX)
    assert len(links) == INDEX.count("https://arxiv.org/")
    assert all(url == f"https://arxiv.org/abs/{paper}" for paper, url in links)
