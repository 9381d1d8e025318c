# SPDX-License-Identifier: Apache-2.0
"""`python -m hp_trainer`: what `hp train` does, and what each rank runs when `hp train` starts them."""

from __future__ import annotations

import sys

from hp_trainer.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
