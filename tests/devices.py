"""GPUs that selection is asked about: facts as `gg_runtime.explain(device=)` takes them."""


def _device(sm: int, multiprocessors: int, shared_kib: int, **others) -> dict:
    return {"sm": sm, "multiprocessors": multiprocessors, "shared_bytes_per_block": shared_kib * 1024} | others


def _hopper(name: str, multiprocessors: int, clock_mhz: int, memory_gb_s: int) -> dict:
    return _device(90, multiprocessors, 227, name=name, clock_mhz=clock_mhz, memory_gb_s=memory_gb_s)


A100 = _device(80, 108, 163)
A10 = _device(86, 72, 99)
L4 = _device(89, 58, 99)
H200 = _hopper("NVIDIA H200", 132, 1980, 4814)
H100_SXM = _hopper("NVIDIA H100 80GB HBM3", 132, 1980, 3352)
H100_PCIE = _hopper("NVIDIA H100 PCIe", 114, 1755, 2039)
H20 = _hopper("NVIDIA H20", 78, 1980, 4023)
NAMELESS = _device(90, 132, 227)  # all that is known of an H200 by its architecture
B200 = _device(100, 148, 227)
RTX_5090 = _device(120, 170, 99)
DEVICES = {"A100": A100, "A10": A10, "L4": L4, "H200": H200, "H100 PCIe": H100_PCIE, "H20": H20, "B200": B200,
           "RTX 5090": RTX_5090}  # fmt: skip
