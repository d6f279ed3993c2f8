"""What importing and using the package needs and touches: nothing but itself."""

import json

import pytest

from processes import run_python

BLOCK = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"triton", "torch", "numpy", "cupy", "jax", "pybind11", "aot"}:
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
"""

# The whole library by a stand-in for each kind of call. stdout is a pipe, so it may be written.
USE = """
from faults.child_prelude import *
A, B, out = operands([(64, 64, 64)])
group_gemm(A, B, out=out), Plan(A, B, out=out).run(), str(explain(A, B, out=out))
gg_runtime.kernels(), gg_runtime.manifest(), gg_runtime.verify(), gg_runtime.preload()
"""


def test_import_needs_no_gpu_driver_torch_or_triton(tmp_path):
    printed = run_python(BLOCK + """
import gg_runtime
assert len(gg_runtime.kernels()) > 0 and gg_runtime.verify() > 0
H200 = {"sm": 90, "multiprocessors": 132, "shared_bytes_per_block": 232448}
from arrays import operands
A, B, out = operands([(64, 64, 64)])
print(gg_runtime.explain(A, B, out=out, device=H200).variant)
""", tmp_path, CUDA_VISIBLE_DEVICES="")  # fmt: skip
    assert "sm90" in printed


def test_import_brings_in_no_framework_and_opens_no_driver(tmp_path):
    printed = run_python("""
        import sys
        import gg_runtime
        gg_runtime.kernels()
        loaded = {name.partition(".")[0] for name in sys.modules}
        assert not loaded & {"torch", "triton", "numpy", "cupy", "jax", "ctypes", "subprocess", "aot"}, loaded
        assert "libcuda" not in open("/proc/self/maps").read()
        print("clean")
    """, tmp_path)  # fmt: skip
    assert printed == "clean\n"


def test_the_public_names_are_the_documented_ones(tmp_path):
    import gg_runtime

    assert set(gg_runtime.__all__) >= {
        "ArtifactError", "CudaError", "Plan", "UnsupportedError", "__version__", "explain", "group_gemm",
        "group_gemm_fn", "kernels", "manifest", "preload", "verify",
    }  # fmt: skip
    for name in gg_runtime.__all__:
        assert getattr(gg_runtime, name).__doc__, name


@pytest.mark.parametrize("working_folder", ["plain", "spaces and ünicode"])
def test_use_writes_no_file_starts_no_process_and_opens_no_socket(fake_cuda, tmp_path, working_folder):
    """Python's own audit events, and a limit of 0 bytes on any file that native code may write."""
    folder = tmp_path / working_folder
    folder.mkdir()
    printed = run_python("""
import os, resource, sys

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND
FORBIDDEN = ("subprocess.", "os.exec", "os.posix_spawn", "os.system", "os.fork", "os.mkdir", "os.rename", "os.remove",
             "os.link", "os.symlink", "socket.", "tempfile.", "urllib.", "shutil.")
seen = []

def watch(event, arguments):
    if event.startswith(FORBIDDEN) or (event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING):
        seen.append((event, repr(arguments)))

sys.addaudithook(watch)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
""" + USE + "report(seen)", folder, LD_LIBRARY_PATH=fake_cuda.current, FAKE_CUDA_SM=80, PYTHONDONTWRITEBYTECODE=1,
        FAKE_CUDA_PARAMETERS=fake_cuda.parameters)  # fmt: skip
    assert json.loads(printed) == []
    assert list(folder.iterdir()) == []


def test_the_file_limit_of_the_test_above_would_be_felt(tmp_path):
    with pytest.raises(AssertionError, match="exit status"):
        run_python("""
            import os, resource
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
            os.write(os.open("file", os.O_WRONLY | os.O_CREAT), b"x")
        """, tmp_path)  # fmt: skip


def test_use_needs_no_home_and_no_temporary_folder(fake_cuda, tmp_path):
    settings = {"LD_LIBRARY_PATH": fake_cuda.current, "FAKE_CUDA_PARAMETERS": fake_cuda.parameters, "FAKE_CUDA_SM": 80}
    run_python(USE, tmp_path, HOME="/nonexistent", TMPDIR="/nonexistent", TRITON_CACHE_DIR="/nonexistent", **settings)


def test_help_says_what_the_module_prints(tmp_path):
    script = "import runpy, sys; sys.argv[1:] = ['--help']; runpy.run_module('gg_runtime', run_name='__main__')"
    assert "what is embedded, what this machine would use" in run_python(script, tmp_path)


def test_threads_of_little_stack(tmp_path):
    run_python(
        """
    import threading, numpy, gg_runtime
    device = {"sm": 90, "multiprocessors": 132, "shared_bytes_per_block": 232448}
    arrays = [numpy.ones((64, 64), numpy.float16)]
    told = []
    def work():
        told.append(gg_runtime.explain(arrays, arrays, device=device))
    threading.stack_size(256 * 1024)
    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert len(told) == 2
    """,
        tmp_path,
    )
