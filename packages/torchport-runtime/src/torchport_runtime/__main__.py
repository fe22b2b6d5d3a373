"""``python -m torchport_runtime``."""

import sys

from torchport_runtime.command.app import main

sys.exit(main())
