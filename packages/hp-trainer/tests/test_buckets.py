# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hp_trainer.buckets import Bucket, plan_buckets

quick = settings(max_examples=40, deadline=None)
SIZES = st.lists(st.integers(1, 200), max_size=30)


@quick
@given(SIZES, st.integers(1, 300), st.integers(1, 250), st.data())
def test_each_parameter_travels_exactly_once_and_buffers_hold_one_kind(sizes, bucket_bytes, alone_bytes, data):
    kinds = data.draw(st.lists(st.sampled_from(["fp32", "bf16"]), min_size=len(sizes), max_size=len(sizes)))
    plan = plan_buckets(sizes, kinds, bucket_bytes=bucket_bytes, alone_bytes=alone_bytes)
    assert sorted(index for bucket in plan for index in bucket.members) == list(range(len(sizes)))
    for bucket in plan:
        assert len({kinds[index] for index in bucket.members}) <= 1
        assert bucket.joined or len(bucket.members) == 1
        assert all((sizes[index] < alone_bytes) == bucket.joined for index in bucket.members)
        assert list(bucket.members) == sorted(bucket.members, reverse=True)


@quick
@given(SIZES, st.integers(1, 300), st.integers(1, 250))
def test_the_flags_travel_once_and_last(sizes, bucket_bytes, alone_bytes):
    plan = plan_buckets(sizes, ["fp32"] * len(sizes), bucket_bytes=bucket_bytes, alone_bytes=alone_bytes)
    assert [bucket.flags for bucket in plan] == [False] * (len(plan) - 1) + [True]
    assert plan[-1].joined


def test_messages_follow_the_backward_and_a_buffer_waits_for_its_last_member():
    plan = plan_buckets([900, 10, 800, 10, 700, 10], ["fp32"] * 6, bucket_bytes=20, alone_bytes=500)
    assert plan == [
        Bucket((4,), joined=False),
        Bucket((5, 3), joined=True),
        Bucket((2,), joined=False),
        Bucket((0,), joined=False),
        Bucket((1,), joined=True, flags=True),
    ]


def test_large_parameters_alone_still_get_a_message_for_the_flags():
    plan = plan_buckets([900, 900], ["fp32"] * 2, bucket_bytes=20, alone_bytes=500)
    assert plan == [Bucket((1,), joined=False), Bucket((0,), joined=False), Bucket((), joined=True, flags=True)]
