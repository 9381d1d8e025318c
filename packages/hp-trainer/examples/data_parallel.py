# SPDX-License-Identifier: Apache-2.0
# run: hp run -n 2 packages/hp-trainer/examples/data_parallel.py
"""Data parallelism around a plain module and a plain loop: each rank trains on its own part of the data."""

import torch

import hp_core.comm as comm
from hp_trainer import DataParallel

comm.init_backend("cpu")
torch.manual_seed(comm.rank())  # the weights start equal all the same: rank 0's are broadcast
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
parallel = DataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

inputs = torch.randn(256, 16, generator=torch.Generator().manual_seed(comm.rank()))
targets = inputs.sum(dim=1, keepdim=True).sin()
first = last = 0.0
for _ in range(100):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    loss.backward()  # gradients are on their way to the other ranks as soon as they are ready
    parallel.reduce_gradients()
    optimizer.step()
    last = loss.item()
    first = first or last

weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
difference = float((comm.all_reduce(weights.clone(), "max") - weights).abs().max())
print(f"rank {comm.rank()}: loss {first:.3f} -> {last:.3f}, largest difference between ranks {difference}")
if last > first / 2 or difference != 0:
    raise SystemExit("the ranks did not learn together")
comm.shutdown()
