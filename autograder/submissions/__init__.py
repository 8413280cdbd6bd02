"""From a learner's notebooks to components, and from these to an engine and to points."""
