"""The README's Python examples run, in their order and in one namespace, on the CPU; fp8 where there is torch."""

import re
from importlib.util import find_spec
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def python_blocks() -> list[tuple[int, str]]:
    """(line, code) of each block that is tagged as Python."""
    text = README.read_text()
    matches = re.finditer(r"^```python\n(.*?)^```$", text, re.M | re.S)
    return [(text.count("\n", 0, match.start(1)), match[1]) for match in matches]


def test_examples_run_in_order(capsys):
    blocks = python_blocks()
    assert len(blocks) >= 3
    namespace = {"__name__": "readme"}
    for line, code in blocks:
        if "import torch\n" in code and find_spec("torch") is None:
            continue  # NumPy has no fp8
        exec(compile("\n" * line + code, README.name, "exec"), namespace)


def test_examples_show_every_public_name():
    import gg_runtime

    text = README.read_text()
    missing = [name for name in gg_runtime.__all__ if name not in text]
    assert set(missing) <= {"Explanation", "__version__", "manifest"}, missing
