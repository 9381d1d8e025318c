# SPDX-License-Identifier: Apache-2.0
"""A tokenizer of plain bytes: 256 ids and an end-of-text token. It needs no files."""

from __future__ import annotations

from typing import Any

END_OF_TEXT = "<|endoftext|>"
VOCAB_SIZE = 257


def bytes_tokenizer() -> Any:
    """Return a fast Hugging Face tokenizer whose ids are bytes in the order of their values, then end-of-text (256)."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    # A BPE model without merges over the byte-level alphabet: each byte is one printable character, and one token.
    vocab = {character: index for index, character in enumerate(_printable_bytes())}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    make: Any = PreTrainedTokenizerFast
    return make(
        tokenizer_object=tokenizer, eos_token=END_OF_TEXT, pad_token=END_OF_TEXT, clean_up_tokenization_spaces=False
    )


def _printable_bytes() -> list[str]:
    """Return the character that stands for each byte in the byte-level alphabet (GPT-2's, which tokenizers uses)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: chr(byte) for byte in plain}
    spare = 0x100
    for byte in range(256):
        if byte not in table:
            table[byte] = chr(spare)
            spare += 1
    return [table[byte] for byte in range(256)]
