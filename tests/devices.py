"""GPUs that selection is asked about: facts as `gg_runtime.explain(device=)` takes them."""


def _device(sm: int, multiprocessors: int, shared_kib: int) -> dict:
    return {"sm": sm, "multiprocessors": multiprocessors, "shared_bytes_per_block": shared_kib * 1024}


A100 = _device(80, 108, 163)
A10 = _device(86, 72, 99)
L4 = _device(89, 58, 99)
H200 = _device(90, 132, 227)
B200 = _device(100, 148, 227)
RTX_5090 = _device(120, 170, 99)
DEVICES = {"A100": A100, "A10": A10, "L4": L4, "H200": H200, "B200": B200, "RTX 5090": RTX_5090}
