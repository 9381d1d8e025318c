# SPDX-License-Identifier: Apache-2.0
"""Training runs: configuration, models, data, the training loop, metrics and the report page."""

__version__ = "0.1.0"
