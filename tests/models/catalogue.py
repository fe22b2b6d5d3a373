"""All models under test, in the order of the table."""

from __future__ import annotations

from models import decoders, diffusion, encoders, own, pictures, sequence_to_sequence
from models.subjects import Subject

SUBJECTS: tuple[Subject, ...] = (
    *encoders.SUBJECTS,
    *decoders.SUBJECTS,
    *sequence_to_sequence.SUBJECTS,
    *pictures.SUBJECTS,
    *own.SUBJECTS,
    *diffusion.SUBJECTS,
)
