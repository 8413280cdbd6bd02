"""Every example in a docstring is true."""

import doctest
import importlib
import pkgutil

import pytest

import gearworks

MODULES = [module.name for module in pkgutil.walk_packages(gearworks.__path__, "gearworks.")
           if module.name != "gearworks.__main__"]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    module = importlib.import_module(name)
    finder = doctest.DocTestFinder(exclude_empty=True)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE
                                   | doctest.IGNORE_EXCEPTION_DETAIL)
    for test in finder.find(module, name,
                            globs=vars(module) | {"np": importlib.import_module("numpy")}):
        assert runner.run(test).failed == 0, test.name
