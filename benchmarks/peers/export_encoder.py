"""An encoder of sentences as ONNX, with the tokens of sentences beside it; run by the Python of the peers' environment.

usage: python -m benchmarks.peers.export_encoder WEIGHTS OUT.onnx
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

from benchmarks.peers.real_models import TOKENS, sentences


class Embedding(torch.nn.Module):  # type: ignore[misc]
    """The mean of the last layer over a sentence's tokens, of length 1: what the package gives."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weights = attention_mask.unsqueeze(-1).to(states.dtype)
        return torch.nn.functional.normalize((states * weights).sum(1) / weights.sum(1), dim=-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("weights", "out"):
        parser.add_argument(name, type=Path)
    arguments = parser.parse_args()
    encoder = AutoModel.from_pretrained(arguments.weights, local_files_only=True, attn_implementation="eager")
    tokenizer = AutoTokenizer.from_pretrained(arguments.weights, local_files_only=True)
    options = {"padding": "max_length", "truncation": True, "max_length": TOKENS, "return_tensors": "np"}
    tokens = tokenizer(sentences(), **options)
    arrays = {name: tokens[name].astype(np.int64) for name in ("input_ids", "attention_mask")}
    example = tuple(torch.from_numpy(array[:4]) for array in arrays.values())
    torch.onnx.export(
        Embedding(encoder).eval(),
        example,
        str(arguments.out),
        dynamo=False,
        opset_version=17,
        input_names=list(arrays),
        output_names=["embedding"],
    )
    np.savez(arguments.out.with_suffix(".npz"), **arrays)
    print(json.dumps({"sentences": len(arrays["input_ids"])}))


if __name__ == "__main__":
    main()
