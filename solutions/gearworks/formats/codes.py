"""A matrix in small integers: `formats.codes`, under the name that the methods know it by."""

from gearworks.formats.codes import Codes

__all__ = ["Codes"]
