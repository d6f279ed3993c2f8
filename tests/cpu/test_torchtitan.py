"""torchtitan's GroupedExperts through gg_runtime on the CPU path: a layer that trains, beside the loop."""

import copy
import gc
import pickle
import weakref

import pytest

torch = pytest.importorskip("torch")

import torchtitan_like as titan  # noqa: E402
from gg_runtime.integrations import torchtitan as integration  # noqa: E402

KINDS = ("replaced", "ours")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"before": True, "padding": 7}], ids=["", "weights before, padded"])
def test_a_layer_learns_as_it_does_with_the_loop(kind, options):
    exact = titan.trained("loop", dtype=torch.float32, **options)
    titan.assert_learns_alike(titan.trained(kind, **options), titan.trained("loop", **options), exact)


def test_both_kinds_give_the_same_bits_also_compiled():
    torch._dynamo.reset()
    compiled = {"backend": "aot_eager", "fullgraph": True}
    made = [titan.trained("replaced", steps=3), titan.trained("ours", steps=3)]
    made += [titan.trained(kind, steps=3, compiled=compiled) for kind in KINDS]
    for gradients, losses in made[1:]:
        assert torch.equal(losses, made[0][1])
        assert all(torch.equal(gradients[name], right) for name, right in made[0][0].items())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32])  # histc counts in float32
def test_padding_and_experts_without_rows_give_zeros(kind, dtype):
    experts = titan.layer(kind).experts
    x, counts = torch.randn(11, 24).bfloat16(), torch.tensor([0, 4, 0, 3, 1, 0])
    x[8:] = float("nan")
    x.requires_grad_()
    out = experts(x, counts.to(dtype))
    expected = titan.layer("loop").experts(x[:8].detach(), counts)
    assert titan.relative(out[:8], expected) < 0.01 and not out[8:].any()
    out.float().sum().backward()
    assert not x.grad[8:].any() and x.grad[:8].any()
    assert all(not parameter.grad[[0, 2, 5]].any() for parameter in experts.parameters())
    assert all(parameter.grad[[1, 3, 4]].any() for parameter in experts.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_counts_in_bfloat16_are_summed_as_integers(kind):
    experts, x = titan.layer(kind).experts, torch.randn(261, 24).bfloat16()
    counts = torch.tensor([255, 0, 2, 3, 1, 0])  # bfloat16 has no 257
    assert torch.equal(experts(x, counts.bfloat16()), experts(x, counts))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_may_lie_in_columns(kind):
    experts, x, counts = titan.layer(kind).experts, torch.randn(8, 24).bfloat16(), torch.tensor([1, 2, 0, 3, 1, 1])
    assert torch.equal(experts(x.T.contiguous().T, counts), experts(x, counts))


@pytest.mark.parametrize("kind", KINDS)
def test_float32_parameters_are_cast_as_torchtitan_casts_them(kind):
    made = titan.layer(kind, dtype=torch.float32)
    x, counts = torch.randn(8, 24), torch.tensor([1, 2, 0, 3, 1, 1])
    out = made.experts(x, counts)
    assert out.dtype == torch.float32
    assert torch.equal(out, titan.layer(kind).experts(x.bfloat16(), counts).float())
    out.sum().backward()
    assert all(parameter.grad.dtype == torch.float32 for parameter in made.experts.parameters())


def test_the_local_part_of_dtensors_is_taken():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        experts = titan.layer("replaced").experts
        x, counts = torch.randn(8, 24).bfloat16(), torch.tensor([1, 2, 0, 3, 1, 1])
        expected = experts(x, counts)
        for name, parameter in list(experts.named_parameters()):
            experts.register_parameter(name, torch.nn.Parameter(distribute_tensor(parameter.data, mesh, [Shard(0)])))
        out = experts(x, counts)
        out.float().sum().backward()
        assert torch.equal(out, expected) and isinstance(experts.w1.grad, torch.distributed.tensor.DTensor)
    finally:
        torch.distributed.destroy_process_group()


def test_checkpoints_are_those_of_torchtitan():
    loop, own = titan.layer("loop").experts, titan.layer("ours").experts
    state = own.state_dict()
    assert sorted(state) == ["w1", "w2", "w3"]
    assert all(torch.equal(state[name], right) for name, right in loop.state_dict().items())
    without_w3 = {name: tensor for name, tensor in state.items() if name != "w3"}
    with pytest.raises(RuntimeError, match='(?s)Missing key.*"w3", "w13".*Unexpected key.*"w1"'):
        own.load_state_dict(without_w3)
    assert own.load_state_dict(without_w3, strict=False) == (["w3", "w13"], ["w1"])
    with pytest.raises(RuntimeError, match=r"size mismatch: w1 has shape \[6, \d+, 24\] and w3 \[5, \d+, 24\]"):
        own.load_state_dict(state | {"w3": state["w3"][1:]})
    own.init_weights(0.01)
    assert own.w13[:, 0].float().std() > 0.01 and own.w13[:, 1].float().std() < 0.015 > own.w2.float().std()


def test_distributed_checkpoints_load_sharded_models():
    checkpoint = pytest.importorskip("torch.distributed.checkpoint.state_dict")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    saved = {name: tensor.clone() for name, tensor in checkpoint.get_model_state_dict(titan.layer("ours")).items()}
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh, sharded = init_device_mesh("cpu", (1,)), titan.layer("ours")
        for name, parameter in list(sharded.experts.named_parameters()):
            whole = torch.nn.Parameter(distribute_tensor(torch.zeros_like(parameter), mesh, [Shard(0)]))
            sharded.experts.register_parameter(name, whole)
        options = checkpoint.StateDictOptions(full_state_dict=True)
        checkpoint.set_model_state_dict(sharded, dict(saved), options=options)
        assert torch.equal(sharded.experts.w13.full_tensor()[:, 1], saved["experts.w3"])
    finally:
        torch.distributed.destroy_process_group()


def test_a_parametrized_parameter_keeps_its_name():
    experts = titan.layer("ours").experts
    torch.nn.utils.parametrize.register_parametrization(experts, "w13", torch.nn.Identity())
    assert "parametrizations.w13.original" in experts.state_dict()


def test_distributed_checkpoints_find_each_key():
    checkpoint = pytest.importorskip("torch.distributed.checkpoint.state_dict")
    own, other = (titan.layer("ours") for _ in range(2))
    state = checkpoint.get_model_state_dict(own)
    assert {name.rpartition(".")[2] for name in state if ".experts." in f".{name}"} == {"w1", "w2", "w3"}
    with torch.no_grad():
        other.experts.w13.zero_()
    checkpoint.set_model_state_dict(other, state)
    assert torch.equal(other.experts.w13, own.experts.w13)


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_computes_with_its_own_parameters(kind):
    experts = titan.layer(kind).experts
    x, counts = torch.randn(8, 24).bfloat16(), torch.tensor([1, 2, 0, 3, 1, 1])
    expected = experts(x, counts)
    for copied in (copy.deepcopy(experts), pickle.loads(pickle.dumps(experts))):
        assert torch.equal(copied(x, counts), expected)
        with torch.no_grad():
            copied.w2.zero_()
        assert not copied(x, counts).any() and torch.equal(experts(x, counts), expected)


def test_a_layer_is_freed_without_a_collection():
    experts = titan.layer("replaced").experts
    gone, forward = weakref.ref(experts), experts.forward
    gc.disable()
    try:
        del experts
        assert gone() is None
    finally:
        gc.enable()
    with pytest.raises(ReferenceError, match="GroupedExperts of this forward are gone; keep the module"):
        forward(torch.randn(8, 24).bfloat16(), torch.tensor([1, 2, 0, 3, 1, 1]))


def test_what_is_no_grouped_experts_is_refused():
    with pytest.raises(ValueError, match="no module of a class GroupedExperts; give experts_forward"):
        integration.replace(torch.nn.Linear(2, 2))
    made = titan.layer("loop")
    made.experts.register_parameter("b1", torch.nn.Parameter(torch.zeros(6, 16)))
    with pytest.raises(ValueError, match="experts has the parameters b1, w1, w2, w3; w1 and w3 .* are needed"):
        integration.replace(made)


def test_a_class_derived_from_it_with_a_forward_of_its_own_is_refused():
    """Its activation may be another one. FSDP's classes are derived from it too, and keep the forward."""

    class Clamped(titan.GroupedExperts):
        def forward(self, x, num_tokens_per_expert):
            return super().forward(x, num_tokens_per_expert).clamp(max=1)

    with pytest.raises(ValueError, match="the model is a Clamped, which has a forward of its own"):
        integration.replace(Clamped(8, 8, 2))
    assert integration.replace(type("FSDPGroupedExperts", (titan.GroupedExperts,), {})(8, 8, 2)) == 1


def test_parameters_may_be_called_by_their_dimensions():
    made, x, counts = titan.layer("loop"), torch.randn(8, 24).bfloat16(), torch.tensor([1, 2, 0, 3, 1, 1])
    expected = titan.layer("replaced").experts(x, counts)
    for name, later in (("w1", "w1_EFD"), ("w2", "w2_EDF"), ("w3", "w3_EFD")):
        parameter = getattr(made.experts, name)
        delattr(made.experts, name)
        made.experts.register_parameter(later, parameter)
    assert integration.replace(made) == 1
    assert torch.equal(made.experts(x, counts), expected)


@pytest.mark.parametrize("counts", [[3, 0, 0], [0] * 9 + [8]])
def test_a_count_is_for_each_expert_of_this_process(counts):
    experts = titan.layer("ours").experts
    with pytest.raises(ValueError, match=rf"num_tokens_per_expert has shape \[{len(counts)}\].*6 experts here"):
        experts(torch.randn(8, 24).bfloat16(), torch.tensor(counts))


@pytest.mark.parametrize("kind", KINDS)
def test_float16_parameters_are_multiplied_in_float16(kind):
    torch.manual_seed(0)
    x, counts = torch.randn(8, 24).half(), torch.tensor([1, 2, 0, 3, 1, 1])
    exact = titan.layer("loop", dtype=torch.float64).experts(x.double(), counts)
    assert titan.relative(titan.layer(kind, dtype=torch.float16).experts(x, counts), exact) < 1e-3
