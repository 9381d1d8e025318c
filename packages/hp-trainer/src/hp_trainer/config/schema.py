# SPDX-License-Identifier: Apache-2.0
"""The configuration of a training run: one pydantic model a section, unknown keys forbidden.

Each field has a one-line description: `hp train --help` prints them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from hp_trainer.config.plain_values import find_odd_value


class Section(BaseModel):
    """What all sections share: no unknown keys, values checked when assigned too."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True, allow_inf_nan=False, validate_default=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_bool_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        # Python's True is an int, so pydantic takes it for 1.
        annotation = cls.model_fields[info.field_name or ""].annotation
        numbers = {int, float} & {annotation, *get_args(annotation)} or get_origin(annotation) is tuple
        values = value if isinstance(value, list | tuple) else [value]
        if numbers and any(isinstance(item, bool) for item in values):
            raise PydanticCustomError("bool_for_number", "true and false are no numbers")
        return value


class RunConfig(Section):
    """Name, place and reproducibility of the run."""

    name: str = Field(default="default", min_length=1, description="name of the run; its folder is output_dir/name")
    output_dir: str = Field(default="runs", min_length=1, description="folder that holds the runs")
    seed: int = Field(
        default=42, ge=0, lt=2**63, description="seed of initialisation, dropout and the order of the data"
    )
    deterministic: bool = Field(default=False, description="deterministic kernels: two runs are equal bit for bit")
    device: Literal["auto", "cpu", "cuda", "npu"] = Field(
        default="auto", description="device type; auto takes an accelerator if any"
    )
    callbacks: list[str] = Field(
        default=["progress"], description="names of callbacks that plugins offer, in order; progress is the live table"
    )

    @field_validator("name")
    @classmethod
    def _one_component(cls, name: str) -> str:
        if name in (".", "..") or "/" in name or not name.isprintable():
            raise ValueError(f"run.name: {name!r} is not one component of a path, such as my-run")
        return name


class ModelConfig(Section):
    """The model: a known name, a local folder, or a configuration that is initialised at random."""

    name: str = Field(
        default="smollm2-135m", min_length=1, description="smollm2-135m, or a local Hugging Face folder with weights"
    )
    config: dict[str, Any] | None = Field(
        default=None,
        description="Hugging Face config of a random model, for example {model_type: llama, hidden_size: 64}",
    )
    tokenizer: str | None = Field(
        default=None,
        description="folder of the tokenizer, or 'bytes'; default: the model's own, bytes with model.config",
    )

    @field_validator("config")
    @classmethod
    def _plain(cls, config: dict[str, Any] | None) -> dict[str, Any] | None:
        if config is not None and (odd := find_odd_value(config)):
            raise ValueError(f"model.config{odd}")
        return config

    @model_validator(mode="after")
    def _one_source(self) -> ModelConfig:
        if self.config is not None and "model_type" not in self.config:
            raise ValueError("model.config: needs the key 'model_type', for example llama")
        return self


class DataConfig(Section):
    """The text and how it is cut into samples."""

    path: str | None = Field(
        default=None,
        min_length=1,
        description="folder or glob of text files; default: the running Python's standard library",
    )
    pattern: str = Field(default="**/*", min_length=1, description="which files of a folder, as a glob below it")
    max_bytes: int | None = Field(
        default=4_000_000, ge=1, description="stop taking files at this many bytes; null for all of them"
    )
    seq_len: int = Field(default=256, ge=2, lt=2**31, description="tokens a sample")
    heldout: float = Field(default=0.05, gt=0, lt=1, description="fraction of the files kept for evaluation")
    cache_dir: str | None = Field(
        default=None,
        description="where tokenised text and converted models are kept; default: $HP_CACHE or ~/.cache/hyper_parallel",
    )


class OptimisationConfig(Section):
    """The optimisation."""

    steps: int = Field(default=24, ge=1, lt=2**31, description="optimizer steps")
    micro_batch_size: int = Field(default=1, ge=1, lt=2**31, description="samples a rank takes per forward")
    accumulation: int = Field(default=1, ge=1, lt=2**31, description="micro-batches a rank joins into one step")
    lr: float = Field(default=1e-4, gt=0, description="peak learning rate")
    min_lr: float = Field(default=1e-5, ge=0, description="learning rate at the last step")
    warmup_steps: int = Field(default=3, ge=0, lt=2**31, description="steps of linear warm-up")
    weight_decay: float = Field(default=0.01, ge=0, description="AdamW's weight decay; not on norms and biases")
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = Field(
        default=(0.9, 0.95), description="AdamW's betas"
    )
    eps: float = Field(default=1e-8, gt=0, description="AdamW's epsilon")
    clip_norm: float | None = Field(default=1.0, gt=0, description="largest global gradient norm; null for no clipping")
    nonfinite: Literal["raise", "skip"] = Field(default="raise", description="what to do when a gradient is inf or NaN")
    precision: Literal["fp32", "bf16"] = Field(
        default="fp32", description="compute type; bf16 is autocast over fp32 weights"
    )


class EvalConfig(Section):
    """Evaluation on the held-out files, before and after the training."""

    batches: int = Field(
        default=16,
        ge=0,
        lt=2**31,
        description="held-out batches of micro_batch_size over all ranks; 0 for no evaluation",
    )
    every: int = Field(
        default=0, ge=0, lt=2**31, description="evaluate every so many steps too; 0 for only before and after"
    )


class ParallelConfig(Section):
    """How the model is parallelised. The data-parallel degree is all ranks; sharding arrives with its packages."""

    bucket_bytes: int = Field(
        default=25 * 2**20, ge=1, description="small gradients are joined into messages of about this many bytes"
    )


class LaunchConfig(Section):
    """The ranks that `hp train` starts itself when no launcher did."""

    ranks: int = Field(default=1, ge=1, description="ranks on this host (also -n); ignored under hp run or torchrun")
    timeout_s: float = Field(
        default=600.0, gt=0, le=1e8, description="seconds a collective, or a wait for another rank's files, may take"
    )
    threads: int | None = Field(default=None, ge=1, description="CPU threads a rank; default: cores / ranks")


class TrainConfig(Section):
    """A whole training run. Each section is one class of this file."""

    run: RunConfig = RunConfig()
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    train: OptimisationConfig = OptimisationConfig()
    eval: EvalConfig = EvalConfig()
    parallel: ParallelConfig = ParallelConfig()
    launch: LaunchConfig = LaunchConfig()

    @model_validator(mode="after")
    def _consistent(self) -> TrainConfig:
        if self.train.min_lr > self.train.lr:
            raise ValueError(f"train.min_lr ({self.train.min_lr:g}) is larger than train.lr ({self.train.lr:g})")
        return self
