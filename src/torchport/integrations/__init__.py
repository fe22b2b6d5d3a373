"""What a trainer of another package cannot find out by itself: one module per package, which imports it.

========================= ==========================================================================================
`integrations.lightning`    the device as an accelerator and a strategy of Lightning's ``Trainer`` and ``Fabric``
`integrations.transformers` random numbers that go on where they were when Hugging Face's ``Trainer`` resumes
`integrations.random_state` the same for every checkpoint that takes objects with a ``state_dict``
========================= ==========================================================================================

docs/trainers.md says how each is used. Nothing of ours imports them.
"""
