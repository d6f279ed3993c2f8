"""A model of Qwen3-30B's layers in transformers, four of them, with random weights: prefill and decoding, wall time.

`experts_implementation="gg_runtime"` beside transformers' own "grouped_mm", in one run; in decoding also "batched_mm",
to which `generate` changes "grouped_mm".
"""

import argparse
import statistics
import time
from typing import Any

import torch

from .arguments import parsed
from .peers import OURS, installed, reason
from .timing import Call

LAYERS, PROMPT = 4, 2048
STEPS = 32
DECODED = (1, 16, 64)  # sequences, each with a prompt of CONTEXT
CONTEXT = 128
REPEATS = 7
TOLERANCE = 5e-2  # of the logits' norm: a token that chooses another expert differs more, hence the median over tokens
PREFILL_BY, DECODE_BY = (OURS, "grouped_mm"), (OURS, "grouped_mm", "batched_mm")


def made() -> Any:
    from transformers import AutoModelForCausalLM, Qwen3MoeConfig

    from gg_runtime.integrations import transformers as integration

    integration.register()
    kind: Any = Qwen3MoeConfig  # whose fields a type checker does not see
    config = kind(
        hidden_size=2048, moe_intermediate_size=768, num_experts=128, num_experts_per_tok=8, num_hidden_layers=LAYERS,
        num_attention_heads=32, num_key_value_heads=4, head_dim=128, intermediate_size=6144, norm_topk_prob=True,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, experts_implementation=OURS)
    for name, weights in model.named_parameters():
        if ".experts." in name:  # so that experts count: initial weights leave them next to nothing to add
            torch.nn.init.normal_(weights, std=weights.shape[-1] ** -0.5)
    return model.eval()


def wall_us(call: Call, repeats: int = REPEATS) -> float:
    """Until the GPU has done it, from an idle GPU."""
    for _ in range(2):
        call()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times)


def check(logits: torch.Tensor, reference: torch.Tensor) -> float:
    wrong = (logits.float() - reference.float()).norm(dim=-1) / reference.float().norm(dim=-1)
    error = float(wrong.median())
    if not error <= TOLERANCE:
        raise ArithmeticError(f"logits differ by {error:.1e} of their norm, at most {TOLERANCE:.0e} is rounding")
    return error


def prefill(model: Any, ids: torch.Tensor) -> torch.Tensor:
    return model(ids, use_cache=False, logits_to_keep=64).logits


def decode_us(model: Any, sequences: int) -> tuple[float, torch.Tensor]:
    """The median step of STEPS, and the logits of the first."""
    ids = torch.randint(0, model.config.vocab_size, (sequences, CONTEXT), device="cuda")
    state = model(ids, use_cache=True, logits_to_keep=1)
    token, times, first = ids[:, -1:], [], None
    for _ in range(STEPS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        state = model(token, past_key_values=state.past_key_values, use_cache=True)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e6)
        first = state.logits if first is None else first
    assert first is not None
    return statistics.median(times[STEPS // 4 :]), first


def compared(name: str, by: tuple[str, ...], measure) -> list[dict]:
    """A row for each implementation; `measure` gives (µs, logits), which are compared with grouped_mm's."""
    rows, logits = [], {}
    for implementation in by:
        row: dict[str, Any] = {"work": name, "peer": implementation}
        rows.append(row)
        try:
            row["wall_us"], logits[implementation] = measure(implementation)
        except Exception as error:  # the others still count
            row["failed"] = reason(error)
            print(f"{name}, {implementation}: {row['failed']}")
    if logits.keys() >= {OURS, "grouped_mm"}:
        try:
            rows[0]["error"] = check(logits[OURS], logits["grouped_mm"])
        except ArithmeticError as error:
            rows[0]["failed"] = reason(error)
            del rows[0]["wall_us"]
    return rows


@torch.inference_mode()
def run() -> list[dict]:
    if not installed("transformers"):
        return []
    model = made()
    ids = torch.randint(0, model.config.vocab_size, (1, PROMPT), device="cuda")

    def prefilled(implementation: str) -> tuple[float, torch.Tensor]:
        model.set_experts_implementation(implementation)
        return wall_us(lambda: prefill(model, ids)), prefill(model, ids)

    rows = compared(f"prefill of {PROMPT} tokens", PREFILL_BY, prefilled)
    for sequences in DECODED:

        def decoded(implementation: str, sequences: int = sequences) -> tuple[float, torch.Tensor]:
            model.set_experts_implementation(implementation)
            torch.manual_seed(sequences)  # the same prompts for all
            decode_us(model, sequences)
            torch.manual_seed(sequences)
            return decode_us(model, sequences)

        rows += compared(f"a step of {sequences} sequences", DECODE_BY, decoded)
    return rows


def table(rows: list[dict]) -> str:
    lines = [
        f"{'transformers, ' + str(LAYERS) + ' layers, wall time in us':44} " + "".join(f" {p:>11}" for p in DECODE_BY)
    ]
    for work in dict.fromkeys(row["work"] for row in rows):
        us = {row["peer"]: row["wall_us"] for row in rows if row["work"] == work and "wall_us" in row}
        told = f"{work:44} " + "".join(f" {us[peer]:11.0f}" if peer in us else f" {'-':>11}" for peer in DECODE_BY)
        peers = [us[peer] for peer in us if peer != OURS]
        lines.append(told + (f"  x {min(peers) / us[OURS]:.2f}" if OURS in us and peers else ""))
    return "\n".join(lines)


def main() -> None:
    parsed(argparse.ArgumentParser(prog="python -m benchmarks.transformers_model", description=__doc__))
    print(table(run()))


if __name__ == "__main__":
    main()
