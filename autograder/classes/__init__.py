"""What an instructor's nbgrader needs: the course's folder, its preprocessors, its export."""
