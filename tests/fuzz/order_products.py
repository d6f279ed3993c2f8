"""Which addresses a launch of a grouped product reads and writes, or one of the kernels that work around it."""

import struct

from faults.parameters import DESCRIBED, by_value, ragged_arguments, read_ragged

POINTERS = "basic_ragged", "basic_gated", "basic_stack", "basic_ragged_k", "basic_ragged_k_block_scales"
PRODUCTS = (*DESCRIBED, *POINTERS)
MORE = "a_address", "offs", "counts", "bias", "index", "alpha_at", "scale_a", "scale_b"
# Where they have the addresses that they read among their parameters, and those that they write.
AROUND_PRODUCTS = {
    "gather": ([0], [32]), "add_parts": ([0], [16]), "activate": ([0], [24]),
    "activation_gradient": ([0, 24, 48, 56, 120], [64, 72, 96]),  # z, dh, weights, slot, ends; dweights, dz, h
}  # fmt: skip


def touched(call: dict) -> tuple[list[int], list[int]]:
    """Addresses that the launch reads, and that it writes; none of other kernels."""
    symbol = call["symbol"]
    if symbol in AROUND_PRODUCTS:
        parameters = bytes.fromhex(call["parameters"])
        reads, writes = ([struct.unpack_from("@Q", parameters, place)[0] for place in places]
                         for places in AROUND_PRODUCTS[symbol])  # fmt: skip
        return [address for address in reads if address], [address for address in writes if address]
    if symbol not in PRODUCTS:
        return [], []
    record = read_ragged(by_value(ragged_arguments(call), symbol), symbol)
    a, b, c = (value["address"] if isinstance(value, dict) else value for value in map(record.get, "abc"))
    more = [record.get(name, 0) for name in MORE]
    return [address for address in (a, b, *more) if address], [c]
