"""``python -m harness.cli`` is the command ``crashconform``."""

import sys

from harness.cli import main

sys.exit(main())
