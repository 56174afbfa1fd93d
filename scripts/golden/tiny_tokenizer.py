"""A byte-level BPE tokenizer small enough for the tiny checkpoints."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import prompts

SPECIAL = ["<|begin|>", "<|end|>", "<|user|>", "<|assistant|>"]
TEMPLATE = ("{% for message in messages %}{{ '<|user|>' if message['role'] != 'assistant' else "
            "'<|assistant|>' }}{{ message['content'] }}<|end|>{% endfor %}"
            "{% if add_generation_prompt %}<|assistant|>{% endif %}")


def write(directory: Path, vocab_size: int) -> None:
    """Trains on the prompts of this folder: every byte, the special tokens, and a few merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=SPECIAL,
                                  show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([prompts.STORY, prompts.REPORT, prompts.CHINESE], trainer)
    assert tokenizer.get_vocab_size() == vocab_size
    tokenizer.save(str(directory / "tokenizer.json"), pretty=False)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": SPECIAL[0],
              "eos_token": SPECIAL[1], "add_bos_token": False, "model_max_length": 512,
              "clean_up_tokenization_spaces": False, "chat_template": TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
