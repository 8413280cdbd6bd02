"""Families that a Llama-like decoder does not describe: their weights and their forward."""
