"""What a learner shows at the end: an engine of their own gears, and what it went through."""
