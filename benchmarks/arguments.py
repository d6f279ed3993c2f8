"""The command line of a benchmark."""

import argparse

import torch


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Its arguments; the process ends with status 2 where torch finds no GPU."""
    given = parser.parse_args()
    need_gpu(parser)
    return given


def need_gpu(parser: argparse.ArgumentParser) -> None:
    if not torch.cuda.is_available():
        parser.exit(2, f"{parser.prog}: an NVIDIA GPU is needed, and torch {torch.__version__} finds none\n")
