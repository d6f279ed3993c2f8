"""Benchmarks on a machine without a GPU."""

import importlib
import sys

import pytest

torch = pytest.importorskip("torch")

NEED_A_GPU = {
    "__main__": [],
    "drawn": [],
    "expert_parallel": [],
    "fp8_errors": [],
    "fp8_gradients": [],
    "fp8_layer": [],
    "fp8_lists": [],
    "fp8_scales": [],
    "layer": [],
    "odd_group": [],
    "skew": [],
    "transformers_model": [],
    "turns": ["before", "after"],
}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", NEED_A_GPU)
def test_a_benchmark_says_that_it_needs_a_gpu(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, *NEED_A_GPU[name]])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"benchmarks.{name}").main()
    assert ended.value.code == 2 and "an NVIDIA GPU is needed" in capsys.readouterr().err
