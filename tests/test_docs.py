"""Every snippet of README and docs runs, every command in them exists, and every public name is documented."""

from __future__ import annotations

import inspect
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.main

import sordino
from conftest import sordino as run_sordino
from sordino.cli.main import app
from sordino.federated.options import FederationOptions
from sordino.runs.options import RunOptions

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
RECORDS = {
    "Method",
    "Released",
    "Run",
}  # whose fields are said, and whose guarantee is that of what makes them
NO_GUARANTEE = {"Constant", "Scheduled", "Budget", "ParameterVector", "SlowGradients", "replace_batchnorm"}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int  # of its first line
    language: str
    text: str


def blocks(*languages: str, page: Path) -> list[Block]:
    text = page.read_text()
    found = re.finditer(r"^```(\S+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [
        Block(page, text.count("\n", 0, fence.start(2)) + 1, fence[1], fence[2])
        for fence in found
        if fence[1] in languages
    ]


def name_of(page: Path) -> str:
    return page.name


# Snippets ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [page for page in PAGES if blocks("python", page=page)], ids=name_of)
def test_the_snippets_of_a_page_run_one_after_the_other(page: Path, here: Path) -> None:
    namespace: dict[str, object] = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for block in blocks("python", page=page):
            # Lines are counted as in the page, so that a traceback points there.
            code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
            exec(code, namespace)


# Commands ----------------------------------------------------------------------------------------------


def commands() -> list[tuple[str, ...]]:
    """The arguments of every `sordino` line, each once."""
    lines = [
        shlex.split(line, comments=True)
        for page in PAGES
        for block in blocks("sh", "console", page=page)
        for line in block.text.replace("\\\n", "").splitlines()
    ]
    return sorted({tuple(words[1:]) for words in lines if words[:1] == ["sordino"]})


def without_work(command: Any) -> Any:
    """The command with all its options, which does nothing when it is called."""
    for each in getattr(command, "commands", {}).values():
        without_work(each)
    if not hasattr(command, "commands"):
        command.callback = lambda **options: None
    return command


@pytest.mark.parametrize("arguments", commands(), ids=" ".join)
def test_a_command_can_be_parsed(arguments: tuple[str, ...]) -> None:
    command = without_work(typer.main.get_command(app))
    command.main(list(arguments), prog_name="sordino", standalone_mode=False)


def test_a_command_with_a_wrong_option_cannot() -> None:
    command = without_work(typer.main.get_command(app))
    with pytest.raises(Exception, match="--epsilom"):
        command.main(["train", "digits", "--epsilom", "3"], prog_name="sordino", standalone_mode=False)


QUICK = [each for each in commands() if each[:2] == ("budget", "epsilon")]


@pytest.mark.parametrize("arguments", QUICK, ids=" ".join)
def test_a_command_that_is_quick_works(
    arguments: tuple[str, ...], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_sordino(monkeypatch, *arguments) == 0


def test_every_recipe_that_is_named_exists(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_sordino(monkeypatch, "reproduce", "--list") == 0
    listed = capsys.readouterr().out.split()
    pages = " ".join(" ".join(page.read_text() for page in PAGES).split())
    named = set(re.findall(r"sordino reproduce ([a-z][a-z0-9-]+)", pages))
    assert named
    assert named <= set(listed)


# Pages -------------------------------------------------------------------------------------------------


def test_the_readme_has_at_most_800_words() -> None:
    assert len(README.read_text().split()) <= 800


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"], ids=name_of)
def test_links_lead_to_files_that_exist(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    pages = {page.stem for page in PAGES} - {"README", "index"}
    listed = re.findall(r"^(?:.* <)?([a-z_]+)>?$", index, re.MULTILINE)
    assert pages <= set(listed)


def test_the_api_reference_has_every_public_name_once() -> None:
    text = re.sub(r"<!--.*?-->", "", (ROOT / "docs" / "api.md").read_text(), flags=re.DOTALL)
    of_sordino = text.partition("currentmodule:: sordino.privacy")[0]
    names = re.findall(r"^\.\. auto(?:function|class|exception):: (\w+)$", of_sordino, re.MULTILINE)
    assert sorted(names) == sordino.__all__


# Docstrings --------------------------------------------------------------------------------------------


def described(name: str) -> str:
    return inspect.getdoc(getattr(sordino, name)) or ""


# Keywords that several functions take, which the signature calls options.
SHARED = {
    "tune": ["budget", "test", "out", "resume", "options"],
    "train": [*RunOptions.__annotations__],
    "federate": [
        *(n for n in FederationOptions.__annotations__ if n not in RunOptions.__annotations__),
        "options",
    ],
}


@pytest.mark.parametrize("name", sordino.__all__)
def test_a_docstring_says_every_argument_and_shows_an_example(name: str) -> None:
    text, value = described(name), getattr(sordino, name)
    arguments = [] if value is sordino.SlowGradients else list(inspect.signature(value).parameters)
    said = re.findall(r"^    (\w+): ", text.partition("Args:\n")[2], re.MULTILINE)
    assert said == [*arguments[:-1], *SHARED[name]] if name in SHARED else said == arguments
    assert "\n>>> " in text


def modules(*names: str) -> list[str]:
    homes = tuple(f"sordino.{name}" for name in names)
    return [
        name
        for name in sorted(set(sordino.__all__) - NO_GUARANTEE - RECORDS)
        if getattr(sordino, name).__module__.startswith(homes)
    ]


ALGORITHMS = ("clipping", "noise.tree", "steps", "rates", "methods", "federated.algorithms", "least_squares")
NOBODYS = {"Sgd", "Travel", "Unclipped", "method", "sgd"}  # with nobody to cite


@pytest.mark.parametrize("name", sorted(set(modules(*ALGORITHMS)) - NOBODYS))
def test_an_algorithm_cites_its_paper(name: str) -> None:
    assert re.search(r"^Reference: .+", described(name), re.MULTILINE)


@pytest.mark.parametrize(
    "name", modules("clipping", "noise", "steps", "rates", "methods", "data.sampling", "least_squares")
)
def test_what_bears_on_privacy_says_what_it_guarantees(name: str) -> None:
    assert re.search(r"^Guarantee: .+", described(name), re.MULTILINE)
