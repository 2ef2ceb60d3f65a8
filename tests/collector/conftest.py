"""Makes the collector importable: it is an example and no installed package."""

import sys
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "examples" / "quickstart" / "collector" / "src"
sys.path.insert(0, str(SOURCE))
