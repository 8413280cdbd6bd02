"""One pass, with the shape built from the back and the errors in one place."""

from gearworks.errors import FormatError
from gearworks.formats.gguf import (BLOCK_FORMATS, MAX_TENSOR_DIMS, TensorRow, TensorType,
                                    ValueType, read_value)

U32, U64 = ValueType.UINT32, ValueType.UINT64


def read_tensor_table(data, offset, count):
    if count > len(data):
        raise FormatError("the tensor table is too long",
                          f"{count} rows cannot be in {len(data)} bytes", "fetch it")
    table = {}
    while len(table) < count:
        name, offset = read_value(data, offset, ValueType.STRING)
        try:
            if name in table:
                raise ValueError("the name occurs twice")
            dims, offset = read_value(data, offset, U32)
            if dims == 0 or dims > MAX_TENSOR_DIMS:
                raise ValueError(f"{dims} dimensions")
            shape, total = (), 1
            for _ in range(dims):
                size, offset = read_value(data, offset, U64)
                shape, total = (size, *shape), total * size
            kind, offset = read_value(data, offset, U32)
            place, offset = read_value(data, offset, U64)
            block = BLOCK_FORMATS[kind]
            if not 1 <= total < 2**63 or shape[-1] % block.size != 0:
                raise ValueError(f"the shape {shape}")
        except KeyError:
            raise FormatError(f"tensor {name}", "its type is unknown",
                              "use another copy") from None
        except ValueError as error:
            raise FormatError(f"tensor {name}", str(error), "convert it again") from error
        table[name] = TensorRow(name, shape, TensorType(kind), place,
                                total // block.size * block.nbytes)
    return table, offset
