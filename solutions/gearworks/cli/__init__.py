"""The command `gearworks`, and how commands meet a terminal."""
