"""Schedules of the `hopper` kernels: one file for each problem form. A kernel's entry point chooses its schedule.

A schedule knows the problem record, in which order a CTA walks the tiles, and where a tile lies in A, B and C. The
pipeline asks it for nothing else:

    PRODUCER_REGISTERS               a thread, for the producer warp
    DESCRIPTORS_MAY_BE_STALE         whether TMA may have cached other descriptors at their addresses: see `acquire`
    HAS_BIAS                         whether the record has a bias
    GATHERS                          whether rows come by an index: those of A from hopper/gather.py, not from load_a;
                                     of a ragged K from hopper/gather_k.py
    GATHERS_B                        of a ragged K that gathers: whether they are rows of B, and not of A^T
    ARRIVALS                         that fill a slot of the ring: one, and one of each thread that copies to it
    first(tile), next(group, tile)   the group that owns a tile. A group has `first` and `end`, the range of its tiles
    M(group)                         its rows. Its other extents are the fields N and K
    acquire(group)                   the fences that its descriptors need
    first_k(group)                   K coordinate of the group's first k-tile
    load_a(...), load_b(...)         TMA loads at tile coordinates
    load_a_for(...), load_b_for(...) the same for both CTAs of a cluster: hopper/cluster.py
    load_half_of_b(...)              of gate's columns or of up's
    policy_of_b(), gate_of_b(group)  for hopper/gather.py, whose warps load B in turns: how long L2 keeps it (of a stack
                                     policy_of_b(group), which nobody else asks), and which half of a gated B is gate's
    load_behind(work, group, m, n, k_tile)
                                     of the producer: loads what comes behind a tile's k-tiles, and returns the count
                                     of k-tiles behind it
    ADDEND_SLOTS, loads_c(group),    of a ragged K: how many slots of the ring a tile of C takes where it is loaded, for
    descriptor_of_c(group)           sums to be added to it, and whether a group's is: hopper/addends.py
    store_coord(group, m, n)         where a tile goes in C, as TMA counts; a StoreCoord has `n`
    words_of(coord), coord_of(...)   of scaled kernels: four words that say what a StoreCoord is, for hopper/staged.py
    no_store(group)                  coordinates outside of C, at which TMA writes nothing
    store(coord, n, ...)             a TMA store
    scale_a(group), scale_b(group)   one float32 each
    scale_offset(group, row)         where rows have scales: elements from scale_a to that of a row of the group
    has_bias, bias_row, bias_stride  the group's row of biases
    ends(...)                        for hopper/tile_list.py: where groups start and end

and for fields: `tiling`, `base` (the record's address), `groups`, and of ragged M `total_M` and N.
"""
