# SPDX-License-Identifier: Apache-2.0
# run: hp run -n 2 packages/hp-core/examples/all_reduce_over_a_mesh.py
"""A mesh with two named axes, and a sum along one of them."""

import torch

import hp_core.comm as comm
from hp_core.mesh import init_device_mesh

mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "tp"))
group = mesh.get_group("dp")

gradient = torch.full((3,), float(comm.rank() + 1))
comm.all_reduce(gradient, "avg", group=group)
print(f"rank {comm.rank()} of {mesh}, {mesh.get_local_rank('dp')} along dp: mean {gradient.tolist()}")
assert gradient.tolist() == [1.5, 1.5, 1.5]

# Two halves of a matrix meet; `async_op=True` lets the program go on until the result is needed.
half = torch.arange(4.0).view(2, 2) + 4 * group.rank
work = comm.all_gather(half, group=group, async_op=True)
assert work.wait().equal(torch.arange(8.0).view(4, 2))

comm.shutdown()
