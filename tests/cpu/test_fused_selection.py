"""Which launches an up projection is: one kernel where one takes it, else parts; if promised, whatever the batch."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gg_runtime
from aot.spec.kernels import KERNELS as ROWS
from aot.spec.tables import LAYER, layer_of, layer_rows
from aot.spec.variants import TABLES
from aot.tuning.layers import rows_at
from arrays import ExchangeArray, fresh_address, matrix, ragged
from devices import A10, A100, B200, DEVICES, H200, L4
from embedded import KERNELS

ORDERS = ("gate_first", "up_first", "interleaved")


@dataclasses.dataclass
class Up:
    """A call of grouped_mm that can be explained. Elements are of 2 bytes."""

    rows: int = 4096
    columns: int = 1536  # of B
    depth: int = 2048
    groups: int = 128
    layout: str = "nt"
    indexed: bool = True
    activation: str | None = "swiglu"
    order: str = "gate_first"
    a_offset: int = 0  # elements
    out_offset: int = 0
    out_pad: int = 0
    kept: bool = False
    kept_offset: int = 0
    batch_invariant: bool = False
    a_rows: int = 512
    index_dtype: str = "int32"

    def explain(self, device=H200):
        sizes = (self.a_rows if self.indexed else self.rows, self.columns, self.depth, self.groups)
        mat_a, mat_b, offs = ragged(*sizes, layout=self.layout, dtype="bfloat16")
        mat_a.address, mat_b.address = (1 << 51) + 2 * self.a_offset, 1 << 52  # far apart
        gated = self.activation in ("swiglu", "geglu", "geglu_tanh", "swiglu_oai")
        columns = self.columns // 2 if gated else self.columns
        out = matrix(self.rows, columns, pad=self.out_pad, dtype="bfloat16")
        out.address = (1 << 53) + 2 * self.out_offset
        index = ExchangeArray(self.rows, address=fresh_address(), dtype=self.index_dtype) if self.indexed else None
        kept = matrix(self.rows, self.columns, dtype="bfloat16") if self.kept else None
        if kept:
            kept.address = (1 << 54) + 2 * self.kept_offset
        return gg_runtime.explain(
            mat_a, mat_b, offs=offs, out=out, a_index=index, activation=self.activation, gate_up=self.order,
            preactivation=kept, device=device, batch_invariant=self.batch_invariant,
        )  # fmt: skip

    def launches(self, device=H200) -> list[str]:
        """The kernels of its launches."""
        return [KERNELS[part["variant"]]["kernel"] for part in self.explain(device).parts]


@pytest.mark.parametrize(("order", "layout", "kernel"), [
    ("gate_first", "nn", "gated"), ("up_first", "nn", "gated"), ("interleaved", "nn", "gated_pairs"),
    ("gate_first", "nt", "gated"), ("up_first", "nt", "gated"), ("interleaved", "nt", "gated"),
])  # fmt: skip
def test_an_up_projection_is_one_launch_on_hopper(order, layout, kernel):
    call = Up(order=order, layout=layout)
    assert call.launches() == [f"hopper_gather_{kernel}"]
    assert dataclasses.replace(call, indexed=False).launches() == [f"hopper_{kernel}"]
    told = call.explain()
    assert (told.launches, "by parts" in told.reason) == (1, False)
    assert {KERNELS[one["variant"]]["kernel"] for one in told.candidates} == {f"hopper_gather_{kernel}"}


@pytest.mark.parametrize("device", [A100, A10, L4, B200], ids=["A100", "A10", "L4", "B200"])
def test_an_up_projection_is_one_launch_elsewhere_but_for_columns_in_turns_behind_each_other(device):
    for order, layout in (("gate_first", "nn"), ("up_first", "nt"), ("interleaved", "nt")):
        assert Up(order=order, layout=layout).launches(device) == ["basic_gated"]
    assert Up(order="interleaved", layout="nn").launches(device) == ["gather", "basic_ragged", "activate"]


@pytest.mark.parametrize("activation", ["swiglu", "geglu_tanh", "swiglu_oai"])
@pytest.mark.parametrize(("order", "layout"), [("gate_first", "nn"), ("up_first", "nt")])
def test_a_preactivation_that_is_kept_needs_no_other_launch_on_hopper(order, layout, activation):
    call = Up(order=order, layout=layout, kept=True, activation=activation)
    assert call.launches() == ["hopper_gather_gated_kept"]
    assert dataclasses.replace(call, indexed=False).launches() == ["hopper_gated_kept"]
    assert call.launches(A100) == ["gather", "basic_ragged", "activate"]
    assert dataclasses.replace(call, batch_invariant=True).launches() == ["hopper_gather_gated_kept"]


def test_rows_by_an_index_alone_are_multiplied_in_one_launch_on_hopper_and_gathered_elsewhere():
    assert Up(activation=None).launches() == ["hopper_gather"]
    assert Up(activation=None).launches(A100) == ["gather", "basic_ragged"]


# A change of a call that goes to one kernel -> what its launches are then.
DIVIDED = {
    "an N that is no whole 16 bytes": (
        {"columns": 1534},
        {"nn": ["gather", "basic_ragged", "activate"], "nt": ["gather", "basic_ragged", "activate"]},
    ),
    "halves that are no whole 16 bytes": ({"columns": 1544}, ["hopper_gather", "activate"]),
    # With N contiguous the copied rows of A are all that has a row of K elements.
    "a K that is no whole 16 bytes": (
        {"depth": 2046},
        {"nn": ["gather", "hopper_gated"], "nt": ["gather", "basic_ragged", "activate"]},
    ),
    "an A that starts on 2 bytes": ({"a_offset": 1}, ["gather", "hopper_gated"]),
    "an output that starts on 2 bytes": ({"out_offset": 1}, ["hopper_gather", "activate"]),
    "rows of the output that start on 2 bytes": ({"out_pad": 1}, ["hopper_gather", "activate"]),
    "a pre-activation of columns in turns": ({"kept": True, "order": "interleaved"}, ["hopper_gather", "activate"]),
    "a pre-activation with erf": ({"kept": True, "activation": "geglu"}, ["hopper_gather", "activate"]),
    "a pre-activation that starts on 8 bytes": (
        {"kept": True, "kept_offset": 4},
        {"nn": ["gather", "basic_ragged", "activate"], "nt": ["gather", "basic_ragged", "activate"]},
    ),
    "an activation that is not gated": ({"activation": "relu"}, ["hopper_gather", "activate"]),
    "an A past 2^36 bytes": ({"a_rows": 2**24, "depth": 2048}, ["gather", "hopper_gated"]),
}


@pytest.mark.parametrize("change, launches", DIVIDED.values(), ids=DIVIDED)
@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_what_a_fused_kernel_cannot_do_is_a_launch_of_its_own(layout, change, launches):
    assert Up(layout=layout, **change).launches() == (launches[layout] if isinstance(launches, dict) else launches)


def test_the_alignment_of_a_matters_to_rows_by_an_index_and_not_to_their_copies():
    assert Up(a_offset=1).launches() == ["gather", "hopper_gated"]
    assert Up(a_offset=1, indexed=False).launches() == ["basic_ragged", "activate"]


@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
def test_the_type_of_an_index_changes_nothing(index_dtype):
    assert Up(index_dtype=index_dtype).launches() == ["hopper_gather_gated"]


SIZES = st.sampled_from([64, 72, 256, 1536, 2880, 4096, 7168])


@given(
    st.sampled_from(sorted(DEVICES)), SIZES, SIZES, st.sampled_from(["nn", "nt"]), st.sampled_from(ORDERS),
    st.booleans(), st.sampled_from(["swiglu", "silu", None]),
    st.lists(st.tuples(st.integers(1, 2**18), st.integers(1, 512)), min_size=2, max_size=4),
)  # fmt: skip
def test_a_batch_invariant_division_is_the_same_for_every_batch(name, n, k, layout, order, indexed, kind, batches):
    """As the activation reads rounded sums where it is a launch of its own, a division is part of a result's bits."""
    call = Up(columns=n, depth=k, layout=layout, order=order, indexed=indexed, activation=kind, batch_invariant=True)
    told = [dataclasses.replace(call, rows=rows, groups=groups).explain(DEVICES[name]) for rows, groups in batches]
    assert len({tuple(part["variant"] for part in each.parts) for each in told}) == 1


@pytest.mark.parametrize("device", [A100, A10, L4], ids=["A100", "A10", "L4"])
def test_a_division_does_not_depend_on_the_batch_where_gathering_and_gating_cost_about_as_much(device):
    """N = 64 leaves half of the smallest fused tile unused, so that parts are nearly as fast."""
    for indexed in (False, True):
        call = Up(columns=64, depth=4096, indexed=indexed, batch_invariant=True)
        batches = ((1, 1), (512, 64), (4096, 128), (262144, 8))
        found = {tuple(dataclasses.replace(call, rows=m, groups=e).launches(device)) for m, e in batches}
        assert len(found) == 1


ROWS_OF_LAYERS = layer_rows(TABLES / "H200", "NVIDIA H200")
PLAIN_ROWS = [row for row in ROWS_OF_LAYERS if row["kernel"] == "hopper_ragged"]
FUSED_ROWS = [row for row in ROWS_OF_LAYERS if "epilogue" in row]
SIZED = {layer_of(row)[1:] for row in FUSED_ROWS}  # a row says all but the dtype


def tile_of(kernel: dict) -> tuple[int, int, int, bool]:
    return kernel["block_m"], kernel["block_n"], kernel["block_k"], kernel["consumers"] == 2


def tile_of_row(row: dict) -> tuple[int, int, int, bool]:
    config = row["config"]
    m, n, k = map(int, config.split("_")[0].split("x"))
    return m, n, k, "c2" in config


def call_of(row: dict, **how) -> Up:
    sizes = {name: row[name] for name in LAYER}
    return Up(rows_at(sizes["load"], sizes["experts"]), sizes["columns"], sizes["depth"], sizes["experts"], **how)


@pytest.mark.parametrize("row", FUSED_ROWS, ids=lambda row: f"{row['kernel']} {row['experts']} {row['load']}")
def test_a_row_that_was_measured_of_a_fused_kernel_names_it(row):
    """Wherever the product is not divided otherwise."""
    order = "interleaved" if row["epilogue"] == "gated_pairs" else "gate_first"
    layout, activation = "nn" if order == "interleaved" else "nt", None if row["epilogue"] == "linear" else "swiglu"
    indexed = row["source"] == "indexed"
    how = {"layout": layout, "order": order, "activation": activation, "indexed": indexed}
    told = call_of(row, **how, kept=row["epilogue"] == "gated_kept").explain()
    if KERNELS[told.variant]["kernel"] == row["kernel"]:
        assert told.reason == "measured on NVIDIA H200: E, N, K and about this many rows have a row in the tables"
        assert tile_of(KERNELS[told.variant]) == tile_of_row(row)
    else:
        apart = {"gather"} if indexed else set()
        apart |= {"activate"} if row["epilogue"] == "gated_kept" else set()  # which reads what is kept
        assert apart & {KERNELS[part["variant"]]["kernel"] for part in told.parts}


@pytest.mark.parametrize("order", ["gate_first", "up_first"])
def test_a_row_that_was_measured_of_a_plain_product_names_the_gated_kernel_of_that_tile(order):
    """Wherever one of that tile is compiled and no row is its own; else the model chooses."""
    assert ROWS["hopper_gated"].like == "hopper_ragged"
    tiles = {tile_of(one) for one in KERNELS.values() if one["kernel"] == "hopper_gated"}
    lent = 0
    for row in PLAIN_ROWS:
        own = layer_of(row | {"epilogue": "gated", "source": "rows"})[1:] in SIZED
        told = call_of(row, indexed=False, order=order).explain()
        if tile_of_row(row) not in tiles or own:
            continue
        lent += 1
        assert KERNELS[told.variant]["kernel"] == "hopper_gated"
        assert told.reason.startswith("tile of a plain product that was measured on NVIDIA H200"), row
        assert tile_of(KERNELS[told.variant]) == tile_of_row(row), row
    assert lent > 10


def test_no_row_is_lent_to_kernels_that_gather_once_they_were_measured():
    """What gathering costs a tile is in no row of a plain product."""
    for row in PLAIN_ROWS[::5]:
        for activation in ("swiglu", None):
            reason = call_of(row, activation=activation).explain().reason
            assert reason.startswith(("cost model measured on NVIDIA H200", "measured on NVIDIA H200")), row


def test_interleaved_columns_behind_each_other_are_gathered_first_where_a_gathering_tile_would_be_small():
    """gpt-oss: `hopper_gather_gated_pairs` has no tile of 128 rows, `hopper_gated_pairs` has."""
    call = Up(16384, 5760, 2880, 128, layout="nn", order="interleaved", activation="swiglu_oai", a_rows=4096)
    assert call.launches() == ["gather", "hopper_gated_pairs"]
    told = call.explain()
    assert KERNELS[told.variant]["block_m"] == 128
    assert dataclasses.replace(call, rows=256).launches() == ["hopper_gather_gated_pairs"]
