# SPDX-License-Identifier: Apache-2.0
"""``LLMTrainer``: one training run, put together in one visible order."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hp_core.comm as comm
from hp_core.mesh import init_device_mesh
from hp_core.plugins import hooks
from hp_trainer.callbacks import CallbackList, make_callbacks, tell_plugins
from hp_trainer.config import TrainConfig, to_config
from hp_trainer.run import Run, disk_full_error, run_folder

if TYPE_CHECKING:
    import torch

    from hp_core.mesh import DeviceMesh
    from hp_trainer.data import Samples, TokenData
    from hp_trainer.models import ModelParts
    from hp_trainer.step import TrainStep


class LLMTrainer:
    """Fine-tunes or trains a causal language model, on all the ranks of the job.

    Every rank of the job makes one with the same arguments and calls `train`. Without a launcher it is a job of one.

    Args:
        args: A `TrainConfig`, a mapping of sections, or the path of a YAML file.
        callbacks: Objects with one or more of the methods of `hp_trainer.callbacks.Callback`, called after the metrics
            files and the callbacks that ``run.callbacks`` names.

    Raises:
        ConfigError: A key is unknown or a value wrong.
        PluginError: A callback that ``run.callbacks`` names is not there.
    """

    def __init__(
        self,
        args: TrainConfig | Mapping[str, Any] | str | Path | None = None,
        callbacks: Iterable[object] | None = None,
    ) -> None:
        self.config = to_config({} if args is None else args)
        self.run = Run(self.config, run_folder(self.config))
        self.module: torch.nn.Module | None = None
        self._callbacks = [*make_callbacks(self.config), *(callbacks or ())]

    def train(self) -> dict[str, Any]:
        """Do the run and return what `run.json` holds.

        Writes the run folder (rank 0): configuration, `run.json`, metrics, TensorBoard files, the model as a Hugging
        Face folder, and `report.html`. A failure or Ctrl-C is told to the callbacks and noted in `run.json`, the report
        is written as far as the data goes, and the exception is raised again.

        Raises:
            HPError: The configuration, model, data, devices, disk or network are not as they must be.
            KeyboardInterrupt: The run was interrupted.
        """
        callbacks = CallbackList(self._callbacks)
        try:
            self._train(callbacks)
        except BaseException as exc:
            failure = disk_full_error(exc, self.run.dir) or exc
            self._fail(failure, callbacks)
            if failure is exc:
                raise
            raise failure from exc
        finally:
            self.run.close()
        return self.run.info

    def _train(self, callbacks: CallbackList) -> None:
        from hp_trainer.data import Samples
        from hp_trainer.data_parallel import DataParallel
        from hp_trainer.export import check_space, export_bytes, export_model
        from hp_trainer.models import build_model, load_tokenizer
        from hp_trainer.optimizer import build_optimizer
        from hp_trainer.prepare import prepare
        from hp_trainer.setup import (
            build_step,
            check_same_text,
            count_parameters,
            pick_device,
            seed_noise,
            seed_run,
            set_threads,
        )

        config, run = self.config, self.run
        start = time.perf_counter()

        # 1. seed, device, ranks
        seed_run(config)
        set_threads(config)
        device = pick_device(config)
        started_comm = not comm.is_initialized()
        comm.init_backend(device.type, timeout_s=config.launch.timeout_s)
        run.rank, run.world_size = comm.rank(), comm.world_size()
        run.start()

        # 2. mesh
        mesh: DeviceMesh = init_device_mesh(device.type, (comm.world_size(),), mesh_dim_names=("dp",))
        group = mesh.get_group("dp")

        # 3. model
        prepared = prepare(config)
        tokenizer = load_tokenizer(config, prepared.model_folder)
        parts = build_model(config, prepared.model_folder, len(tokenizer))
        self.module = parts.module.to(device)
        if run.is_main:
            check_space(run.dir, export_bytes(self.module))

        # 4. parallelize
        parallel = DataParallel(self.module, group, op="sum", bucket_bytes=config.parallel.bucket_bytes)
        hooks().hp_module_transformed(module=self.module, transform="data_parallel", mesh=mesh)
        seed_noise(config, run.rank)

        # 5. optimizer
        optimizer = build_optimizer(self.module, config.train)

        # 6. data
        check_same_text(prepared.tokens)
        train, heldout = (
            Samples(tokens, config.data.seq_len) for tokens in (prepared.tokens.train, prepared.tokens.heldout)
        )

        # 7. loop
        step = build_step(config, parallel, optimizer, train, device)
        self._describe(parts, prepared.tokens, train, heldout, device, count_parameters(self.module))
        run.info["setup_s"] = time.perf_counter() - start
        callbacks.tell("on_train_begin", run)
        self._loop(step, heldout, callbacks)

        # 8. what is kept
        if run.is_main:
            export_model(self.module, tokenizer, run.dir / "model")
        run.finish("done")
        callbacks.tell("on_train_end", run)
        self._report()
        comm.barrier()
        if started_comm:
            comm.shutdown()

    def _loop(self, step: TrainStep, heldout: Samples, callbacks: CallbackList) -> None:
        config, run = self.config, self.run
        self._evaluate(step, heldout, callbacks, "before")
        start = time.perf_counter()
        try:
            for number in range(1, config.train.steps + 1):
                metrics = step.run(number)
                run.step = number
                callbacks.tell("on_step_end", run, metrics)
                every = config.eval.every
                if every and number % every == 0 and number < config.train.steps:
                    self._evaluate(step, heldout, callbacks, None)
        finally:
            run.info["train_s"] = time.perf_counter() - start
        self._evaluate(step, heldout, callbacks, "after")

    def _evaluate(self, step: TrainStep, heldout: Samples, callbacks: CallbackList, name: str | None) -> None:
        from hp_trainer.evaluation import evaluate

        if self.config.eval.batches == 0:
            return
        result = evaluate(step.parallel.module, heldout, self.config, step.parallel.group, step.device)
        if name is not None:
            self.run.info.setdefault("evaluation", {})[name] = result
            if self.run.is_main:
                self.run.save()
        callbacks.tell("on_evaluation", self.run, {"step": self.run.step, **result})

    def _describe(
        self,
        parts: ModelParts,
        tokens: TokenData,
        train: Samples,
        heldout: Samples,
        device: torch.device,
        num_parameters: int,
    ) -> None:
        from hp_trainer.environment import describe_environment

        self.run.info.update(
            device=device.type,
            **describe_environment(),
            model={
                "name": parts.name,
                "architecture": parts.architecture,
                "num_parameters": num_parameters,
                "dtype": "bfloat16 autocast" if self.config.train.precision == "bf16" else "float32",
            },
            data={
                "source": tokens.source,
                "num_files": tokens.num_files,
                "num_bytes": tokens.num_bytes,
                "num_skipped": tokens.num_skipped,
                "num_tokens_train": train.num_targets,
                "num_tokens_heldout": heldout.num_targets,
            },
        )
        if self.run.is_main:
            self.run.save()
            if tokens.num_skipped:
                print(
                    f"warning: {tokens.num_skipped} files are not readable as UTF-8 and were left out, "
                    f"first {tokens.first_skipped}",
                    file=sys.stderr,
                    flush=True,
                )

    def _report(self) -> None:
        if self.run.is_main:
            from hp_trainer.environment import plugin_lines
            from hp_trainer.report import write_report

            self.run.info["environment"] = plugin_lines()
            self.run.save()
            write_report(self.run.dir)

    def _fail(self, exc: BaseException, callbacks: CallbackList) -> None:
        """Leave the run folder telling what happened. Nothing here may hide ``exc`` or call a collective."""
        if not isinstance(exc, KeyboardInterrupt):
            tell_plugins(exc, self.run)
        callbacks.tell_failure(self.run, exc)
        if not self.run.has_folder:
            return
        try:
            if self.run.give_back():
                return
            self.run.finish("failed", exc)
            self._report()
        except Exception as error:
            # On a full disk, for one. The first failure is what matters; Python shows this one as a note to it.
            if hasattr(exc, "add_note"):
                exc.add_note(f"the run folder {self.run.dir} could not be completed: {error!r}")
