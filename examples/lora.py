"""LoRA with PEFT: the proof covers the adapter, the base model is named by its digest.

A small Llama is trained on English text first; it stands for the model that everybody downloads.
The trainer then trains an adapter on it, with the lines marked `+`, and hands out the merged model.
It is named as the trainer's; the base itself is not.
"""

from pathlib import Path

import torch
from common import workplace
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

import polo
from polo.integrations.peft import adapter, save_base
from polo.ownership import Finding
from polo_lab.tasks.text import CODES, Letters


class AdaptedLetters(Letters):
    """Guess the next letter: an adapter on a base that all parties have."""

    name = "example-lora"
    floor = (0.1,)

    def __init__(self, base: dict[str, torch.Tensor]) -> None:
        self.base = base

    def build_model(self) -> torch.nn.Module:
        """The adapter, untrained, on the base."""
        model = build_base()
        model.load_state_dict(self.base)
        layers = ["q_proj", "v_proj", "up_proj", "down_proj"]
        return adapter(get_peft_model(model, LoraConfig(r=4, target_modules=layers)))

    def evaluate(self, model: torch.nn.Module) -> float:
        """Accuracy on text that training never sees."""
        inputs, labels = self.test_part
        with torch.no_grad():
            return float((model(inputs).logits.argmax(-1) == labels).double().mean())

    def train(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
        """Some ordinary steps."""
        inputs, labels = self.train_part
        for batch in torch.randint(len(labels), (steps, 32)):
            scores = model(inputs[batch]).logits
            loss = functional.cross_entropy(scores.flatten(0, 1), labels[batch].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def build_base() -> LlamaForCausalLM:
    """A Llama of 190,000 weights; nothing is downloaded."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=CODES, hidden_size=128, intermediate_size=256, num_hidden_layers=1,
            num_attention_heads=4, num_key_value_heads=4,
        )
    )  # fmt: skip


def pretrained() -> dict[str, torch.Tensor]:
    """What the base knows before the trainer gets it."""
    model, task = build_base(), AdaptedLetters({})
    task.train(model, torch.optim.AdamW(model.parameters(), lr=3e-3), steps=60)
    return model.state_dict()


def whose(path: Path, proof: Path, base: Path, issuer: bytes) -> Finding:
    """Ask whose a model is, and say so."""
    found = polo.identify(path, [proof], base=base, trust=issuer)
    print(f"{path.name}: {found.headline()}")
    return found.finding


def main() -> None:
    """Train an adapter, prove it, merge it, find it."""
    folder = workplace()
    torch.manual_seed(0)
    task = AdaptedLetters(pretrained())
    issuer, trainer = polo.Identity.generate(), polo.Identity.generate()
    terms = polo.make_terms(task, scheme="signed", bits=256, block=64, shards=10)
    enrolment = polo.enrol(terms, identity=trainer.public_key, issuer=issuer)

    view = task.build_model()
    model = view.model  # what get_peft_model returned; for your own: view = adapter(model)  # +
    optimizer = torch.optim.AdamW(view.parameters(), lr=3e-3)
    print(f"accuracy of the base: {task.evaluate(model):.4f}")

    prover = polo.Prover(enrolment, key=trainer, store=folder / "proof")  # +
    with prover.attach(view, optimizer):  # +
        for _ in range(6):
            task.train(model, optimizer, steps=20)
            prover.end_epoch(evaluate=lambda: task.evaluate(model))  # +
    proof = prover.finish()
    print(f"{proof.shards} shards; accuracy of the adapted model: {task.evaluate(model):.4f}")
    verdict = polo.verify(proof.path, trust=issuer.public_key, task=task)
    print(verdict.headline())

    save_base(view, folder / "base.safetensors")
    save_file(model.merge_and_unload().state_dict(), folder / "merged.safetensors")
    asked = proof.path, folder / "base.safetensors", issuer.public_key
    merged = whose(folder / "merged.safetensors", *asked)
    base = whose(folder / "base.safetensors", *asked)
    assert (merged, base) == (Finding.CLAIM, Finding.NO_CLAIM)
    raise SystemExit(verdict.outcome)


if __name__ == "__main__":
    main()
