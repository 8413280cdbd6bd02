"""Sixteen numbers at a time: a vector type for Numba.

A processor's registers hold several numbers, and one instruction multiplies all of them. A
compiler finds such instructions for simple loops. Where it matters that sums stay in registers,
and that four products of bytes are one instruction, the kernels say so with these functions:
each works on all lanes at once, `total = dot4(total, codes, x)` for sixteen outputs.

How many registers sixteen numbers take is the machine's affair: one of AVX-512, two of AVX2,
four of NEON. Only `dot4` asks what the machine has; all else is LLVM's language, which it
translates for any processor.

Left out on purpose: checks of any kind. Arrays are one-dimensional and contiguous, and an index
is not negative.
"""

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, models, register_model

from gearworks.kernels.cpu.layout import LANES

_INT, _FLOAT = ir.IntType(32), ir.FloatType()
_INTS, _FLOATS = ir.VectorType(_INT, LANES), ir.VectorType(_FLOAT, LANES)


class Lanes(types.Type):
    """Numba's type of such a vector."""

    def __init__(self, element: types.Type):
        super().__init__(name=f"Lanes({element})")
        self.element = element


@register_model(Lanes)
class LanesModel(models.PrimitiveModel):
    """How LLVM keeps it: in registers."""

    def __init__(self, manager, lanes: Lanes):
        super().__init__(manager, lanes,
                         _INTS if lanes.element is types.uint32 else _FLOATS)


WORDS, FLOATS = Lanes(types.uint32), Lanes(types.float32)


def _splat(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """The same number in every lane."""
    vector = ir.VectorType(value.type, LANES)
    empty = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(empty, value, ir.Constant(_INT, 0))
    return builder.shuffle_vector(first, empty, ir.Constant(_INTS, [0] * LANES))


def _constant(number: int) -> ir.Constant:
    return ir.Constant(_INTS, [number] * LANES)


def _place(context, builder, array_type, array, index, vector=None):
    """The address of an element, as that of a vector if one is meant."""
    data = context.make_array(array_type)(context, builder, array).data
    pointer = builder.gep(data, [index])
    return pointer if vector is None else builder.bitcast(pointer, vector.as_pointer())


@intrinsic
def load(typing, array, index):
    """The sixteen elements of an array of uint32 or float32 from `index` on."""
    lanes = WORDS if array.dtype == types.uint32 else FLOATS
    vector = _INTS if lanes is WORDS else _FLOATS

    def generate(context, builder, signature, arguments):
        pointer = _place(context, builder, signature.args[0], *arguments, vector)
        return builder.load(pointer, align=4)
    return lanes(array, types.intp), generate


@intrinsic
def store(typing, array, index, lanes):
    """Write sixteen elements of an array from `index` on."""
    vector = _INTS if lanes == WORDS else _FLOATS

    def generate(context, builder, signature, arguments):
        array, index, value = arguments
        pointer = _place(context, builder, signature.args[0], array, index, vector)
        builder.store(value, pointer, align=4)
        return context.get_dummy_value()
    return types.void(array, types.intp, lanes), generate


@intrinsic
def fetch(typing, array, index):
    """Let the cache line with one element of an array come nearer, and do not wait for it. The
    index may be beyond the array's end."""
    def generate(context, builder, signature, arguments):
        pointer = _place(context, builder, signature.args[0], *arguments)
        pointer = builder.bitcast(pointer, ir.IntType(8).as_pointer())
        numbers = [ir.Constant(_INT, number) for number in (0, 3, 1)]    # read, near, data
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, _INT, _INT, _INT])
        builder.call(builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind),
                     [pointer, *numbers])
        return context.get_dummy_value()
    return types.void(array, types.intp), generate


@intrinsic
def everywhere(typing, array, index):
    """One element of an array, in every lane."""
    lanes = WORDS if array.dtype == types.uint32 else FLOATS

    def generate(context, builder, signature, arguments):
        pointer = _place(context, builder, signature.args[0], *arguments)
        return _splat(builder, builder.load(pointer, align=4))
    return lanes(array, types.intp), generate


@intrinsic
def splat(typing, number):
    """A float32, in every lane."""
    def generate(context, builder, signature, arguments):
        return _splat(builder, arguments[0])
    return FLOATS(types.float32), generate


@intrinsic
def no_words(typing):
    """Sixteen integers 0."""
    def generate(context, builder, signature, arguments):
        return _constant(0)
    return WORDS(), generate


@intrinsic
def nibbles(typing, words, high):
    """Of every byte the low four bits, or the high ones. high: 0 or 1, a constant."""
    if not isinstance(high, types.IntegerLiteral):
        return None
    shift = 4 * high.literal_value

    def generate(context, builder, signature, arguments):
        moved = builder.lshr(arguments[0], _constant(shift)) if shift else arguments[0]
        return builder.and_(moved, _constant(0x0F0F0F0F))
    return WORDS(words, high), generate


@intrinsic
def flip_signs(typing, words):
    """Bytes from -128 to 127 as bytes from 0 to 255: 128 is added to each."""
    def generate(context, builder, signature, arguments):
        return builder.xor(arguments[0], _constant(0x80808080))
    return WORDS(words), generate


@intrinsic
def bits(typing, words, first, count):
    """`count` bits of every word from bit `first` on, as float32. count: a constant."""
    if not isinstance(count, types.IntegerLiteral):
        return None
    mask = (1 << count.literal_value) - 1

    def generate(context, builder, signature, arguments):
        shift = _splat(builder, builder.trunc(arguments[1], _INT))
        number = builder.and_(builder.lshr(arguments[0], shift), _constant(mask))
        return builder.sitofp(number, _FLOATS)
    return FLOATS(words, types.intp, count), generate


@intrinsic
def signed_byte(typing, words, first):
    """The signed byte of every word that begins at bit `first`, as float32."""
    def generate(context, builder, signature, arguments):
        above = builder.sub(ir.Constant(_INT, 24), builder.trunc(arguments[1], _INT))
        number = builder.ashr(builder.shl(arguments[0], _splat(builder, above)), _constant(24))
        return builder.sitofp(number, _FLOATS)
    return FLOATS(words, types.intp), generate


@intrinsic
def to_floats(typing, words):
    """Signed integers as float32."""
    def generate(context, builder, signature, arguments):
        return builder.sitofp(arguments[0], _FLOATS)
    return FLOATS(words), generate


@intrinsic
def rounded(typing, lanes):
    """The nearest integers; a half goes up."""
    def generate(context, builder, signature, arguments):
        half = ir.Constant(_FLOATS, [0.5] * LANES)
        whole = _call(builder, "llvm.floor.v16f32", _FLOATS, builder.fadd(arguments[0], half))
        return builder.fptosi(whole, _INTS)
    return WORDS(lanes), generate


@intrinsic
def store_bytes(typing, array, index, words):
    """The lowest bytes of sixteen integers, as four words of an array from `index` on."""
    def generate(context, builder, signature, arguments):
        array, index, value = arguments
        narrow = ir.VectorType(ir.IntType(8), LANES)
        pointer = _place(context, builder, signature.args[0], array, index, narrow)
        builder.store(builder.trunc(value, narrow), pointer, align=4)
        return context.get_dummy_value()
    return types.void(array, types.intp, words), generate


LOG2_E = 1.4426950408889634
# 2^f for f from -0.5 to 0.5, highest power first: the Taylor series of exp(f · ln 2), to less
# than the last bit of a float32
SERIES = (1.525273380405984e-05, 0.0001540353039338161, 0.0013333558146428443,
          0.009618129107628477, 0.05550410866482158, 0.2402265069591007, 0.6931471805599453,
          1.0)


@intrinsic
def exponential(typing, lanes):
    """e to the power of each number.

    2 to the power of a whole number is a float32 with no more than an exponent; a polynomial
    does the rest. Powers beyond what a float32 can hold become the largest, or the smallest.
    """
    def number(value: float) -> ir.Constant:
        return ir.Constant(_FLOATS, [value] * LANES)

    def generate(context, builder, signature, arguments):
        power = builder.fmul(arguments[0], number(LOG2_E))
        for sign, bound in ((">", 127.0), ("<", -126.0)):             # nan stays
            beyond = builder.fcmp_ordered(sign, power, number(bound))
            power = builder.select(beyond, number(bound), power)
        whole = _call(builder, "llvm.floor.v16f32", _FLOATS, builder.fadd(power, number(0.5)))
        rest = builder.fsub(power, whole)
        series = number(SERIES[0])
        for factor in SERIES[1:]:
            series = builder.fadd(builder.fmul(series, rest, flags=["contract"]),
                                  number(factor), flags=["contract"])
        exponent = builder.add(builder.fptosi(whole, _INTS), _constant(127))
        two_to_whole = builder.bitcast(builder.shl(exponent, _constant(23)), _FLOATS)
        return builder.fmul(series, two_to_whole)
    return FLOATS(lanes), generate


@intrinsic
def highest(typing, a, b):
    """Of each pair of float32 the larger."""
    def generate(context, builder, signature, arguments):
        return builder.select(builder.fcmp_ordered(">", *arguments), *arguments)
    return FLOATS(a, b), generate


@intrinsic
def magnitude(typing, lanes):
    """Each float32 without its sign."""
    def generate(context, builder, signature, arguments):
        return _call(builder, "llvm.fabs.v16f32", _FLOATS, arguments[0])
    return FLOATS(lanes), generate


@intrinsic
def divide(typing, a, b):
    """a / b, float32."""
    def generate(context, builder, signature, arguments):
        return builder.fdiv(*arguments)
    return FLOATS(a, b), generate


@intrinsic
def add_words(typing, a, b):
    """a + b, integers."""
    def generate(context, builder, signature, arguments):
        return builder.add(*arguments)
    return WORDS(a, b), generate


@intrinsic
def added(typing, a, b):
    """a + b, float32."""
    def generate(context, builder, signature, arguments):
        return builder.fadd(*arguments)
    return FLOATS(a, b), generate


@intrinsic
def multiply(typing, a, b):
    """a · b, float32."""
    def generate(context, builder, signature, arguments):
        return builder.fmul(*arguments)
    return FLOATS(a, b), generate


@intrinsic
def multiply_add(typing, total, a, b):
    """total + a · b, float32, rounded once where the machine can."""
    def generate(context, builder, signature, arguments):
        total, a, b = arguments
        return builder.fadd(total, builder.fmul(a, b, flags=["contract"]), flags=["contract"])
    return FLOATS(total, a, b), generate


def _picked(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, lanes: list[int]) -> ir.Value:
    """Lanes of two vectors: from 0 on those of a, then those of b."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_INT, len(lanes)), lanes))


def _halved(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """The first half of a vector's lanes, each with the lane half its width away added."""
    half = value.type.count // 2
    low, high = (_picked(builder, value, value, list(range(first, first + half)))
                 for first in (0, half))
    return builder.fadd(low, high)


@intrinsic
def sum_of(typing, lanes):
    """The sum of sixteen float32, by halves: always in the same order."""
    def generate(context, builder, signature, arguments):
        value = arguments[0]
        while value.type.count > 1:
            value = _halved(builder, value)
        return builder.extract_element(value, ir.Constant(_INT, 0))
    return types.float32(lanes), generate


@intrinsic
def largest_of(typing, lanes):
    """The largest of sixteen float32."""
    def generate(context, builder, signature, arguments):
        value = arguments[0]
        while value.type.count > 1:
            half = value.type.count // 2
            low, high = (_picked(builder, value, value, list(range(first, first + half)))
                         for first in (0, half))
            value = builder.select(builder.fcmp_ordered(">", low, high), low, high)
        return builder.extract_element(value, ir.Constant(_INT, 0))
    return types.float32(lanes), generate


@intrinsic
def store_sums(typing, array, index, a, b, c, d):
    """The sums of four vectors, as four elements of an array; each has the bits of `sum_of`."""
    def generate(context, builder, signature, arguments):
        array, index, *vectors = arguments
        a, b, c, d = (_halved(builder, vector) for vector in vectors)        # 8 lanes each
        eights = [_picked(builder, *pair, list(range(16))) for pair in ((a, b), (c, d))]
        low = [0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27]
        fours = builder.fadd(_picked(builder, *eights, low),
                             _picked(builder, *eights, [lane + 4 for lane in low]))
        # of every four lanes, which belong to one vector, the first gets the sum
        twos = builder.fadd(fours, _picked(builder, fours, fours,
                                           [min(lane + 2, 15) for lane in range(LANES)]))
        ones = builder.fadd(twos, _picked(builder, twos, twos,
                                          [min(lane + 1, 15) for lane in range(LANES)]))
        four = ir.VectorType(_FLOAT, 4)
        pointer = _place(context, builder, signature.args[0], array, index, four)
        builder.store(_picked(builder, ones, ones, [0, 4, 8, 12]), pointer, align=4)
        return context.get_dummy_value()
    return types.void(array, types.intp, a, b, c, d), generate


@intrinsic
def dot4(typing, total, codes, x):
    """total + the sum of four products, in int32: bytes from 0 to 255 with signed bytes.

    codes, x: words of four bytes, of which the first is the lowest eight bits.
    """
    def generate(context, builder, signature, arguments):
        features = context.codegen()._tm_features
        if "+avx512vnni" in features:
            return _dot4_vnni(builder, *arguments)
        if "+avx2" in features:
            return _dot4_avx2(builder, *arguments)
        return _dot4_anywhere(builder, *arguments)
    return WORDS(total, codes, x), generate


def _call(builder: ir.IRBuilder, name: str, result: ir.Type, *arguments: ir.Value) -> ir.Value:
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(builder.module.declare_intrinsic(name, (), kind), arguments)


def _dot4_vnni(builder, total, codes, x):
    """One instruction, made for this."""
    return _call(builder, "llvm.x86.avx512.vpdpbusd.512", _INTS, total, codes, x)


def _dot4_avx2(builder, total, codes, x):
    """Bytes 0 and 2 of each word, then 1 and 3, as int16: `vpmaddwd` adds two products."""
    pairs = ir.VectorType(ir.IntType(16), LANES)
    half = ir.VectorType(_INT, LANES // 2)
    for shift in (0, 8):
        moved = builder.lshr(codes, _constant(shift))
        unsigned = builder.and_(moved, _constant(0x00FF00FF))
        sixteen = builder.bitcast(x, ir.VectorType(ir.IntType(16), 2 * LANES))
        eight = ir.Constant(sixteen.type, [8] * (2 * LANES))
        signed = builder.ashr(sixteen if shift else builder.shl(sixteen, eight), eight)
        signed = builder.bitcast(signed, _INTS)
        products = []
        for first in (0, LANES // 2):
            indices = ir.Constant(half, list(range(first, first + LANES // 2)))
            parts = [builder.bitcast(builder.shuffle_vector(value, value, indices), pairs)
                     for value in (unsigned, signed)]
            products.append(_call(builder, "llvm.x86.avx2.pmadd.wd", half, *parts))
        total = builder.add(total, builder.shuffle_vector(
            *products, ir.Constant(_INTS, list(range(LANES)))))
    return total


def _dot4_anywhere(builder, total, codes, x):
    """Byte by byte."""
    for shift in (0, 8, 16, 24):
        code = builder.and_(builder.lshr(codes, _constant(shift)), _constant(255))
        signed = builder.ashr(builder.shl(x, _constant(24 - shift)), _constant(24))
        total = builder.add(total, builder.mul(code, signed))
    return total
