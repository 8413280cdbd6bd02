"""A load generator for servers with OpenAI's API: what is sent and when, what it measures."""
