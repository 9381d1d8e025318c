# SPDX-License-Identifier: Apache-2.0
"""The configuration of a run: schema, loading from YAML and options, and the list of keys for `--help`."""

from hp_trainer.config.load import dump_yaml, load_config, to_config
from hp_trainer.config.schema import TrainConfig

__all__ = ["TrainConfig", "dump_yaml", "load_config", "to_config"]
