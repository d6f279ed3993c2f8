"""README, CONTRIBUTING, the pages of docs and the templates name commands, files and paths that exist."""

import re

import pytest
from builder_sandbox import ROOT

from aot.cli import cli

DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    *sorted(str(p.relative_to(ROOT)) for p in (*ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/**/*.md"))),
    *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob(".github/**/*.*")),
]
FOLDERS = {path.name for path in ROOT.iterdir() if path.is_dir()} - {"build", "dist", ".venv"}  # what is made


def code(name: str) -> list[str]:
    """What stands between backticks, and the lines of blocks."""
    text = (ROOT / name).read_text()
    blocks = re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))
    return inline + [line for block in blocks for line in block.splitlines()]


def paths(name: str) -> set[str]:
    """Of the checkout, without those that have a placeholder for a name."""
    found = {word.rstrip(".,:") for text in code(name) for word in re.findall(r"[\w./*<>-]+", text)}
    return {word for word in found if word.split("/")[0] in FOLDERS and "/" in word and not re.search(r"[<>X]", word)}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_make_has_each_target_that_is_named(name):
    makefile = (ROOT / "Makefile").read_text()
    targets = set(" ".join(re.findall(r"^\.PHONY:(.*)$", makefile, re.MULTILINE)).split())
    named = {target for text in code(name) for target in re.findall(r"(?:^|&& )make ([a-z][a-z-]*)", text)}
    assert named <= targets


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_builder_has_each_verb_that_is_named(name):
    verbs = {*cli.list_commands(None)}
    named = {verb for text in code(name) for verb in re.findall(r"python -m aot ([a-z]+)", text)}
    assert named <= verbs


@pytest.mark.parametrize("name", DOCUMENTS)
def test_each_path_that_is_named_exists(name):
    missing = sorted(path for path in paths(name) if not any(ROOT.glob(path)))
    assert missing == []


@pytest.mark.parametrize("name", [*(one for one in DOCUMENTS if not one.startswith(".github")), "CHANGELOG.md"])
def test_lines_have_at_most_120_columns(name):
    """But for rows of tables and images."""
    lines = (ROOT / name).read_text().splitlines()
    assert [line for line in lines if len(line) > 120 and not line.startswith(("|", "!"))] == []


def test_paths_and_commands_are_found_at_all():
    assert {"aot/artifacts.lock", "tests/cpu/golden", ".ci/run"} <= paths("CONTRIBUTING.md")
    assert len(paths("README.md")) > 10
