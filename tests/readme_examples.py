"""The README's Python examples. `python tests/readme_examples.py FILE` writes them for a type checker to read."""

import re
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def python_blocks(document: Path = README) -> list[tuple[int, str]]:
    """(lines before it, code) of each block that is tagged as Python."""
    text = document.read_text()
    matches = re.finditer(r"^```python\n(.*?)^```$", text, re.M | re.S)
    return [(text.count("\n", 0, match.start(1)), match[1]) for match in matches]


def as_one_file() -> str:
    """One block behind the other, as the test runs them, each on the lines that it has in the README."""
    text = ""
    for lines_before, code in python_blocks():
        text += "\n" * (lines_before - text.count("\n")) + code
    return text


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(as_one_file())
