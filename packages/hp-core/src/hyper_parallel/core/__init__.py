# SPDX-License-Identifier: Apache-2.0
"""The import paths of the features; each is another path to a package of its own."""
