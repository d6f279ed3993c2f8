# What csrc/api/bindings.cpp binds. Arguments are known by position alone, but for `grouped_mm`, which takes names too.
# The functions of gg_runtime call these with arguments of any type, and they say what is wrong with them. Where they
# launch nothing they return OnCpu, or what gg_runtime/by_torch.py tells.
from typing import Any, final, overload

from .facts import DeviceFacts, ExpertsFields, ExplanationFields, Kernel, LoadedKernel

build_id: str

def group_gemm(group_A: Any, group_B: Any, out: Any, out_dtype: Any, scale_a: Any, scale_b: Any, /) -> Any: ...
def grouped_mm(
    mat_a: Any = None,
    mat_b: Any = None,
    offs: Any = None,
    bias: Any = None,
    out_dtype: Any = None,
    out: Any = None,
    scale_a: Any = None,
    scale_b: Any = None,
    batch_invariant: bool | None = None,
    a_index: Any = None,
    activation: Any = None,
    gate_up: Any = None,
    swiglu_limit: Any = None,
    preactivation: Any = None,
    b_index: Any = None,
    counts: Any = None,
    alpha: Any = None,
    beta: Any = None,
    k_alignment: Any = None,
    variant: str | None = None,
) -> Any: ...
def keep_product(ctx: Any, /, *inputs: Any) -> Any: ...
def record_product(out: Any, mat_a: Any, mat_b: Any, offs: Any, bias: Any, batch_invariant: bool, /) -> Any: ...
def route(topk_ids: Any, experts: Any, expert_map: Any, /) -> Any: ...
def combine(y: Any, inverse: Any, weights: Any, add: Any, out: Any, scale: Any, /) -> Any: ...
def activation_gradient(
    z: Any,
    dh: Any,
    weights: Any,
    slot: Any,
    ends: Any,
    activation: Any,
    gate_up: Any,
    swiglu_limit: Any,
    scale: Any,
    dz: Any,
    h: Any,
    dweights: Any,
    /,
) -> OnCpu | None: ...
def quantize_1x128(x: Any, /) -> Any: ...
def down_gradient(
    gradient: Any,
    weight: Any,
    z: Any,
    weights: Any,
    slot: Any,
    ends: Any,
    token: Any,
    activation: Any,
    gate_up: Any,
    swiglu_limit: Any,
    scale: float,
    dz: Any,
    h: Any,
    dweights: Any,
    batch_invariant: bool,
    fused: Any,
    /,
) -> OnCpu | None: ...
def fused_experts(
    x: Any,
    w1: Any,
    w2: Any,
    topk_weights: Any,
    topk_ids: Any,
    activation: Any,
    gate_up: Any,
    swiglu_limit: Any,
    b1: Any,
    b2: Any,
    expert_map: Any,
    apply_router_weight_on_input: bool,
    add: Any,
    scale: float,
    out: Any,
    workspace: Any,
    max_rows: int | None,
    batch_invariant: bool,
    w1_scale: Any,
    w2_scale: Any,
    /,
) -> Any: ...
def check_experts(*arguments: Any) -> None: ...  # those of fused_experts
def fused_experts_workspace(
    tokens: Any,
    top_k: Any,
    experts: Any,
    hidden: Any,
    intermediate: Any,
    activation: Any,
    max_rows: Any,
    use_fp8_w8a8: bool,
    /,
) -> int: ...
def explain_experts(*arguments: Any) -> ExpertsFields: ...  # those of fused_experts, and a device
def explain_list(
    group_A: Any, group_B: Any, out: Any, out_dtype: Any, scale_a: Any, scale_b: Any, device: Any, /
) -> ExplanationFields: ...
def explain_grouped(
    mat_a: Any,
    mat_b: Any,
    offs: Any,
    bias: Any,
    out: Any,
    out_dtype: Any,
    batch_invariant: bool,
    a_index: Any,
    activation: Any,
    gate_up: Any,
    swiglu_limit: Any,
    preactivation: Any,
    b_index: Any,
    counts: Any,
    alpha: Any,
    beta: Any,
    k_alignment: Any,
    scale_a: Any,
    scale_b: Any,
    device: Any,
    /,
) -> ExplanationFields: ...
def kernels() -> list[Kernel]: ...
def image(name: str, kind: str, /) -> bytes: ...
def image_sha256(name: str, kind: str, /) -> str: ...
def device_count() -> int: ...
def device(ordinal: Any, /) -> DeviceFacts: ...
def driver_version() -> int: ...
def eligible(sm: int, shared_bytes: int, /) -> list[str]: ...
def load(name: str, ordinal: int, /) -> LoadedKernel: ...

@final
class OnCpu:
    """What a call with arrays on the CPU returns, once they are checked: the reference path multiplies them."""

    @property
    def out_dtype(self) -> str: ...

class Plan:
    @overload
    def __init__(
        self,
        group_A: Any,
        group_B: Any,
        out: Any,
        out_dtype: Any,
        scale_a: Any,
        scale_b: Any,
        variant: str,
        checked: bool,
        /,
    ) -> None: ...
    @overload
    def __init__(
        self,
        mat_a: Any,
        mat_b: Any,
        offs: Any,
        bias: Any,
        out: Any,
        out_dtype: Any,
        scale_a: Any,
        scale_b: Any,
        batch_invariant: bool,
        a_index: Any,
        activation: Any,
        gate_up: Any,
        swiglu_limit: Any,
        preactivation: Any,
        b_index: Any,
        counts: Any,
        alpha: Any,
        beta: Any,
        k_alignment: Any,
        variant: str,
        checked: bool,
        /,
    ) -> None: ...
    def run(self) -> None: ...
    @property
    def out(self) -> Any: ...
    @property
    def out_dtype(self) -> str: ...
    @property
    def on_cpu(self) -> bool: ...
    @property
    def variant(self) -> str: ...
    @property
    def grid(self) -> int: ...
    @property
    def slots(self) -> int: ...
    @property
    def launches(self) -> int: ...
    @property
    def by_value(self) -> bool: ...

class ExpertsPlan:
    def __init__(self, *arguments: Any) -> None: ...  # those of fused_experts
    def run(self) -> None: ...
    @property
    def out(self) -> Any: ...
    @property
    def out_dtype(self) -> str: ...
    @property
    def on_cpu(self) -> bool: ...
    @property
    def variants(self) -> list[str]: ...
    @property
    def launches(self) -> int: ...

@final
class RecorderType(type): ...
