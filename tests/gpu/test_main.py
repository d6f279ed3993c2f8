"""`python -m gg_runtime` on a machine with a GPU."""

import re

import fresh_process


def test_it_shows_the_gpu_and_checks_the_worked_example():
    output = fresh_process.run("import runpy; runpy.run_module('gg_runtime', run_name='__main__')")
    assert re.search(r"cuda:0 .*sm_\d+, \d+ multiprocessors: takes \d+ kernels of sm_\d+, from cubins", output), output
    assert "hashes verified" in output
    error = re.search(r"worked example \(1024, 512, 256, 128\): .* ([0-9.e+-]+) \(at most 1e-2\)", output)
    assert error and float(error[1]) <= 1e-2, output
