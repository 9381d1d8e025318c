# SPDX-License-Identifier: Apache-2.0
"""The import path of the collectives."""
