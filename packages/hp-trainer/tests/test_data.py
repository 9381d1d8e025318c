# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import errno
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hp_trainer.cache import CacheError, build_once
from hp_trainer.config import to_config
from hp_trainer.config.schema import DataConfig
from hp_trainer.data import DataError, Sampler, Samples, find_files, prepare_tokens
from hp_trainer.data.samples import IGNORE
from hp_trainer.data.sources import split_heldout
from hp_trainer.evaluation import heldout_batches

quick = settings(max_examples=40, deadline=None)


def all_ranks(num_samples, micro, num_ranks, seed):
    return [Sampler(num_samples, micro, rank=rank, num_ranks=num_ranks, seed=seed) for rank in range(num_ranks)]


@quick
@given(st.integers(1, 50), st.integers(1, 4), st.integers(1, 5), st.integers(1, 12), st.integers(0, 2**40))
def test_n_ranks_see_what_one_rank_with_n_times_the_micro_batch_sees(num_samples, micro, num_ranks, num_steps, seed):
    samplers = all_ranks(num_samples, micro, num_ranks, seed)
    one = Sampler(num_samples, micro * num_ranks, rank=0, num_ranks=1, seed=seed)
    for _ in range(num_steps):
        assert [index for sampler in samplers for index in sampler.next_indices()] == one.next_indices()


@quick
@given(st.integers(1, 40), st.integers(1, 3), st.integers(1, 4), st.integers(0, 1000))
def test_each_sample_is_seen_by_exactly_one_rank_in_each_epoch(num_samples, micro, num_ranks, seed):
    samplers = all_ranks(num_samples, micro, num_ranks, seed)
    stream = []
    while len(stream) < 2 * num_samples:
        for sampler in samplers:
            stream.extend(sampler.next_indices())
    for epoch in range(2):
        assert sorted(stream[epoch * num_samples : (epoch + 1) * num_samples]) == list(range(num_samples))


@quick
@given(st.integers(2, 40), st.integers(0, 10), st.integers(1, 4), st.integers(1, 4))
def test_a_sampler_goes_on_from_its_state_on_another_number_of_ranks(num_samples, before, ranks_before, ranks_after):
    samplers = all_ranks(num_samples, 1, ranks_before, 7)
    for _ in range(before):
        for sampler in samplers:
            sampler.next_indices()
    straight = Sampler(num_samples, 1, rank=0, num_ranks=1, seed=7)
    expected = [straight.next_indices()[0] for _ in range(before * ranks_before + 3 * ranks_after)][
        before * ranks_before :
    ]
    resumed = all_ranks(num_samples, 1, ranks_after, 7)
    seen = []
    for sampler in resumed:
        sampler.load_state_dict(samplers[0].state_dict())
    for _ in range(3):
        for sampler in resumed:
            seen.extend(sampler.next_indices())
    assert seen == expected


def test_a_state_of_other_data_is_refused():
    state = Sampler(5, 1, rank=0, num_ranks=1, seed=0).state_dict()
    with pytest.raises(ValueError, match="num_samples 5, this sampler has 6"):
        Sampler(6, 1, rank=0, num_ranks=1, seed=0).load_state_dict(state)


def test_epochs_and_seeds_are_shuffled_differently():
    one, other = Sampler(50, 50, rank=0, num_ranks=1, seed=0), Sampler(50, 50, rank=0, num_ranks=1, seed=1)
    first, second = one.next_indices(), one.next_indices()
    assert first != second
    assert first != other.next_indices()


@quick
@given(st.integers(2, 200), st.integers(2, 17))
def test_every_token_but_the_first_is_a_target_exactly_once(length, seq_len):
    tokens = np.arange(length, dtype=np.uint16)
    samples = Samples(tokens, seq_len)
    batch = samples.batch(range(len(samples)))
    labels = batch.labels.flatten().tolist()
    assert [label for label in labels if label != IGNORE] == list(range(1, length))
    assert batch.num_targets == samples.num_targets == length - 1
    counted = batch.labels != IGNORE
    assert (batch.input_ids[counted] + 1 == batch.labels[counted]).all()


@quick
@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 8))
def test_held_out_batches_hold_each_sample_at_most_once_and_as_many_as_asked(num_samples, num_batches, size):
    batches = heldout_batches(num_samples, num_batches, size)
    chosen = [index for batch in batches for index in batch]
    assert len(set(chosen)) == len(chosen) == min(num_samples, num_batches * size)
    assert all(0 <= index < num_samples for index in chosen)
    assert len(batches) <= num_batches


def test_files_come_in_an_order_of_their_names_and_the_split_is_by_file(text_folder):
    files = find_files(DataConfig(path=str(text_folder)))
    train, heldout = split_heldout(files, 0.25)
    assert (len(train), len(heldout)) == (6, 2)
    assert not set(train) & set(heldout)
    again = find_files(DataConfig(path=str(text_folder / "*.txt")))
    assert {file.path for file in again} == {file.path for file in files}
    assert len(find_files(DataConfig(path=str(text_folder), pattern="[0-3].txt"))) == 4


def test_max_bytes_caps_the_text(text_folder):
    total = sum(file.num_bytes for file in find_files(DataConfig(path=str(text_folder), max_bytes=None)))
    capped = find_files(DataConfig(path=str(text_folder), max_bytes=total // 2))
    assert 0 < sum(file.num_bytes for file in capped) <= total // 2
    with pytest.raises(DataError, match=r"data\.max_bytes: 5 is less than the smallest of 8 files"):
        find_files(DataConfig(path=str(text_folder), max_bytes=5))


def test_the_default_is_the_standard_library_without_its_tests():
    files = find_files(DataConfig(max_bytes=None))
    names = {file.name for file in files}
    assert "argparse.py" in names
    assert not any(name.startswith("test/") or "/tests/" in name or "site-packages" in name for name in names)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "nowhere", "does not exist; give a folder"),
        (lambda folder: folder / "*.md", "has no non-empty file"),
        (lambda folder: folder / "empty", "has no non-empty file"),
    ],
)
def test_no_text_is_one_line_that_names_the_place(text_folder, make, message):
    (text_folder / "empty").mkdir()
    (text_folder / "empty" / "nothing.txt").touch()
    place = make(text_folder)
    with pytest.raises(DataError) as caught:
        find_files(DataConfig(path=str(place)))
    assert message in str(caught.value)
    assert str(place) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_tokenised_text_is_the_text_and_is_made_once(tiny_run, text_folder):
    config = to_config(tiny_run)
    data = prepare_tokens(config, None, leader=True)
    expected_train, expected_heldout = split_heldout(find_files(config.data), config.data.heldout)
    end = bytes([0])
    for tokens, files in ((data.train, expected_train), (data.heldout, expected_heldout)):
        ids = np.asarray(tokens)
        assert (ids == 256).sum() == len(files)
        assert bytes(np.where(ids == 256, 0, ids).astype(np.uint8)) == b"".join(
            file.path.read_bytes() + end for file in files
        )
    assert data.train.dtype == np.uint16
    before = sorted((text_folder.parent / "cache").rglob("meta.json"))
    assert prepare_tokens(config, None, leader=True).digest == data.digest
    assert sorted((text_folder.parent / "cache").rglob("meta.json")) == before
    # A changed file is another text.
    (text_folder / "0.txt").write_text("something else\n" * 30, encoding="utf-8")
    assert prepare_tokens(config, None, leader=True).digest != data.digest


def test_files_that_are_not_utf8_are_left_out_and_counted(tiny_run, text_folder):
    (text_folder / "latin.txt").write_bytes("naïve".encode("latin-1"))
    data = prepare_tokens(to_config(tiny_run), None, leader=True)
    assert data.num_skipped == 1
    assert data.first_skipped.endswith("latin.txt")
    assert data.num_files == 8


def test_a_binary_file_is_left_out_before_files_are_held_out(tiny_run, tmp_path):
    folder = tmp_path / "mixed"
    folder.mkdir()
    for name in "abcd":
        (folder / name).write_text("some text\n" * 20)
    last = find_files(DataConfig(path=str(folder)))[-1]  # the one that would be held out
    last.path.write_bytes(bytes(range(256)))
    tiny_run["data"].update(path=str(folder), heldout=0.05)
    data = prepare_tokens(to_config(tiny_run), None, leader=True)
    assert (data.num_files, data.num_skipped, data.first_skipped) == (3, 1, str(last.path))
    assert len(data.heldout) == 201


def test_a_file_that_may_not_be_read_is_left_out_and_counted(tiny_run, text_folder, monkeypatch):
    read_text = Path.read_text

    def closed(self, *args, **kwargs):  # not by its mode: root reads everything
        if self.name == "3.txt":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))
        return read_text(self, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", closed)
    data = prepare_tokens(to_config(tiny_run), None, leader=True)
    assert (data.num_files, data.num_skipped, data.first_skipped) == (7, 1, str(text_folder / "3.txt"))


def test_a_folder_closed_to_us_is_one_line(text_folder, monkeypatch):
    def closed(self):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    monkeypatch.setattr(Path, "is_dir", closed)
    with pytest.raises(DataError, match=r"data\.path: .*text cannot be read: Permission denied; name another"):
        find_files(DataConfig(path=str(text_folder)))


def test_links_that_go_around_and_files_that_are_none_do_not_stop_or_repeat_anything(text_folder):
    wanted = {file.path.name for file in find_files(DataConfig(path=str(text_folder)))}
    for name in ("again", "once-more"):  # two: a walk that followed them would double at each level
        (text_folder / name).symlink_to(text_folder)
    (text_folder / "itself").symlink_to("itself")
    (text_folder / "nothing").symlink_to("nowhere")
    (text_folder / "zeros").symlink_to("/dev/zero")
    os.mkfifo(text_folder / "pipe")
    for path in (text_folder, text_folder / "**", text_folder / "**" / "*", text_folder / "*"):
        files = find_files(DataConfig(path=str(path)))
        assert sorted(file.path.name for file in files) == sorted(wanted), path


def test_a_glob_leaves_hidden_files_out_unless_it_names_them(text_folder):
    (text_folder / ".hidden").mkdir()
    (text_folder / ".hidden" / "9.txt").write_text("hidden")
    assert len(find_files(DataConfig(path=str(text_folder / "**" / "*.txt")))) == 8
    assert len(find_files(DataConfig(path=str(text_folder / ".h*" / "*.txt")))) == 1


def test_a_file_name_that_is_no_utf8_is_a_name(tiny_run, text_folder):
    with open(os.fsencode(text_folder) + b"/\xff\xfe.txt", "wb") as file:
        file.write(b"text")
    assert prepare_tokens(to_config(tiny_run), None, leader=True).num_files == 9


# From Python 3.13 on, "**x" is a pattern.
@pytest.mark.parametrize("pattern", ["/etc/*", *([] if sys.version_info >= (3, 13) else ["**x", "."])])
def test_a_pattern_that_is_none_is_one_line(text_folder, pattern):
    with pytest.raises(DataError, match=r"is no pattern below a folder") as caught:
        find_files(DataConfig(path=str(text_folder), pattern=pattern))
    assert "\n" not in str(caught.value)


def test_a_home_of_nobody_and_a_name_too_long_are_one_line():
    with pytest.raises(DataError, match=r"data\.path: ~nobody-of-this-name/x does not exist"):
        find_files(DataConfig(path="~nobody-of-this-name/x"))
    with pytest.raises(DataError, match=r"cannot be read: File name too long"):
        find_files(DataConfig(path="a" * 5000))


def test_only_text_that_is_not_utf8_is_an_error(tiny_run, tmp_path):
    folder = tmp_path / "binary"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.bin").write_bytes(b"\xff\xfe\x80")
    tiny_run["data"]["path"] = str(folder)
    with pytest.raises(DataError, match="after 3 of 3 files were left out as not UTF-8"):
        prepare_tokens(to_config(tiny_run), None, leader=True)


def test_a_single_file_holds_out_its_tail(tiny_run, tmp_path):
    text = "".join(f"line {number}\n" for number in range(200))
    path = tmp_path / "book.txt"
    path.write_text(text, encoding="utf-8")
    tiny_run["data"].update(path=str(path), heldout=0.1)
    data = prepare_tokens(to_config(tiny_run), None, leader=True)
    train, heldout = (bytes(np.asarray(part[:-1]).astype(np.uint8)).decode() for part in (data.train, data.heldout))
    assert train + heldout == text
    assert train.endswith("\n")
    assert 0.05 < len(heldout) / len(text) < 0.15


def test_a_folder_is_built_once_by_whoever_comes_first(tmp_path):
    built = []

    def build(target):
        built.append(target)
        time.sleep(0.2)
        (target / "done").touch()

    def work():
        build_once(tmp_path / "thing", build, what="the thing", leader=True, timeout_s=10)
        assert (tmp_path / "thing" / "done").exists()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1


def test_a_failed_build_leaves_nothing_behind(tmp_path):
    def build(target):
        (target / "half").touch()
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        build_once(tmp_path / "thing", build, what="the thing", leader=True, timeout_s=10)
    assert [path.name for path in tmp_path.iterdir()] == [".thing.lock"]


def test_a_rank_that_waits_in_vain_says_for_what(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    with pytest.raises(CacheError, match=r"rank 3 waited 0\.2 s for the thing .*local rank 0"):
        build_once(tmp_path / "thing", lambda target: None, what="the thing", leader=False, timeout_s=0.2)


def test_a_cache_on_a_full_disk_is_one_line(tmp_path):
    def build(target):
        raise OSError(28, os.strerror(28))

    with pytest.raises(
        CacheError,
        match=r"cannot write the thing to .*: No space left on device; free some space or set data.cache_dir",
    ):
        build_once(tmp_path / "thing", build, what="the thing", leader=True, timeout_s=1)
