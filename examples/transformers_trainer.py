"""The Transformers `Trainer`: one callback.

A small Llama guesses the next letter of English text. The Trainer saves a checkpoint after each
sealed shard; run the script on the same folder after it was killed, and both go on from there.
"""

from pathlib import Path

import torch
from common import enrolled, workplace
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import polo
from polo.integrations.transformers import PoloCallback
from polo_lab.tasks.text import CODES, LENGTH, Letters


class LettersLlama(Letters):
    """The letters of scikit-learn's descriptions, for a Llama with about 55,000 weights."""

    name = "letters-llama"
    floor = (0.15, 0.20)

    def build_model(self) -> LlamaForCausalLM:
        """The network, untrained."""
        sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=CODES, max_position_embeddings=LENGTH, num_hidden_layers=1, **sizes
            )
        )

    @torch.no_grad()
    def evaluate(self, model: torch.nn.Module) -> float:
        """How often the likeliest letter is the next one."""
        letters, following = self.test_part
        training = model.training
        model.eval()
        guesses = model(letters.to(next(model.parameters()).device)).logits.argmax(-1).cpu()
        model.train(training)
        return float((guesses == following).double().mean())


def newest(folder: Path) -> Path | None:
    """The newest checkpoint that is whole: the Trainer writes its own state last."""
    found = [path.parent for path in folder.glob("checkpoint-*/trainer_state.json")]
    return max(found, key=lambda path: int(path.name.split("-")[1]), default=None)


def main() -> None:
    """Train, prove, verify."""
    folder, task = workplace(), LettersLlama()
    if not (folder / "enrolment").exists():
        enrolled(folder, task)
    letters, following = task.train_part
    # The model shifts labels by one place; what follows the last letter is not asked for.
    data = [{"input_ids": x, "labels": x} for x in letters[: len(following)]]

    torch.manual_seed(0)
    callback = PoloCallback(  # +
        folder / "enrolment",
        key=folder / "trainer.key",
        store=folder / "proof",
        evaluate=task.evaluate,
        extend=True,  # if it is killed after the first shard, and before the first checkpoint
    )
    arguments = TrainingArguments(
        output_dir=str(folder / "trainer"),
        num_train_epochs=3,
        per_device_train_batch_size=32,
        learning_rate=1e-2,
        lr_scheduler_type="cosine",
        save_total_limit=1,
        save_strategy="epoch",
        dataloader_pin_memory=torch.cuda.is_available(),
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(task.build_model(), arguments, train_dataset=data, callbacks=[callback])
    trainer.train(resume_from_checkpoint=newest(folder / "trainer"))

    proof = callback.proof
    assert proof is not None
    print(f"{proof.shards} shards in {proof.path}, {proof.outside} steps outside")
    verdict = polo.verify(proof.path, trust=folder / "issuer.pub", task=task)
    print(verdict.headline())
    raise SystemExit(verdict.outcome)


if __name__ == "__main__":
    main()
