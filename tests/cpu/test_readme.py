"""The Python examples of README and docs run on the CPU, those of a page in one namespace; fp8 where there is torch."""

from importlib.util import find_spec

import pytest

from readme_examples import README, python_blocks


def test_examples_run_in_order(capsys):
    blocks = python_blocks()
    assert len(blocks) >= 3
    namespace = {"__name__": "readme"}
    for line, code in blocks:
        if "import torch\n" in code and find_spec("torch") is None:
            continue  # NumPy has no fp8
        exec(compile("\n" * line + code, README.name, "exec"), namespace)


@pytest.mark.parametrize(("name", "examples"), [("training", 8), ("fp8", 5)])
def test_the_pages_run_too(name, examples):
    torch = pytest.importorskip("torch")
    page = README.parent / f"docs/{name}.md"
    blocks = python_blocks(page)
    assert len(blocks) == examples
    torch.manual_seed(0)
    torch._dynamo.reset()
    namespace = {"__name__": name}
    for line, code in blocks:
        exec(compile("\n" * line + code, page.name, "exec"), namespace)


def test_examples_show_every_public_name():
    import gg_runtime

    text = README.read_text()
    missing = [name for name in gg_runtime.__all__ if name not in text]
    assert set(missing) <= {"Explanation", "ExpertsExplanation", "__version__", "manifest"}, missing
