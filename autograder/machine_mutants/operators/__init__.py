"""The published list of operators: the kinds of change that are made of what learners write."""

from autograder.machine_mutants.operators.arguments import ARGUMENTS
from autograder.machine_mutants.operators.arrays import ARRAYS
from autograder.machine_mutants.operators.conditions import CONDITIONS
from autograder.machine_mutants.operators.inference import INFERENCE
from autograder.machine_mutants.operators.numbers import NUMBERS
from autograder.machine_mutants.operators.operator import Operator
from autograder.machine_mutants.operators.statements import STATEMENTS
from autograder.machine_mutants.operators.text import TEXT

GENERAL: tuple[Operator, ...] = (*CONDITIONS, *NUMBERS, *STATEMENTS, *ARGUMENTS, *TEXT, *ARRAYS)
DOMAIN: tuple[Operator, ...] = INFERENCE
OPERATORS: tuple[Operator, ...] = GENERAL + DOMAIN
