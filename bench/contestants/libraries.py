"""transformers' GPT2LMHeadModel, trained by Accelerate's loop and by transformers' Trainer.

Neither is in the lock: `pip install --no-deps accelerate` adds what both need.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import torch

from bench.contestants.setting import OPTIMISER, Setting, Tokens

BETAS = (OPTIMISER.beta1, OPTIMISER.beta2)


def gpt2(setting: Setting) -> Any:
    """The library's own model of the same shape, without dropout, attention by torch's kernel."""
    from transformers import GPT2Config, GPT2LMHeadModel

    spec = setting.model
    shape: dict[str, Any] = {
        "vocab_size": spec.vocab_size,
        "n_positions": spec.context,
        "n_embd": spec.width,
        "n_layer": spec.num_layers,
        "n_head": spec.num_heads,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "use_cache": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "attn_implementation": "sdpa",
    }
    torch.manual_seed(11)
    return GPT2LMHeadModel(GPT2Config(**shape))


def batches(setting: Setting) -> Iterator[dict[str, torch.Tensor]]:
    """Batches without an end; the model shifts the labels itself."""
    tokens, step = Tokens(setting), 0
    while True:
        step += 1
        ids = torch.from_numpy(tokens.slice(step, 0, setting.batch)[0])
        yield {"input_ids": ids, "labels": ids}


class Accelerated:
    """Accelerate's documented loop."""

    name = "accelerate"

    def __init__(self, setting: Setting) -> None:
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState

        # One process has one state, with the precision of its first Accelerator.
        AcceleratorState._reset_state(reset_partial_state=True)
        mixed = "no" if setting.precision == "fp32" else setting.precision
        self.accelerator = Accelerator(mixed_precision=mixed, cpu=setting.device == "cpu")
        model = gpt2(setting)
        optimiser = torch.optim.AdamW(
            model.parameters(),
            lr=OPTIMISER.learning_rate,
            betas=BETAS,
            weight_decay=OPTIMISER.weight_decay,
            fused=True,
        )
        model = model.to(self.accelerator.device)
        if setting.compiled:
            model = torch.compile(model)
        self.model, self.optimiser = self.accelerator.prepare(model, optimiser)
        self.batches = batches(setting)

    def train(self, steps: int) -> float:
        """Forward, backward, clip, step; the loss is read once, at the end."""
        loss: Any = float("nan")
        for _, batch in zip(range(steps), self.batches, strict=False):
            device = self.accelerator.device
            loss = self.model(**{name: ids.to(device) for name, ids in batch.items()}).loss
            self.accelerator.backward(loss)
            self.accelerator.clip_grad_norm_(self.model.parameters(), OPTIMISER.max_grad_norm)
            self.optimiser.step()
            self.optimiser.zero_grad()
        return float(loss.detach())


def drive_trainer(setting: Setting, steps: int, between: Callable[[], bool]) -> None:
    """Train by transformers' Trainer; after every `steps` steps call `between`, until it is False.

    The Trainer has a loop of its own, so it holds the others' blocks within it.
    """
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Data(torch.utils.data.IterableDataset[dict[str, torch.Tensor]]):
        def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
            for batch in batches(setting):
                for place in range(setting.batch):
                    yield {name: ids[place] for name, ids in batch.items()}

    class Blocks(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step % steps == 0 and not between():
                control.should_training_stop = True

    with tempfile.TemporaryDirectory(prefix="samestep-") as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=setting.batch,
            max_steps=10**9,
            learning_rate=OPTIMISER.learning_rate,
            lr_scheduler_type="constant",
            adam_beta1=BETAS[0],
            adam_beta2=BETAS[1],
            weight_decay=OPTIMISER.weight_decay,
            max_grad_norm=OPTIMISER.max_grad_norm,
            optim="adamw_torch_fused",
            # With torch.compile the Trainer would turn TF32 on by itself.
            tf32=False if setting.device == "cuda" else None,
            bf16=setting.precision == "bf16",
            torch_compile=setting.compiled,
            use_cpu=setting.device == "cpu",
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        Trainer(
            model=gpt2(setting), args=arguments, train_dataset=Data(), callbacks=[Blocks()]
        ).train()
