"""transformers' models through gg_runtime: prefill, decoding, experts of every layout, under a graph."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.7")

import transformers_models as models  # noqa: E402
from capture import captured  # noqa: E402
from gg_runtime.integrations import transformers as integration  # noqa: E402

integration.register()
SIZES = (16, 512, 384)  # experts, hidden, intermediate


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


@pytest.fixture
def calls(monkeypatch):
    """The tokens of each call of fused_experts, which is made all the same."""
    made, original = [], integration.fused_experts

    def spy(x, *arguments, **options):
        assert x.is_cuda
        made.append(len(x))
        return original(x, *arguments, **options)

    monkeypatch.setattr(integration, "fused_experts", spy)
    return made


@pytest.mark.parametrize("name", models.CONFIGS)
def test_prefill(name, calls):
    ids = models.prompt(61, device="cuda")
    exact = models.model(name, "eager", torch.float32, "cuda")(ids).logits
    eager = models.model(name, "eager", torch.bfloat16, "cuda")(ids).logits
    ours = models.model(name, "gg_runtime", torch.bfloat16, "cuda")(ids).logits
    assert calls == [2 * 61] * models.MOE_LAYERS[name]
    assert models.middle_error(ours, exact) <= 1.5 * models.middle_error(eager, exact) < 0.1


@pytest.mark.parametrize("name", models.CONFIGS)
def test_decoding(name, calls):
    """transformers leaves an implementation that is not its own where it is, when it begins to decode."""
    made = models.model(name, "gg_runtime", torch.bfloat16, "cuda")
    found = made.generate(
        models.prompt(9, device="cuda"), max_new_tokens=16, do_sample=False, return_dict_in_generate=True,
        output_logits=True,
    )  # fmt: skip
    layers = models.MOE_LAYERS[name]
    assert calls == [2 * 9] * layers + [2] * (15 * layers)
    exact, eager = (
        models.model(name, "eager", dtype, "cuda")(found.sequences).logits[:, 8:-1]
        for dtype in (torch.float32, torch.bfloat16)
    )
    ours = torch.stack(found.logits, 1)
    assert models.middle_error(ours, exact) <= 1.5 * models.middle_error(eager, exact) < 0.1


@pytest.mark.parametrize("count", [1, 7, 300])
@pytest.mark.parametrize("biased", [False, True], ids=["", "biased"])
@pytest.mark.parametrize("transposed", [False, True], ids=["EN", "EK"])
@pytest.mark.parametrize(
    ("gated", "interleaved", "activation"),
    [(True, False, "silu"), (True, True, "silu"), (True, False, "gelu_pytorch_tanh"), (False, False, "relu2")],
)
def test_every_layout_is_as_exact_as_transformers_own(gated, interleaved, activation, transposed, biased, count):
    options = {"sizes": SIZES, "activation": activation, "gated": gated, "interleaved": interleaved}
    options |= {"transposed": transposed, "biased": biased}
    states, index, weights = models.tokens(16, count, SIZES[1], k=4, device="cuda")
    exact = models.experts("batched_mm", **options).cuda().float()(states.float(), index, weights)
    theirs = models.experts("batched_mm", **options).cuda()(states, index, weights)
    ours = models.experts("gg_runtime", **options).cuda()(states, index, weights)
    assert models.error(ours, exact) <= 1.1 * models.error(theirs, exact) < 0.02


def test_sentinels_of_expert_parallelism_are_dropped():
    module = models.experts("gg_runtime", sizes=SIZES).cuda()
    states, index, weights = models.tokens(16, 200, SIZES[1], k=4, device="cuda")
    elsewhere = torch.rand(index.shape, device="cuda") < 0.4
    elsewhere[7] = True
    expected = module(states, index, weights.masked_fill(elsewhere, 0))
    dropped = module(states, index.masked_fill(elsewhere, 16), weights.masked_fill(elsewhere, float("nan")))
    assert not dropped[7].any()
    assert models.error(dropped, expected) < 2e-3  # NaN is not


def test_a_graph_takes_the_routing_of_the_moment():
    """Captured at the module's first call."""
    module = models.experts("gg_runtime", sizes=SIZES).cuda()
    states, index, weights = models.tokens(16, 64, SIZES[1], k=4, device="cuda")
    graph, found = captured(lambda: module(states, index, weights))
    for seed in range(3):
        numbers = torch.Generator(device="cuda").manual_seed(seed)
        index.copy_(torch.rand(64, 16, device="cuda", generator=numbers).topk(4).indices)
        states.normal_(generator=numbers)
        found.fill_(float("nan"))
        graph.replay()
        assert torch.equal(found, module(states, index, weights))
