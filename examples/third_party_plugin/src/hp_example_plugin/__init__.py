# SPDX-License-Identifier: Apache-2.0
"""An example of a third-party plugin for HyperParallel."""

__version__ = "1.0.0"
