"""What a backend can do beyond the minimum. Each field is off by default."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The abilities of a backend.

    Attributes:
        dynamic_outputs: it runs operators whose output sizes depend on values (``nonzero``, ``unique``, a mask as
            index); such an operator is then a graph of its own, and its sizes are read from the result's shape.
            Without it they run eagerly.
        input_output_aliasing: it honours ``LoweringContext.set_up_alias`` and may write a result into a parameter's
            buffer.
        random: it draws random numbers on the device; ``set_rng_seed`` reaches its generator. Without it random
            operators run eagerly.
        eager_random_stream: for one seed its random numbers equal those of eager PyTorch on the CPU.
        random_state: the state of its generator can be read and set (``get_rng_state``, ``set_rng_state``).
        concurrent_execution: ``execute_computation`` spends its time in few long calls that release Python's lock, so
            that the next step is traced meanwhile. Without it, computations of short operations run at the barrier.
        error_recovery: an error at run time leaves the arguments intact, and spoils only the results that depend on
            it: they have it as their ``error``. Arguments that have one, from an earlier computation, reach it.
            Without it such arguments are cut out by the runtime, and an error spoils all results of its computation.
        serialization: it turns a compiled computation into bytes and back (``serialize_computation``,
            ``deserialize_computation``), so that a second process compiles nothing.
        symbolic_sizes: it compiles graphs whose shapes have symbols (``Shape.symbolic``). Integers that follow from
            them are number inputs of the graph, and the sizes of a result are those that come out. Without it each new
            size is a graph of its own.
        training: it runs backward and optimizer graphs.
    """

    dynamic_outputs: bool = False
    input_output_aliasing: bool = False
    random: bool = False
    eager_random_stream: bool = False
    random_state: bool = False
    concurrent_execution: bool = False
    error_recovery: bool = False
    serialization: bool = False
    symbolic_sizes: bool = False
    training: bool = False


@dataclass(frozen=True, slots=True)
class Support:
    """Whether a backend can run a node, and why not."""

    ok: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.ok
