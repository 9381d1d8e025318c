# SPDX-License-Identifier: Apache-2.0
"""Which package each public name lives in: strings, for messages and for telling first-party plugins apart.

The registry, not this table, decides what a name is; the table is read when a name is not there.
"""

from __future__ import annotations

#: Public names of each package, including those that are not written yet.
PACKAGES: dict[str, tuple[str, ...]] = {
    "hp-core": ("DeviceMesh", "get_current_mesh", "get_platform", "init_device_mesh"),
    "hp-dtensor": (
        "DFunction",
        "DTensor",
        "ColwiseParallel",
        "Layout",
        "ParallelStyle",
        "Partial",
        "PrepareModuleInput",
        "PrepareModuleInputOutput",
        "PrepareModuleOutput",
        "RaggedShard",
        "Replicate",
        "RowwiseParallel",
        "SequenceParallel",
        "Shard",
        "ShardingPlan",
        "SkipDTensorDispatch",
        "StridedShard",
        "custom_shard",
        "distribute_tensor",
        "empty",
        "full",
        "init_empty_weights",
        "init_on_device",
        "init_parameters",
        "loss_parallel",
        "manual_seed",
        "ones",
        "parallelize_module",
        "parallelize_value_and_grad",
        "rand",
        "randn",
        "shard_module",
        "zeros",
    ),
    "hp-context": ("AsyncContextParallel", "ContextParallel"),
    "hp-fsdp": ("fully_shard", "hsdp"),
    "hp-pipeline": (
        "CommComputeOverlap",
        "MetaStep",
        "MetaStepType",
        "PipelineStage",
        "Schedule1F1B",
        "ScheduleGPipe",
        "ScheduleInterleaved1F1B",
        "ScheduleSeq1F1B",
        "ScheduleZBV",
        "SharedParameterInfo",
        "register_custom_function",
    ),
    "hp-moe": (
        "ExpertParallel",
        "ExpertTensorParallel",
        "GroupedExperts",
        "MoE",
        "MoEAuxLossAutoScaler",
        "TokenChoiceTopKRouter",
    ),
    "hp-offload": (
        "CheckpointPolicy",
        "SwapManager",
        "checkpoint",
        "checkpoint_wrapper",
        "swap",
        "swap_tensor_wrapper",
        "swap_wrapper",
    ),
    "hp-optim": ("AdamW", "ChainedOptimizer", "Muon", "get_hyper_lr_scheduler", "get_hyper_optimizer"),
    "hp-dcp": ("async_save", "load", "save"),
    "hp-native": ("AllGatherMatmul", "MatmulReduceScatter"),
    "hp-auto": ("DryRun",),
    "hp-trainer": ("LLMTrainer", "ParallelDims", "TrainConfig", "VLTrainer"),
}

#: The packages that exist; the others of `PACKAGES` are still to be written. A new package adds its name here.
RELEASED: frozenset[str] = frozenset({"hp-core", "hp-native", "hp-trainer"})

#: Commands of ``hp`` that packages add.
COMMANDS: dict[str, str] = {"explain": "hp-auto", "report": "hp-trainer", "train": "hp-trainer"}

#: The distributions of this project. Others are third-party, whatever their name begins with.
FIRST_PARTY: frozenset[str] = frozenset(PACKAGES)


def where_to_get(distribution: str) -> str:
    """Return how an error goes on after a distribution's name: the command that installs it, if it exists.

    No command for a package that does not exist yet: anybody could upload one of that name.
    """
    return f": pip install {distribution}" if distribution in RELEASED else ", which is not released yet"


def owner(name: str) -> str | None:
    """Return the distribution in which a public name lives, or None."""
    return next((distribution for distribution, names in PACKAGES.items() if name in names), None)


def public_names() -> list[str]:
    """Return every public name of the project, installed or not."""
    return sorted(name for names in PACKAGES.values() for name in names)
