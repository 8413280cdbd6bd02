"""From a chapter's source to its editions."""
