"""The compiled step with another product in it: a learner's.

A compiled function holds those that it calls. So another one in the place of `int4_matvec`
takes a step that is compiled anew, here and now, and kept nowhere.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from gearworks.kernels.cpu import family_step, mixtures, model, products, step
from gearworks.kernels.cpu.compiling import compiled, part_of_another


@contextmanager
def with_product(int4_matvec: Callable) -> Iterator[None]:
    """While this holds, compiled models take this function for one row times a matrix of four
    bits. It is theirs in mode `exact`; all other products stay as they are.

    int4_matvec: as `int4.int4_matvec`, compiled or not. The first step takes some ten seconds.
    """
    own = int4_matvec if hasattr(int4_matvec, "py_func") else compiled(int4_matvec)
    with ExitStack() as anew:
        anew.enter_context(patch.object(products, "int4_matvec", own))
        # who calls it, and who calls these, up to the step
        for module, name, callers in ((products, "int4_blocks", (products,)),
                                      (products, "product", (mixtures, step)),
                                      (mixtures, "multiply_experts", (family_step,)),
                                      (family_step, "perform", (step,)),
                                      (step, "run", (model,))):
            function = part_of_another(getattr(module, name).py_func)
            for caller in callers:
                anew.enter_context(patch.object(caller, name, function))
        yield
