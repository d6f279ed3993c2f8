"""Warp-specialized kernels for sm_90, in Gluon: a producer warp and one or two consumer groups.

hopper.py, hopper_ragged.py, hopper_ragged_k.py,
hopper_stack.py               the entry points: they choose the policies
schedules/                    policy: the problem form, and where its tiles lie
scaling.py                    policy: scales, and promotion of fp8 sums
factor.py                     policy: one factor of all sums
../epilogues/                 policy: from sums to the values of C
tiling.py                     the config as constexprs
work.py                       what the warps of a CTA share: policies, buffers, barriers
load.py                       the producer warp
pipeline.py                   the consumer groups
overlapped.py                 the same where two groups defer their epilogues
gather.py, gather_k.py        the producer where rows come by an index, and where they do along K
store.py                      from values to C
boxes.py, boxes_5d.py,
matrices.py                   TMA instructions
record.py                     words of the problem record
"""
