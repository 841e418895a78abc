"""Make a small text classifier as Hugging Face transformers stores it, and texts with their classes.

    pip install torch transformers
    python train.py --out reviews    # a minute of one core; needs no network

It writes `reviews/model`, which `from_pretrained` reads, and `reviews/reviews.tsv`: a text and its class in each line.
A review has 3 to 30 words. Its class is 1 if more is praised than blamed; `not` turns the next word round.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

GOOD = "good great lovely fine superb bright warm honest clever fresh".split()
BAD = "bad awful dull weak cold broken boring false clumsy stale".split()
PLAIN = "the a film plot actor scene music ending with and of in this was had some very quite it there".split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TRAINING, HELD_OUT = 4000, 1000  # texts; the file has those that were held out


def write_review(rng: np.random.Generator) -> tuple[str, int]:
    """A text of 3 to 30 words, and 1 if it praises more than it blames, else 0."""
    words: list[str] = []
    score, length = 0, int(rng.integers(3, 30))
    while len(words) < length:
        if rng.random() < 0.75:
            words.append(str(rng.choice(PLAIN)))
            continue
        praise, turned = rng.random() < 0.5, rng.random() < 0.2
        words += ["not"] * turned + [str(rng.choice(GOOD if praise else BAD))]
        score += 1 if praise != turned else -1
    return (" ".join(words), int(score > 0)) if score else write_review(rng)


def train(texts: list[str], labels: list[int], folder: Path) -> None:
    """Train a BERT of two layers, and store it with its tokenizer in `folder`."""
    torch.manual_seed(0)
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join([*SPECIAL, "not", *GOOD, *BAD, *PLAIN]) + "\n", encoding="utf-8")
    tokenizer = BertTokenizer(str(vocabulary))
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256,
        max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = BertForSequenceClassification(config)
    optimizer = torch.optim.Adam(model.parameters(), 5e-4)
    for epoch in range(7):
        for rows in torch.randperm(len(texts)).split(32):
            tokens = tokenizer([texts[row] for row in rows], padding=True, return_tensors="pt")
            loss = model(**tokens, labels=torch.tensor([labels[row] for row in rows])).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1} of 7: loss of the last batch {loss.item():.3f}")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("reviews"), help="folder for the model and the texts")
    folder: Path = parser.parse_args().out
    rng = np.random.default_rng(0)
    found = [write_review(rng) for _ in range(TRAINING + HELD_OUT)]
    train([text for text, _ in found[HELD_OUT:]], [label for _, label in found[HELD_OUT:]], folder / "model")
    lines = [f"{text}\t{label}\n" for text, label in found[:HELD_OUT]]
    (folder / "reviews.tsv").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
