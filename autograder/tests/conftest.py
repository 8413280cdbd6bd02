"""Options of the autograder's tests."""


def pytest_addoption(parser):
    parser.addoption("--seeds", type=int, default=1, help="how many seeds the kill matrix is tried with")
