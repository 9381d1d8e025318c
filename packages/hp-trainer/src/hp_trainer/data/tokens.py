# SPDX-License-Identifier: Apache-2.0
"""Tokenise text files once into two flat files of ids, which every rank maps into memory.

Layout of a cached folder: ``train.bin`` and ``heldout.bin`` (ids, each document followed by the end-of-text id) and
``meta.json`` (dtype, counts, what was skipped, a digest of the ids).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hp_trainer.cache import build_once, cache_root
from hp_trainer.config.schema import TrainConfig
from hp_trainer.data.sources import DataError, TextFile, find_files, source_name, split_heldout
from hp_trainer.models.build import load_tokenizer, tokenizer_folder
from hp_trainer.quiet import quiet_transformers

_FORMAT = 2
#: Characters handed to the tokenizer at a time: enough for its threads, little in memory.
_BATCH_CHARACTERS = 1 << 20


@dataclass(frozen=True)
class TokenData:
    """The tokenised text.

    Attributes:
        train: Ids of the training documents, uint16 or uint32, mapped read-only.
        heldout: Ids of the held-out documents.
        source: Where the text comes from.
        num_files: Files read (training and held-out).
        num_bytes: Their size.
        num_skipped: Files left out because they are not UTF-8 or not readable.
        first_skipped: The first of those, or an empty text.
        digest: Hash of all ids: equal on all ranks, or they would train on different text.
    """

    train: NDArray[Any]
    heldout: NDArray[Any]
    source: str
    num_files: int
    num_bytes: int
    num_skipped: int
    first_skipped: str
    digest: str


def prepare_tokens(config: TrainConfig, model_folder: Path | None, *, leader: bool) -> TokenData:
    """Return the tokenised text of ``data``, from the cache if the files and the tokenizer are as they were.

    Every rank calls it; the leader tokenises, the others wait for its files. Nothing is communicated.

    Args:
        config: The run's configuration.
        model_folder: Where the model's tokenizer lies; None for a random model.
        leader: Whether this is local rank 0.

    Raises:
        DataError: No text, or none of it is UTF-8.
        ModelError: The tokenizer cannot be loaded.
        CacheError: The cache cannot be written, or the leader's files did not appear in time.
    """
    files = find_files(config.data)
    key = _cache_key(files, config.data.heldout, tokenizer_folder(config, model_folder))
    folder = build_once(
        cache_root(config.data.cache_dir) / "tokens" / key,
        lambda target: _tokenise(files, config, load_tokenizer(config, model_folder), target),
        what=f"the tokenised text of {source_name(config.data)}",
        leader=leader,
        timeout_s=config.launch.timeout_s,
    )
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    return TokenData(
        train=_map(folder / "train.bin", meta["dtype"]),
        heldout=_map(folder / "heldout.bin", meta["dtype"]),
        source=source_name(config.data),
        num_files=meta["num_files"],
        num_bytes=meta["num_bytes"],
        num_skipped=meta["num_skipped"],
        first_skipped=meta["first_skipped"],
        digest=meta["digest"],
    )


def _cache_key(files: list[TextFile], heldout: float, tokenizer: Path | None) -> str:
    digest = hashlib.sha256()
    digest.update(
        json.dumps([_FORMAT, heldout, [[file.name, file.num_bytes, file.mtime_ns] for file in files]]).encode()
    )
    if tokenizer is None:
        digest.update(b"bytes")
    else:
        for path in sorted(tokenizer.iterdir()):
            if path.is_file() and ("token" in path.name or path.name.startswith(("vocab", "merges"))):
                digest.update(path.name.encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:32]


def _map(path: Path, dtype: str) -> NDArray[Any]:
    if path.stat().st_size == 0:
        return np.empty(0, dtype)
    return np.memmap(path, dtype=dtype, mode="r")


@dataclass
class _Tally:
    """What was read so far."""

    num_files: int = 0
    num_bytes: int = 0
    num_skipped: int = 0
    first_skipped: str = ""


def _tokenise(files: list[TextFile], config: TrainConfig, tokenizer: Any, target: Path) -> None:
    dtype = np.dtype(np.uint16 if len(tokenizer) <= 1 << 16 else np.uint32)
    digest = hashlib.sha256()
    tally = _Tally()
    readable = [file for file in files if _text(file, tally) is not None]
    if not readable:
        raise _no_text("any", config, files, tally)
    train, heldout = split_heldout(readable, config.data.heldout)

    def encode(texts: list[str]) -> list[list[int]]:
        with quiet_transformers():
            return list(tokenizer(texts, add_special_tokens=False, return_attention_mask=False)["input_ids"])

    def write(name: str, texts: Iterator[str]) -> int:
        count = 0
        with (target / f"{name}.bin").open("wb") as file:
            for ids in _encode_batches(texts, encode):
                chunk = np.asarray([*ids, tokenizer.eos_token_id], dtype).tobytes()
                digest.update(chunk)
                file.write(chunk)
                count += len(ids)
        return count

    if heldout:
        counts = (write("train", _read(train, tally)), write("heldout", _read(heldout, tally)))
    else:
        text = "".join(_read(train, tally))
        cut = _cut_position(text, config.data.heldout)
        counts = (write("train", iter([text[:cut]])), write("heldout", iter([text[cut:]])))
    if not all(counts):
        raise _no_text("the held-out" if counts[0] else "the training", config, files, tally)
    meta = {
        "dtype": dtype.name,
        "num_files": tally.num_files,
        "num_bytes": tally.num_bytes,
        "num_skipped": tally.num_skipped,
        "first_skipped": tally.first_skipped,
        "digest": digest.hexdigest(),
    }
    (target / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")


def _no_text(part: str, config: TrainConfig, files: list[TextFile], tally: _Tally) -> DataError:
    return DataError(
        f"data.path: {source_name(config.data)}: no text for {part} part after {tally.num_skipped} of {len(files)} "
        "files were left out as not UTF-8 or not readable; give more UTF-8 text, or another data.heldout than "
        f"{config.data.heldout:g}"
    )


def _read(files: list[TextFile], tally: _Tally) -> Iterator[str]:
    for file in files:
        text = _text(file, tally)
        if text is not None:
            tally.num_files += 1
            tally.num_bytes += file.num_bytes
            yield text


def _text(file: TextFile, tally: _Tally) -> str | None:
    """Return the text, or None and count the file where it is none.

    Every file is read twice, the first time only for this: the split is of the files that have text, or a binary file
    might be all that is held out.
    """
    try:
        return file.path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, OSError):
        tally.num_skipped += 1
        tally.first_skipped = tally.first_skipped or str(file.path)
        return None


def _encode_batches(texts: Iterator[str], encode: Callable[[list[str]], list[list[int]]]) -> Iterator[list[int]]:
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= _BATCH_CHARACTERS:
            yield from encode(batch)
            batch, size = [], 0
    if batch:
        yield from encode(batch)


def _cut_position(text: str, fraction: float) -> int:
    """Return where a single file's held-out tail begins: after the last line break before the fraction, if any."""
    wanted = int(len(text) * (1 - fraction))
    line = text.rfind("\n", 0, wanted) + 1
    return line if line > wanted // 2 else wanted
