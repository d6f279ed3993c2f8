"""The config of a `hopper` kernel as constexprs, with what follows from it."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

COLUMN_TURN = gl.constexpr(128)  # tiles, about as many as a GPU has CTAs: a division by those that it has takes longer
GOLDEN_RATIO = gl.constexpr(40503)  # its fraction, of 2**16


@gluon.jit
def spread(turn, count):
    """A number below `count` for each turn, so that as many as `count` turns in a row have each about once."""
    return (turn * GOLDEN_RATIO & 0xFFFF) * count >> 16


@gluon.aggregate
class Tiling:
    """Tile, pipeline and schedule of one variant. Config names are those of aot/spec/variants.py in the field's terms.

    One consumer group alone needs no schedule. Two of them either take whole tiles in turns, so that one multiplies
    while the other stores (PINGPONG), or share each tile, half of its rows each (COOPERATIVE). Both names are
    CUTLASS's (KernelTmaWarpSpecializedPingpong, ...Cooperative).
    """

    DTYPE: gl.constexpr  # of A and B
    OUT: gl.constexpr  # of C
    LAYOUT: gl.constexpr  # "nn", "nt", "tn", "tt": of A, then of B
    BLOCK_M: gl.constexpr
    BLOCK_N: gl.constexpr
    BLOCK_K: gl.constexpr
    STAGES: gl.constexpr  # k-tiles in the shared-memory ring
    GROUP_M: gl.constexpr  # row tiles that are walked down before the next column of tiles
    CONSUMERS: gl.constexpr
    PINGPONG: gl.constexpr
    COOPERATIVE: gl.constexpr
    CONSUMER_M: gl.constexpr  # rows of a tile that a consumer group multiplies; of a fitted one, those of a box
    EPILOGUE_SUBTILES: gl.constexpr  # parts in which a tile goes through C's buffers; 0: a fitted one, through the ring
    DEFERRED: gl.constexpr  # a tile is stored while the next one is multiplied
    SWAP_AB: gl.constexpr  # the tile's transpose is summed: wgmma takes 64 rows of its first operand at least
    A_PANELS: gl.constexpr  # boxes of rows that a fitted k-tile of A comes in; 1: one box for all
    B_PANELS: gl.constexpr  # matrices that a k-tile of B is made of, side by side: their sizes are powers of two
    CLUSTER: gl.constexpr  # CTAs of a cluster; two share a part of what they load: cluster.py

    @gluon.jit
    def k_tiles(self, K):
        """BLOCK_K tiles of an output tile. A deferred epilogue needs one for each subtile; those past K are zeros."""
        count = gl.cdiv(K, self.BLOCK_K)
        if self.DEFERRED:
            count = gl.maximum(count, self.EPILOGUE_SUBTILES)
        return count

    @gluon.jit
    def tiles_of(self, M, N):
        """Tiles of an M × N output."""
        if self.CLUSTER == 2:
            m_tiles, n_tiles = gl.cdiv(M, self.BLOCK_M), gl.cdiv(N, self.BLOCK_N)
            return 2 * (m_tiles // 2 * n_tiles + m_tiles % 2 * gl.cdiv(n_tiles, 2))
        else:
            return gl.cdiv(M, self.BLOCK_M) * gl.cdiv(N, self.BLOCK_N)

    @gluon.jit
    def pair_coord(self, M, N, first, tile):
        """As coord, for clusters, of which `first` is the first tile of a pair; and whether the pair shares B.

        Row tiles are walked in twos, in bands as those of `coord`. An odd last one comes behind all of them, its
        columns in twos: these share A. Of an odd number of columns the last one is there twice, which writes the same
        to the same place. Among the others the odd row tile would be nearer to what reads the same columns of B; that
        took 10 % longer (benchmarks/notes/fp8.md).
        """
        pair, rank = (tile - first) // 2, (tile - first) % 2
        m_tiles, n_tiles = gl.cdiv(M, self.BLOCK_M), gl.cdiv(N, self.BLOCK_N)
        m_pairs = m_tiles // 2
        BAND: gl.constexpr = self.GROUP_M // 2
        band, within = gl.to_tensor(0), pair
        if m_pairs > BAND:
            band = pair // (BAND * n_tiles)
            within = pair - band * (BAND * n_tiles)
        band_pairs = gl.maximum(gl.minimum(m_pairs - band * BAND, BAND), 1)
        column = within // band_pairs
        row = (band * BAND + within - column * band_pairs) * 2 + rank
        behind = pair - m_pairs * n_tiles
        shares_b = behind < 0
        row = gl.where(shares_b, row, m_tiles - 1)
        column = gl.where(shares_b, column, gl.minimum(behind * 2 + rank, n_tiles - 1))
        return row * self.BLOCK_M, column * self.BLOCK_N, shares_b

    @gluon.jit
    def coord(self, M, N, first, tile):
        """Row and column at which a tile of an M × N output starts, of which `first` is the first tile.

        Tiles are walked in bands of GROUP_M row tiles, down each column of a band. CTAs that run at the same time then
        share rows of A and columns of B in L2. Triton's matmul tutorial calls it grouped ordering.

        A band's last tile may have no rows of the second consumer, and then takes less time. Walked down from the same
        row always, a CTA could get such a tile in each turn of the grid and others none. Those that read the same
        columns of B would drift apart. So each column starts at another row, about as often at one as at another.
        """
        index = tile - first
        m_tiles = gl.cdiv(M, self.BLOCK_M)
        n_tiles = gl.cdiv(N, self.BLOCK_N)
        band, within = gl.to_tensor(0), index
        if m_tiles > self.GROUP_M:  # else a group is one band, and a division less
            band = index // (self.GROUP_M * n_tiles)
            within = index - band * (self.GROUP_M * n_tiles)
        band_tiles = gl.minimum(m_tiles - band * self.GROUP_M, self.GROUP_M)
        column = within // band_tiles
        row = within - column * band_tiles
        if self.COOPERATIVE:
            is_short = M - (band * self.GROUP_M + band_tiles - 1) * self.BLOCK_M <= self.CONSUMER_M
            row += gl.where(is_short, spread((tile - row) // COLUMN_TURN, band_tiles), 0)
            row -= gl.where(row >= band_tiles, band_tiles, 0)
        return (band * self.GROUP_M + row) * self.BLOCK_M, column * self.BLOCK_N


@gluon.jit
def make_tiling(
    DTYPE: gl.constexpr, OUT: gl.constexpr, LAYOUT: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
    RASTER: gl.constexpr, CONSUMERS: gl.constexpr, SPLIT: gl.constexpr, SLICES: gl.constexpr,
    SUMS_PER_OUTPUT: gl.constexpr, CLUSTER: gl.constexpr = 1,
):  # fmt: skip
    """Of the constexprs that kernels are compiled with. A deferred epilogue stores a quarter of the sums at a time."""
    PINGPONG: gl.constexpr = CONSUMERS == 2 and SPLIT == 1
    COOPERATIVE: gl.constexpr = SPLIT == 2
    CONSUMER_M: gl.constexpr = BLOCK_M // SPLIT
    DEFERRED: gl.constexpr = CONSUMERS == 1 and SLICES * SUMS_PER_OUTPUT == 4
    SWAP_AB: gl.constexpr = BLOCK_M < 64
    B_PANELS: gl.constexpr = 1 if BLOCK_N & (BLOCK_N - 1) == 0 else 3
    return Tiling(
        DTYPE, OUT, LAYOUT, BLOCK_M, BLOCK_N, BLOCK_K, STAGES,
        RASTER, CONSUMERS, PINGPONG, COOPERATIVE, CONSUMER_M, SLICES, DEFERRED, SWAP_AB, 1, B_PANELS, CLUSTER,
    )  # fmt: skip
