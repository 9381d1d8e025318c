# SPDX-License-Identifier: Apache-2.0
"""The core of HyperParallel; every feature package imports it, and it imports none of them."""

__version__ = "0.1.0"
