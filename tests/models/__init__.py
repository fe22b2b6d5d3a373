"""Models from libraries, and some of our own, on the device and on the CPU. Nothing is downloaded."""

import os

# Before a library of Hugging Face is imported: they read it once.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
