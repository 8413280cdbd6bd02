"""The reference as the course sees it: the names of its parts, and their text."""
