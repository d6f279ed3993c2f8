"""Small integers as e4m3, for a Triton interpreter that knows the type as bytes."""

import numpy as np

CODES = {-2: 0xC0, -1: 0xB8, 0: 0x00, 1: 0x38, 2: 0x40}  # of values
NAN = 0x7F


def as_e4m3(view: np.ndarray) -> np.ndarray:
    """The view as bytes, with the strides that it has, and with NaN wherever its memory has none of the values."""
    around = view.base
    codes = np.full(around.shape, NAN, np.uint8)
    for value, code in CODES.items():
        codes[around == value] = code
    strides = tuple(stride // around.itemsize for stride in view.strides)
    return np.lib.stride_tricks.as_strided(codes, view.shape, strides)
