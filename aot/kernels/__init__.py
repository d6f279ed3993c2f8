"""The kernels, in Triton and Gluon. Those named in spec/kernels.py are files with an entry point of the same name.

The kernels for lists read as a course, each with what it adds and its figures in the first lines: `pointer/basic.py`,
`tma/tma.py`, `hopper/hopper.py`. `pointer/basic_ragged.py` and `hopper/hopper_ragged.py` are the first and the last of
them with ragged M.
"""
