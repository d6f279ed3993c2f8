"""Warp-specialized kernels for sm_90, in Gluon: a producer warp, one or two consumer groups, sometimes a storing warp.

hopper*.py                    the entry points: they choose the policies
schedules/                    policy: the problem form, and where its tiles lie
scaling.py                    policy: one scale of A and one of B, and promotion of fp8 sums
scale_ring.py                 policy: scales of rows and of blocks, which come with the k-tiles
factor.py                     policy: one factor of all sums
../epilogues/                 policy: from sums to the values of C
tiling.py                     the config as constexprs
work.py                       what the warps of a CTA share: policies, buffers, barriers
load.py                       the producer warp
pipeline.py                   the consumer groups
ragged_k_consumers.py         the same of a ragged K
promotion.py, k_scales.py     the same with scales in shared memory, and with a ragged K of them
fitted.py, tile_list.py       all warps of tiles that fit their group, and which tiles a CTA has
cluster.py                    pairs of CTAs, which load a part of a k-tile for each other
wide.py, main_loop.py         the main loop of tiles of 192 and 256 columns in fp8, and its PTX
wgmma.py                      what PTX of wgmma needs
keep.py, gradient.py          the same where gate and up are stored, and where the sums are their gradients
gather.py, gather_scaled.py,
gather_k.py                   the producer where rows come by an index, with scales, and where they do along K
store.py                      from values to C
staged.py                     the same for tiles that a warp of its own stores
addends.py                    what sums are added to, through the ring of k-tiles
boxes.py, boxes_5d.py,
matrices.py                   TMA instructions
record.py                     words of the problem record
mixed.py                      B of another dtype than A
"""
