"""Whether a class keeps the backend contract: every problem at once, each with the signature that is expected.

A backend is verified when it is registered, so its author reads what is wrong before anything has run. Signatures are
compared by name and by position, since the runtime and other people's code may call either way.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from difflib import SequenceMatcher
from inspect import Parameter, Signature
from typing import Any

from torchport.backend.capabilities import Capabilities
from torchport.backend.interface import BackendImplInterface
from torchport.errors import BackendRegistrationError

_SURE = 0.84
"""From this likeness on, an unknown method is taken for a misspelling of one that has a default."""
_GUESS = 0.6
"""From this likeness on, an unknown method is offered as the misspelling of one that is missing anyway."""
_NAMED = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def interface_methods() -> dict[str, Signature]:
    """The methods of the contract, by name."""
    return {
        name: inspect.signature(method)
        for name, method in vars(BackendImplInterface).items()
        if inspect.isfunction(method) and not name.startswith("_")
    }


def describe(target: object) -> str:
    """Names a class, an instance or a factory by module and qualified name, as people look for it."""
    if isinstance(target, type):
        return f"{target.__module__}.{target.__qualname__}"
    name = getattr(target, "__qualname__", None)
    if name is None or not hasattr(target, "__module__"):
        return f"an instance of {describe(type(target))}"
    return f"{target.__module__}.{name}"


def verify_target(name: str, target: object) -> type[BackendImplInterface] | None:
    """Checks what is to be registered: a backend, its class, or a factory.

    Returns:
        The backend's class; ``None`` for a factory that does not say what it returns. Such a factory's backend is
        verified when it is made.

    Raises:
        BackendRegistrationError: it is none of these, or its class does not keep the contract.
    """
    if isinstance(target, BackendImplInterface):
        verify_class(name, type(target))
        return type(target)
    if isinstance(target, type):
        verify_class(name, target, constructed=True)
        return target
    if callable(target):
        returned = _returned_class(target)
        if returned is not None:
            verify_class(name, returned)
        return returned
    verify_class(name, type(target))
    raise AssertionError("an object that is no BackendImplInterface has passed as one")


def verify_class(name: str, cls: type, constructed: bool = False) -> None:
    """Checks that instances of a class keep the contract.

    Args:
        name: the name that it is registered by, for the message.
        cls: the class.
        constructed: whether the registry is to make the instance, by calling the class without arguments.

    Raises:
        BackendRegistrationError: with every problem of the class.
    """
    problems = problems_of(cls)
    if constructed and not problems:
        problems = _constructor_problems(cls)
    if not problems:
        return
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    lines = "".join(f"\n  {problem}" for problem in problems)
    raise BackendRegistrationError(
        f"backend {name!r}: {describe(cls)} does not keep the contract of torchport.BackendImplInterface, "
        f"{count}:{lines}\nCorrect the class and register it again."
    )


def problems_of(cls: type) -> list[str]:
    """Everything in which a class departs from the contract, one line each; empty when it keeps it."""
    derived = issubclass(cls, BackendImplInterface)
    expected = interface_methods()
    own = _own_attributes(cls)
    abstract: frozenset[str] = getattr(cls, "__abstractmethods__", frozenset())
    if not derived:
        abstract = BackendImplInterface.__abstractmethods__ - own.keys()
    spelling = _probable_misspellings(cls, abstract)

    problems: list[str] = []
    if not derived:
        has = [f"{name}()" for name in expected if name in own]
        problems.append(
            "base class: it does not derive from torchport.BackendImplInterface"
            + (f", although it has {', '.join(has)}" if has else "")
            + "; derive from it, defaults and checks come from there"
        )
    for name in sorted(abstract, key=lambda n: (list(expected).index(n) if n in expected else len(expected), n)):
        signature = expected[name] if name in expected else inspect.signature(getattr(cls, name))
        hint = f" (it has {spelling[name]}(): is that a misspelling?)" if name in spelling else ""
        problems.append(f"missing: {_text(name, signature)}{hint}")
    for name, signature in expected.items():
        if name in own and name not in abstract:
            why = _departure(own[name], signature)
            if why:
                problems.append(f"signature: {name}: {why}; expected {_text(name, signature)}")
        if name in spelling and name not in abstract:
            problems.append(
                f"misspelling: {spelling[name]}() is probably meant to be {_text(name, signature)}; "
                "a method of your own may have this name with an underscore in front"
            )
    return problems + _attribute_problems(own)


def _own_attributes(cls: type) -> dict[str, Any]:
    """Public attributes as the class has them, from all its bases but the interface and ``object``."""
    own: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base not in BackendImplInterface.__mro__:
            own.update((name, value) for name, value in vars(base).items() if not name.startswith("_"))
    return own


def _probable_misspellings(cls: type, abstract: frozenset[str]) -> dict[str, str]:
    """Method of the contract → the class's unknown method that was probably meant to be it.

    A method is not taken for a misspelling of one that its class, or a class derived from that, has as well.
    """
    known = interface_methods().keys()
    free = set(known)
    found: dict[str, tuple[float, str]] = {}
    for base in cls.__mro__:
        if base in BackendImplInterface.__mro__:
            continue
        free -= vars(base).keys() - abstract
        for name, value in vars(base).items():
            is_method = isinstance(value, staticmethod | classmethod) or inspect.isfunction(value)
            if not is_method or name in known or name.startswith("_"):
                continue
            ratio, meant = max(((_likeness(name, other), other) for other in sorted(free)), default=(0.0, ""))
            if ratio >= (_GUESS if meant in abstract else _SURE) and ratio > found.get(meant, (0.0, ""))[0]:
                found[meant] = (ratio, name)
    return {meant: name for meant, (_, name) in found.items()}


def _likeness(a: str, b: str) -> float:
    # Underscores and case do not count, so that the C++ spelling of a method is recognised.
    return SequenceMatcher(None, a.replace("_", "").lower(), b.replace("_", "").lower(), autojunk=False).ratio()


def _departure(attribute: Any, expected: Signature) -> str | None:
    """Why a call of the contract's signature does not fit an attribute of the class; ``None`` when it fits."""
    bound = not isinstance(attribute, staticmethod)
    function = attribute.__func__ if isinstance(attribute, staticmethod | classmethod) else attribute
    if not callable(function) and not hasattr(function, "__get__"):
        return f"it is {attribute!r}, which cannot be called"
    if isinstance(function, property):
        return "it is a property, which is read and not called"
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # written in C, or a descriptor of somebody's own: nothing to compare
        return None
    if bound and not (parameters and parameters[0].kind is Parameter.VAR_POSITIONAL):
        if not parameters or parameters[0].kind not in _NAMED:
            return "it has no parameter `self`"
        parameters = parameters[1:]
    reasons = list(_differences(parameters, list(expected.parameters.values())[1:]))
    return ", ".join(reasons) or None


def _differences(actual: list[Parameter], expected: list[Parameter]) -> typing.Iterator[str]:
    kinds = {p.kind for p in actual}
    takes_any = {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD} <= kinds
    positional = [p for p in actual if p.kind in _NAMED]
    for i, want in enumerate(expected):
        if i >= len(positional):
            if not takes_any:
                yield f"it lacks the parameter `{want.name}`"
            continue
        have = positional[i]
        if have.name != want.name:
            yield f"parameter {i + 1} is `{have.name}`, not `{want.name}`"
        elif have.kind is Parameter.POSITIONAL_ONLY:
            yield f"`{have.name}` cannot be given by name"
        if want.default is not Parameter.empty and have.default is Parameter.empty:
            yield f"`{have.name}` has no default"
    extra = positional[len(expected) :] + [p for p in actual if p.kind is Parameter.KEYWORD_ONLY]
    for parameter in extra:
        if parameter.default is Parameter.empty:
            yield f"it requires `{parameter.name}`, which the contract does not pass"


def _attribute_problems(own: dict[str, Any]) -> list[str]:
    problems: list[str] = []
    capabilities = own.get("capabilities", Capabilities())
    if not isinstance(capabilities, Capabilities) and not hasattr(capabilities, "__get__"):
        problems.append(f"attribute: capabilities is {capabilities!r}; expected a torchport.backend.Capabilities")
    availability = own.get("availability")
    if availability is not None and not isinstance(availability, classmethod | staticmethod):
        problems.append("attribute: availability must be a classmethod; it is asked before there is an instance")
    return problems


def _constructor_problems(cls: type) -> list[str]:
    try:
        parameters = inspect.signature(cls).parameters.values()
    except (TypeError, ValueError):
        return []
    needed = [
        p.name
        for p in parameters
        if p.default is Parameter.empty and p.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    ]
    if not needed:
        return []
    return [
        f"constructor: it needs {', '.join(f'`{n}`' for n in needed)}; register an instance, or a factory such as "
        f"`lambda: {cls.__name__}(…)`"
    ]


def _returned_class(factory: Callable[..., object]) -> type[BackendImplInterface] | None:
    """The concrete backend class that a factory's annotation promises."""
    try:
        returned = typing.get_type_hints(factory).get("return")
    except (NameError, TypeError, AttributeError, SyntaxError):  # an annotation that only a type checker can read
        return None
    if isinstance(returned, type) and issubclass(returned, BackendImplInterface) and not inspect.isabstract(returned):
        return returned
    return None


def _text(name: str, signature: Signature) -> str:
    # Annotations are strings under `from __future__ import annotations`; their quotes say nothing.
    return f"{name}{signature}".replace("'", "")
